"""A whole run of Breakout in steady state on all cores, beside stable-baselines3's DQN: environment steps a second.

Ours is the real command with its default number of actors, after the replay is full and recycling has begun: a minute
each, three times, with a minute of the peer after each. Also told: updates a second, the CPU of each role, and who
waits. What the peer does, and leaves out: `peers/sb3.py`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.measure import Comparison, Report, cpu_of, parse_options, spread
from benchmarks.peers import TORCH, Peer
from dpsr_apex.processes.link import ask
from dpsr_apex.processes.onlooker import address_of
from dpsr_apex.run.run_directory import RunDirectory
from dpsr_apex.wire.messages import Stats, StatsRequest

REPETITIONS = 3
SECONDS = 60.0  # of one repetition
ENVIRONMENTS = 4  # stepped side by side, by our actor and by the peer: both are a little faster so than with one
CAPACITY = 4_000  # transitions; filled before anything is timed
ROLES = ("replay", "learner", "actor", "evaluator")
GOAL = 1.5

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
    """The command as a user types it, while inside and in steady state: its run directory and its process id."""
    with tempfile.TemporaryDirectory() as folder:
        run = RunDirectory(Path(folder) / "run")
        sets = [f"--set={override}" for override in OVERRIDES]
        command = [sys.executable, "-m", "dpsr_apex.cli", "train", "breakout_short", "--run-dir", str(run.path), *sets]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        try:
            while not run.connection.exists() or stats_of(run)["t"] < 1.1 * CAPACITY:
                assert process.poll() is None, "the training has ended"
                time.sleep(0.5)
            yield run, process.pid
        finally:
            process.terminate()
            process.wait()


def stats_of(run: RunDirectory) -> dict[str, Any]:
    answer = ask(address_of(run), StatsRequest(), 30.0)
    assert isinstance(answer, Stats)
    facts: dict[str, Any] = json.loads(answer.facts)
    return facts


def cpu_by_role(supervisor: int) -> dict[str, float]:
    """CPU seconds so far of the processes of each role."""
    seconds = dict.fromkeys(ROLES, 0.0)
    for child in Path(f"/proc/{supervisor}/task/{supervisor}/children").read_text().split():
        role = Path(f"/proc/{child}/cmdline").read_text().split("\0")[3]
        seconds[role] += cpu_of(int(child))
    return seconds


def measure(run: RunDirectory, supervisor: int) -> dict[str, float]:
    """One repetition: rates, and the share of one core that each role took."""
    before, cpu_before, began = stats_of(run), cpu_by_role(supervisor), time.perf_counter()
    waits = []
    while time.perf_counter() - began < SECONDS:
        time.sleep(min(2.0, SECONDS))
        waits.append(stats_of(run)["learner"]["waiting"])
    after, cpu_after, seconds = stats_of(run), cpu_by_role(supervisor), time.perf_counter() - began
    return {
        "steps per second": (after["t"] - before["t"]) / seconds,
        "updates per second": (after["rate"]["batches"] - before["rate"]["batches"]) / seconds,
        "share of time that the learner waits": sum(waits) / len(waits),
        **{f"cores taken by the {role}": (cpu_after[role] - cpu_before[role]) / seconds for role in ROLES},
    }


def measure_both() -> tuple[list[dict[str, float]], list[float]]:
    """All repetitions: ours, and the peer's steps a second. Whoever is not measured stands still or is not there."""
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
    report.figures |= {name: found._asdict() for name, found in spreads.items()}
    rows = [[name, found.show(2)] for name, found in spreads.items()]
    report.table("Breakout, 4 transitions per update, all cores", ("", "median (quartiles)"), rows)
    steps = [one["steps per second"] for one in ours]
    report.compare(
        Comparison(
            work="whole system on all cores: Breakout, an update of 32 every 4 steps",
            beside="stable-baselines3 DQN (same network and batch; not double, no priorities)",
            unit="steps/s",
            ours=spread(steps),
            peer=spread(theirs),
            ratio=spread([own / other for own, other in zip(steps, theirs, strict=True)]),
            goal=GOAL,
        )
    )
    return report.finish(options.json)


if __name__ == "__main__":
    sys.exit(main())
