"""The learner's process, fed by the real replay over a socket, beside a plain PyTorch update from local arrays.

One torch thread each. Ours receives squeezed transitions, inflates them and gives priorities back, in a thread beside
the one that updates; the peer has nothing of that to do: `peers/plain_dqn.py`. So a ratio of 1 says that the network
between replay and learner, and the squeezing, cost nothing.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from benchmarks.measure import Comparison, Report, cpu_of, parse_options, spread
from benchmarks.peers import TORCH, Peer
from benchmarks.whole_system import stats_of
from dpsr_apex.config_files import load_config
from dpsr_apex.processes.link import ask
from dpsr_apex.processes.onlooker import address_of
from dpsr_apex.run.run_directory import RunDirectory, write_config
from dpsr_apex.wire.messages import SetRate

CAPACITY = 4_000  # transitions; filled by a real actor before anything is timed
REPETITIONS = 5
SECONDS = 8.0  # of one repetition
GOAL = 1.0
FREE, NEVER = 0, 1_000_000_000  # transitions per update: the learner runs as fast as it can, or not at all

OVERRIDES = (
    f"replay.capacity={CAPACITY}",
    f"learner.learning_starts={CAPACITY}",
    f"learner.steps_per_update={NEVER}",
    "learner.device=cpu",
    "actor.exploration=1.0",
    "run.total_steps=10000000",
    "run.checkpoint_period=0",
)


@contextmanager
def process(*arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """A command of ours, while inside."""
    started = subprocess.Popen([sys.executable, "-m", "dpsr_apex.cli", *arguments], stderr=subprocess.DEVNULL)
    try:
        yield started
    finally:
        started.terminate()
        started.wait()


@contextmanager
def learning() -> Iterator[tuple[RunDirectory, int]]:
    """A full replay and a learner beside it, while inside: the run, and the learner's process id."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        run = RunDirectory.create(Path(folder) / "run")
        write_config(load_config("breakout_short", overrides=OVERRIDES), run)
        replay = stack.enter_context(process("replay", "--run-dir", str(run.path)))
        while not run.connection.exists():
            assert replay.poll() is None, "the replay has ended"
            time.sleep(0.1)
        connect = ("--connect", address_of(run).endpoint.removeprefix("tcp://"))
        learner = stack.enter_context(process("learner", *connect, "--threads", "1"))
        with process("actor", *connect) as actor:
            while stats_of(run)["t"] < CAPACITY:
                assert actor.poll() is None, "the actor has ended"
                assert learner.poll() is None, "the learner has ended"
                time.sleep(0.5)
        yield run, learner.pid


def set_rate(run: RunDirectory, steps_per_update: int) -> None:
    ask(address_of(run), SetRate(steps_per_update), 30.0)


def measure_ours(run: RunDirectory, learner: int) -> tuple[float, float]:
    """Updates a second, and CPU seconds of one, in one repetition; outside of it the learner waits."""
    set_rate(run, FREE)
    time.sleep(0.5)  # until it has its batches ahead
    before, cpu, began = stats_of(run)["rate"]["batches"], cpu_of(learner), time.perf_counter()
    time.sleep(SECONDS)
    after, cpu, seconds = stats_of(run)["rate"]["batches"], cpu_of(learner) - cpu, time.perf_counter() - began
    set_rate(run, NEVER)
    time.sleep(0.5)  # until it has used them up
    return (after - before) / seconds, cpu / (after - before)


def main() -> int:
    options = parse_options(__doc__)
    report = Report("learner")
    peer = Peer(TORCH, "plain_dqn.py")
    with learning() as (run, learner):
        repetitions = [(measure_ours(run, learner), peer.ask(SECONDS)) for _ in range(REPETITIONS)]
    peer.close()
    speeds = [(ours[0], theirs[0]) for ours, theirs in repetitions]
    report.figures["CPU seconds an update"] = {
        "ours, both threads": spread([ours[1] for ours, _ in repetitions])._asdict(),
        "plain": spread([theirs[1] for _, theirs in repetitions])._asdict(),
    }
    report.compare(
        Comparison(
            work="learner's updates, batch 32, one torch thread, fed by the real replay over a socket",
            beside="the same update in plain PyTorch from local numpy arrays",
            unit="updates/s",
            ours=spread([own for own, _ in speeds]),
            peer=spread([other for _, other in speeds]),
            ratio=spread([own / other for own, other in speeds]),
            goal=GOAL,
        )
    )
    return report.finish(options.json)


if __name__ == "__main__":
    sys.exit(main())
