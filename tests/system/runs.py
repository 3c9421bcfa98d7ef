"""Whole runs that tests observe, kill and stop: a supervisor as a user starts it, and its processes.

A run can be held: it continues so slowly that a test has time to observe it before it is finished. Every process of a
run has a unique variable in its environment, by which it is found even after its parent has ended.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np

from dpsr_apex.config_files import load_config
from dpsr_apex.files import Row, read_rows
from dpsr_apex.processes.control import address_of
from dpsr_apex.processes.link import ReplayLost
from dpsr_apex.processes.statistics import ask_stats
from dpsr_apex.record.checkpoint import Checkpoint, clock_of, list_checkpoints, newest_checkpoint
from dpsr_apex.record.ending import Ending, read_ending
from dpsr_apex.record.run_directory import RunDirectory, RunDirectoryError
from dpsr_apex.replay.replay import Replay
from dpsr_apex.wire.messages import Stats, StatsRequest
from dpsr_apex.wire.statistics import ActorStats

COMMAND = Path(sys.executable).with_name("dpsr-apex")
PATIENCE = 180.0  # seconds to wait for an event that takes a few on an idle machine
END_SECONDS = 20.0  # for a run to end when it is told to: 10, and 10 more for a busy machine
MARK = "DPSR_APEX_TEST_RUN"

SMALL = (
    *("replay.capacity=500", "replay.replace_candidates=32", "replay.recycle_candidates=8", "replay.recycle_period=25"),
    *("learner.learning_starts=100", "learner.batch_size=16", "learner.steps_per_update=4", "learner.device=cpu"),
    *("learner.hidden=[32]", "learner.head=32", "evaluation.episodes=2", "evaluation.max_steps=100"),
    *("run.log_period=100", "run.checkpoint_period=500", "system.lease=5", "system.rate_tolerance=50"),
    "env.name=tasks:CartPole",
)

T = TypeVar("T")


def eventually(condition: Callable[[], T | None], seconds: float = PATIENCE) -> T:
    """Return the first true value of `condition`; a run that does not answer yet is asked again."""
    deadline = time.monotonic() + seconds
    while True:
        with suppress(ReplayLost, RunDirectoryError):
            if value := condition():
                return value
        assert time.monotonic() < deadline, f"the condition was not true within {seconds:.0f} s"
        time.sleep(0.02)


class Process(NamedTuple):
    """One process of a run."""

    pid: int
    parent: int
    words: list[str]  # of its command line

    @property
    def name(self) -> str:
        """Its name in the supervisor; empty for a process that no supervisor has started."""
        if "--lifeline" not in self.words:
            return ""
        role = self.words[self.words.index("dpsr_apex.cli") + 1]
        return self.words[self.words.index("--name") + 1] if role == "actor" else role

    @property
    def resident_bytes(self) -> int:
        """The memory that it takes."""
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")


def processes_with(mark: str) -> list[Process]:
    """Return all running processes with `mark`, which is NAME=VALUE, in their environment."""
    return [found for path in Path("/proc").iterdir() if path.name.isdecimal() and (found := _find(path, mark))]


def _find(path: Path, mark: str) -> Process | None:
    """Return the process if it has that mark; a zombie has no environment."""
    try:
        if mark.encode() not in (path / "environ").read_bytes().split(b"\0"):
            return None
        words = (path / "cmdline").read_text().rstrip("\0").split("\0")
        state, parent = (path / "stat").read_text().rpartition(")")[2].split()[:2]
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None
    return None if state in "ZX" else Process(int(path.name), int(parent), words)


def kill_all_with(mark: str) -> None:
    """Kill all processes with this mark."""
    while processes := processes_with(mark):
        for process in processes:
            with suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)


class Run:
    """One process of a supervisor, and its run directory."""

    def __init__(
        self, path: Path, arguments: Sequence[str], before: Sequence[str] = (), outputs: Path | None = None
    ) -> None:
        """Start `dpsr-apex` with these arguments; `before` is a prefix of the command.

        What it prints is written into the folder `outputs`, by default beside the run directory.
        """
        self.directory = RunDirectory(path)
        self._hold = path.with_name("hold")
        self._mark = f"{MARK}={secrets.token_hex(8)}"
        name = f"{path.name}.{self._mark[-6:]}"
        self._out, self._error = ((outputs or path.parent) / f"{name}.{what}" for what in ("out", "err"))
        with self._out.open("wb") as out, self._error.open("wb") as error:
            self.process = subprocess.Popen(
                [*before, COMMAND, *arguments],
                cwd=path.parent,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=error,
                env=os.environ | dict([self._mark.split("=")]),
            )

    @property
    def said(self) -> str:
        """Everything that the supervisor has printed to standard output."""
        return self._out.read_text()

    @property
    def complained(self) -> str:
        """Everything that the supervisor has printed to standard error."""
        return self._error.read_text()

    @property
    def ending(self) -> Ending | None:
        """How the run ended, according to its run directory."""
        return read_ending(self.directory)

    def hold(self) -> None:
        """Make every step of every actor slow."""
        self._hold.touch()

    def release(self) -> None:
        """Continue at full speed."""
        self._hold.unlink()

    def log(self, name: str) -> str:
        """The log of all processes with this name; empty before the first."""
        path = self.directory.logs / f"{name}.log"
        return path.read_text() if path.exists() else ""

    def processes(self) -> list[Process]:
        """All that are running, including the supervisor."""
        return processes_with(self._mark)

    def child(self, name: str) -> Process | None:
        """Return the running process of a child, or None."""
        children = [one for one in self.processes() if one.parent == self.process.pid and one.name == name]
        return children[0] if children else None

    def await_child(self, name: str) -> Process:
        """Wait until a child with this name is running, and return it."""
        return self.eventually(lambda: self.child(name))

    def pids(self, *names: str) -> list[int]:
        """Wait until children with these names are running; return their process ids."""
        return [self.await_child(name).pid for name in names]

    def await_another(self, dead: Process) -> Process:
        """Wait for the process that replaces a dead child, and return it."""

        def another() -> Process | None:
            child = self.child(dead.name)
            return child if child and child.pid != dead.pid else None

        return self.eventually(another)

    def stats(self) -> Stats:
        """The statistics, from the replay itself."""
        return ask_stats(address_of(self.directory), StatsRequest(), 2.0)

    def actor(self, name: str) -> ActorStats | None:
        """The statistics of an actor; None while it is not a member."""
        return next((actor for actor in self.stats().actors if actor.name == name), None)

    def eventually(self, condition: Callable[[], T | None], seconds: float = PATIENCE) -> T:
        """Return the first true value of `condition`; fail as soon as the supervisor has ended."""

        def alive_and() -> T | None:
            assert self.process.poll() is None, f"ended with {self.process.returncode}: {self.said}{self.complained}"
            return condition()

        return eventually(alive_and, seconds)

    def await_stats(self, condition: Callable[[Stats], object], seconds: float = PATIENCE) -> Stats:
        """Return the first stats for which the condition is true."""

        def good() -> Stats | None:
            stats = self.stats()
            return stats if condition(stats) else None

        return self.eventually(good, seconds)

    def await_t(self, t: int) -> Stats:
        """Return the first stats at clock t or later."""
        return self.await_stats(lambda stats: stats.t >= t)

    def await_all(self) -> Stats:
        """Return the first stats with all actors as members, and with updates."""
        self.eventually(self.directory.config.exists)
        actors = load_config(self.directory.config).system.actors
        return self.await_stats(lambda stats: len(stats.actors) == actors and stats.replay.priorities_updated > 0)

    def end(self, number: signal.Signals) -> int:
        """Send the supervisor a signal; return its exit code. The run must end in time and leave no process."""
        self.process.send_signal(number)
        return self.wait(END_SECONDS)

    def wait(self, seconds: float = PATIENCE) -> int:
        """Return the exit code of the supervisor; it must leave no process behind."""
        code = self.process.wait(seconds)
        assert self.processes() == []
        return code

    def kill_all(self) -> None:
        """Kill all processes of the run."""
        kill_all_with(self._mark)
        self.process.wait()


@contextmanager
def running(path: Path, *arguments: str | Path) -> Iterator[Run]:
    """Run a command for the run in `path`; processes that are left in the end are killed."""
    shutil.copy(Path(__file__).with_name("fault_tasks.py"), path.with_name("tasks.py"))
    run = Run(path, list(map(str, arguments)))
    try:
        yield run
    finally:
        run.kill_all()


@contextmanager
def training(
    path: Path, *settings: str, steps: int = 2_000, actors: int = 1, config: str = "cartpole", bind: str = "127.0.0.1:0"
) -> Iterator[Run]:
    """Start a new small run with these additional settings."""
    options = ["--base=paper", "--actors", str(actors), "--steps", str(steps), "--bind", bind, "--run-dir", str(path)]
    with running(path, "train", config, *options, *(f"--set={setting}" for setting in (*SMALL, *settings))) as run:
        yield run


def last_saved(directory: RunDirectory) -> int:
    """Return the clock of the newest complete checkpoint; 0 before the first."""
    return max(map(clock_of, list_checkpoints(directory.checkpoints)), default=0)


def last_checkpoint(directory: RunDirectory) -> Checkpoint:
    """Return the newest checkpoint, which must exist."""
    found = newest_checkpoint(directory.checkpoints)
    assert found is not None
    return found


def restored(directory: RunDirectory, checkpoint: Checkpoint) -> Replay:
    """Return the replay of a checkpoint, after checking its invariants."""
    config = load_config(directory.config)
    replay = Replay(config.replay, config.run.total_steps, np.random.default_rng(0))
    state = checkpoint.parts["replay"]
    replay.load(state.facts["replay"], state.arrays)
    assert replay.check_valid() == (True, "")
    return replay


class Sent(NamedTuple):
    """Transitions that an actor process has counted itself, independently of the replay."""

    sent: int
    unacknowledged: int


def sent_in(log: str) -> list[Sent]:
    """Return the count that each actor process in this log has written when it left; a killed one has none.

    An actor keeps no other record of its own, so this is the one place that reads it from a log.
    """
    found = re.findall(r"(\d+) transitions sent, (\d+) of them not acknowledged", log)
    return [Sent(int(sent), int(unacknowledged)) for sent, unacknowledged in found]


def sent_by_actors(run: Run) -> int:
    """Return the transitions that all actors have sent, by their own count; a killed one has none."""
    logs = [path.read_text() for path in run.directory.logs.glob("actor-*.log")]
    return sum(counted.sent for log in logs for counted in sent_in(log))


def assert_nothing_missing(run: Run) -> dict[str, int]:
    """Assert that all transitions that the actors have sent, by their own count, are stored, refused or lost.

    Every actor must have left by itself. Return the traffic.
    """
    traffic: dict[str, int] = last_checkpoint(run.directory).parts["replay"].facts["traffic"]
    counts = [count for path in run.directory.logs.glob("actor-*.log") for count in sent_in(path.read_text())]
    assert traffic["sent"] == sum(count.sent for count in counts)
    unacknowledged = sum(count.unacknowledged for count in counts)
    # What arrives at the end of a finished run is refused, and an actor may have left before it is told.
    assert traffic["lost"] <= unacknowledged <= traffic["lost"] + traffic["refused"]
    assert traffic["sent"] == traffic["inserted"] + traffic["refused"] + traffic["lost"]
    return traffic


def connections(process: Process, port: int) -> set[int]:
    """Return the local ports of a process's TCP connections to this port."""
    sockets = set()
    for descriptor in Path(f"/proc/{process.pid}/fd").iterdir():
        with suppress(FileNotFoundError):
            sockets.add(os.readlink(descriptor))
    rows = [line.split() for line in Path(f"/proc/{process.pid}/net/tcp").read_text().splitlines()[1:]]
    ends = [(_port(row[1]), _port(row[2])) for row in rows if f"socket:[{row[9]}]" in sockets]
    return {local for local, remote in ends if remote == port}


def _port(address: str) -> int:
    return int(address.partition(":")[2], 16)


def assert_counters_add_up(directory: RunDirectory, total_steps: int) -> dict[str, int]:
    """Assert the invariants of every finished run, whichever processes crashed; return its traffic."""
    checkpoint = last_checkpoint(directory)
    replay = restored(directory, checkpoint)
    counters, traffic = replay.counters, checkpoint.parts["replay"].facts["traffic"]
    assert checkpoint.t == replay.t == traffic["inserted"] + counters.chain_steps_stored == total_steps
    assert traffic["received"] == traffic["inserted"] + traffic["refused"] == traffic["sent"] - traffic["lost"]
    assert replay.size + counters.replaced + counters.quarantined == replay.t + counters.recycled
    assert replay.check_valid() == (True, "")
    assert counters.rounds_opened == counters.rounds_closed + counters.rounds_expired
    ended = counters.candidates_applied + counters.candidates_stale + counters.candidates_lost
    assert counters.candidates_drawn == ended
    assert (traffic["malformed"], traffic["refused_messages"]) == (0, 0)
    found: dict[str, int] = traffic
    return found


def assert_finished(run: Run, total_steps: int) -> Row:
    """Assert that the run is finished and its records are complete; return its last row of metrics."""
    assert (run.wait(), run.complained) == (0, "")
    assert run.ending == Ending("finished", 0, total_steps)
    assert read_rows(run.directory.evaluations)[-1]["t"] == total_steps
    clocks = [row["t"] for row in read_rows(run.directory.metrics)]
    assert clocks == sorted(set(clocks))
    assert clocks[-1] == total_steps
    assert not run.directory.connection.exists()
    return read_rows(run.directory.metrics)[-1]
