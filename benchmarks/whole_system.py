"""A whole run of Breakout in steady state on all cores, compared with stable-baselines3's DQN: steps per second.

Ours is the real command with its default number of actors, after the replay is full and recycling has started: three
times 30 seconds, each followed by as much of the peer. Updates per second, the CPU time of each role and the learner's
waiting time are also reported. What the peer does and omits is described in `peers/sb3.py`.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.measure import BREAKOUT, Comparison, Report, cpu_of, parse_options, spread
from benchmarks.peers import TORCH, Peer
from benchmarks.process_memory import processes_of
from dpsr_apex.processes.control import address_of
from dpsr_apex.processes.statistics import ask_stats
from dpsr_apex.record.run_directory import RunDirectory
from dpsr_apex.wire.messages import Stats, StatsRequest

REPETITIONS = 3
SECONDS = 30.0  # per repetition
ENVIRONMENTS = 4  # per actor, and in the peer: both are slightly faster than with one
CAPACITY = 4_000  # transitions; filled before timing starts
ROLES = ("replay", "learner", "actor", "evaluator")

OVERRIDES = (
    f"replay.capacity={CAPACITY}",
    f"learner.learning_starts={CAPACITY}",
    "learner.steps_per_update=4",
    "learner.device=cpu",
    "actor.exploration=0.05",
    f"actor.environments={ENVIRONMENTS}",
    "run.total_steps=10000000",
    "run.checkpoint_period=0",
)


@contextmanager
def training() -> Iterator[tuple[RunDirectory, int]]:
    """Run the training command inside the block; yield its run directory and process id in steady state."""
    with tempfile.TemporaryDirectory() as folder:
        run = RunDirectory(Path(folder) / "run")
        sets = [f"--set={override}" for override in OVERRIDES]
        options = ["--run-dir", str(run.path), *sets]
        command = [sys.executable, "-m", "dpsr_apex.cli", "train", str(BREAKOUT), *options]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        try:
            while not run.connection.exists() or stats_of(run).t < 1.1 * CAPACITY:
                assert process.poll() is None, "the training has ended"
                time.sleep(0.5)
            yield run, process.pid
        finally:
            process.terminate()
            process.wait()


def stats_of(run: RunDirectory) -> Stats:
    return ask_stats(address_of(run), StatsRequest(), 30.0)


def share_of_waiting(run: RunDirectory) -> float:
    learner = stats_of(run).learner
    assert learner is not None
    assert learner.report is not None
    return learner.report.waiting


def cpu_by_role(supervisor: int) -> dict[str, float]:
    """Return the CPU seconds used so far by the processes of each role."""
    seconds = dict.fromkeys(ROLES, 0.0)
    for role, child in processes_of(supervisor):
        seconds[role] += cpu_of(child)
    return seconds


def measure(run: RunDirectory, supervisor: int) -> dict[str, float]:
    """Run one repetition and return rates, and the cores used by each role."""
    before, cpu_before, started = stats_of(run), cpu_by_role(supervisor), time.perf_counter()
    waits = []
    while time.perf_counter() - started < SECONDS:
        time.sleep(min(2.0, SECONDS))
        waits.append(share_of_waiting(run))
    after, cpu_after, seconds = stats_of(run), cpu_by_role(supervisor), time.perf_counter() - started
    return {
        "steps per second": (after.t - before.t) / seconds,
        "updates per second": (after.rate.batches - before.rate.batches) / seconds,
        "share of time the learner waits": sum(waits) / len(waits),
        **{f"cores used by the {role}": (cpu_after[role] - cpu_before[role]) / seconds for role in ROLES},
    }


def measure_both() -> tuple[list[dict[str, float]], list[float]]:
    """Run all repetitions and return our rates and the peer's steps per second; only one of the two runs at a time."""
    ours, theirs = [], []
    peer = Peer(TORCH, "sb3.py", len(os.sched_getaffinity(0)), ENVIRONMENTS)
    for _ in range(REPETITIONS):
        with training() as (run, supervisor):
            ours.append(measure(run, supervisor))
        theirs.append(peer.ask(SECONDS)[0])
    peer.close()
    return ours, theirs


def main() -> int:
    options = parse_options(__doc__)
    report = Report("whole_system")
    ours, theirs = measure_both()
    spreads = {name: spread([one[name] for one in ours]) for name in ours[0]}
    report.figures |= {name: values._asdict() for name, values in spreads.items()}
    rows = [[name, values.show(2)] for name, values in spreads.items()]
    report.table("Breakout, 4 transitions per update, all cores", ("", "median (quartiles)"), rows)
    steps = [one["steps per second"] for one in ours]
    report.compare(
        Comparison(
            work="whole system on all cores: Breakout, one update (batch 32) every 4 steps",
            baseline="stable-baselines3 DQN (same network and batch size; not double, no priorities)",
            unit="steps/s",
            ours=spread(steps),
            peer=spread(theirs),
            ratio=spread([our / their for our, their in zip(steps, theirs, strict=True)]),
            goal=None,
        )
    )
    return report.finish(options.json)


if __name__ == "__main__":
    sys.exit(main())
