"""The learner process with batches from the replay over a socket, compared with a plain PyTorch update.

One torch thread each. Ours receives compressed transitions, decompresses them and sends priorities, in a second thread
beside the updates; the peer takes batches from local arrays and does none of this (`peers/plain_dqn.py`). A ratio of 1
means that communication and compression cost nothing.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from benchmarks.measure import BREAKOUT, Comparison, Report, cpu_of, parse_options, spread
from benchmarks.peers import TORCH, Peer
from benchmarks.whole_system import stats_of
from dpsr_apex.config_files import load_config
from dpsr_apex.processes.control import address_of
from dpsr_apex.processes.link import ask
from dpsr_apex.record.run_directory import RunDirectory, write_config
from dpsr_apex.wire.messages import SetRate

CAPACITY = 4_000  # transitions; filled by a real actor before timing starts
REPETITIONS = 5
SECONDS = 8.0  # per repetition
GOAL = 1.0
UNLIMITED, PAUSED = 0, 1_000_000_000  # transitions per update: the learner runs as fast as it can, or not at all

OVERRIDES = (
    f"replay.capacity={CAPACITY}",
    f"learner.learning_starts={CAPACITY}",
    f"learner.steps_per_update={PAUSED}",
    "learner.device=cpu",
    "actor.exploration=1.0",
    "run.total_steps=10000000",
    "run.checkpoint_period=0",
)


@contextmanager
def process(*arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a `dpsr-apex` command inside the block."""
    started = subprocess.Popen([sys.executable, "-m", "dpsr_apex.cli", *arguments], stderr=subprocess.DEVNULL)
    try:
        yield started
    finally:
        started.terminate()
        started.wait()


@contextmanager
def learning() -> Iterator[tuple[RunDirectory, int]]:
    """Run a full replay and a learner inside the block; yield the run and the learner's process id."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        run = RunDirectory.create(Path(folder) / "run")
        write_config(load_config(BREAKOUT, overrides=OVERRIDES), run)
        replay = stack.enter_context(process("replay", "--run-dir", str(run.path)))
        while not run.connection.exists():
            assert replay.poll() is None, "the replay has ended"
            time.sleep(0.1)
        find = ("--find", str(run.path))
        learner = stack.enter_context(process("learner", *find, "--threads", "1"))
        with process("actor", *find) as actor:
            while stats_of(run).t < CAPACITY:
                assert actor.poll() is None, "the actor has ended"
                assert learner.poll() is None, "the learner has ended"
                time.sleep(0.5)
        yield run, learner.pid


def set_rate(run: RunDirectory, steps_per_update: int) -> None:
    ask(address_of(run), SetRate(steps_per_update), 30.0)


def measure_ours(run: RunDirectory, learner: int) -> tuple[float, float]:
    """Return updates per second and CPU seconds per update in one repetition; afterwards the learner is paused."""
    set_rate(run, UNLIMITED)
    time.sleep(0.5)  # until batches are prefetched
    before, cpu, started = stats_of(run).rate.batches, cpu_of(learner), time.perf_counter()
    time.sleep(SECONDS)
    after, cpu, seconds = stats_of(run).rate.batches, cpu_of(learner) - cpu, time.perf_counter() - started
    set_rate(run, PAUSED)
    time.sleep(0.5)  # until prefetched batches are used up
    return (after - before) / seconds, cpu / (after - before)


def main() -> int:
    options = parse_options(__doc__)
    report = Report("learner")
    peer = Peer(TORCH, "plain_dqn.py")
    with learning() as (run, learner):
        repetitions = [(measure_ours(run, learner), peer.ask(SECONDS)) for _ in range(REPETITIONS)]
    peer.close()
    speeds = [(ours[0], theirs[0]) for ours, theirs in repetitions]
    report.figures["CPU seconds per update"] = {
        "ours, both threads": spread([ours[1] for ours, _ in repetitions])._asdict(),
        "plain": spread([theirs[1] for _, theirs in repetitions])._asdict(),
    }
    report.compare(
        Comparison(
            work="learner updates, batch 32, one torch thread, batches from the replay over a socket",
            baseline="plain PyTorch update, batches from local numpy arrays",
            unit="updates/s",
            ours=spread([ours for ours, _ in speeds]),
            peer=spread([theirs for _, theirs in speeds]),
            ratio=spread([ours / theirs for ours, theirs in speeds]),
            goal=GOAL,
        )
    )
    return report.finish(options.json)


if __name__ == "__main__":
    sys.exit(main())
