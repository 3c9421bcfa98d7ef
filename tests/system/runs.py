"""Whole runs for tests to look into, to kill and to stop: a supervisor as a user starts it, and its processes.

A run can be held: it goes on, but so slowly that there is time for what is to be seen before it is finished. Every
process of a run has a word of its own in its environment, by which it is found whoever its parent is by now.
"""

from __future__ import annotations

import json
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
from typing import Any, NamedTuple, TypeVar

import numpy as np

from dpsr_apex.config_files import load_config
from dpsr_apex.processes.link import ReplayLost, ask
from dpsr_apex.processes.onlooker import address_of
from dpsr_apex.replay.memory import DpsrReplay
from dpsr_apex.run.checkpoint import Checkpoint, clock_of, list_checkpoints, newest_checkpoint
from dpsr_apex.run.metrics import Row, read_metrics
from dpsr_apex.run.run_directory import RunDirectory, RunDirectoryError
from dpsr_apex.wire.messages import Stats, StatsRequest

COMMAND = Path(sys.executable).with_name("dpsr-apex")
PATIENCE = 180.0  # seconds, for what takes a few on an idle machine
END_SECONDS = 20.0  # for a run to end when it is told to: 10, and as many again for a machine that has other work
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
    """What `condition` returns as soon as that is true; a run that does not answer is not there yet."""
    deadline = time.monotonic() + seconds
    while True:
        with suppress(ReplayLost, RunDirectoryError):
            if value := condition():
                return value
        assert time.monotonic() < deadline, f"this did not come true within {seconds:.0f} s"
        time.sleep(0.02)


class Process(NamedTuple):
    """One process of a run."""

    pid: int
    parent: int
    words: list[str]  # of its command line

    @property
    def name(self) -> str:
        """What the supervisor calls it; empty for what is no child of a supervisor."""
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
    """All that are alive and have this word, `NAME=VALUE`, in their environment."""
    return [found for path in Path("/proc").iterdir() if path.name.isdecimal() and (found := _find(path, mark))]


def _find(path: Path, mark: str) -> Process | None:
    """The process, if it has that mark; one that is dead and not yet buried has no environment."""
    try:
        if mark.encode() not in (path / "environ").read_bytes().split(b"\0"):
            return None
        words = (path / "cmdline").read_text().rstrip("\0").split("\0")
        state, parent = (path / "stat").read_text().rpartition(")")[2].split()[:2]
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None
    return None if state in "ZX" else Process(int(path.name), int(parent), words)


def kill_all_with(mark: str) -> None:
    """End all of them at once."""
    while processes := processes_with(mark):
        for process in processes:
            with suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)


class Run:
    """One life of a supervisor, and the run directory that it works in."""

    def __init__(self, path: Path, arguments: Sequence[str]) -> None:
        self.directory = RunDirectory(path)
        self._hold = path.with_name("hold")
        self._mark = f"{MARK}={secrets.token_hex(8)}"
        self._out, self._error = (path.with_name(f"{path.name}.{self._mark[-6:]}.{what}") for what in ("out", "err"))
        with self._out.open("wb") as out, self._error.open("wb") as error:
            self.process = subprocess.Popen(
                [COMMAND, *arguments],
                cwd=path.parent,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=error,
                env=os.environ | dict([self._mark.split("=")]),
            )

    @property
    def said(self) -> str:
        """All that the supervisor has printed."""
        return self._out.read_text()

    @property
    def complained(self) -> str:
        """The same of standard error."""
        return self._error.read_text()

    def hold(self) -> None:
        """Make every step of every actor slow."""
        self._hold.touch()

    def release(self) -> None:
        """Go on at full speed."""
        self._hold.unlink()

    def log(self, name: str) -> str:
        """The log of a process, in all its lives; empty before the first."""
        path = self.directory.logs / f"{name}.log"
        return path.read_text() if path.exists() else ""

    def processes(self) -> list[Process]:
        """All that are alive, the supervisor included."""
        return processes_with(self._mark)

    def child(self, name: str) -> Process | None:
        """The present life of a child; None while it has none."""
        children = [one for one in self.processes() if one.parent == self.process.pid and one.name == name]
        return children[0] if children else None

    def await_child(self, name: str) -> Process:
        """The same, when there is one."""
        return self.eventually(lambda: self.child(name))

    def await_another(self, dead: Process) -> Process:
        """The next life of a child."""

        def another() -> Process | None:
            child = self.child(dead.name)
            return child if child and child.pid != dead.pid else None

        return self.eventually(another)

    def stats(self) -> dict[str, Any]:
        """How things are, from the replay itself."""
        answer = ask(address_of(self.directory), StatsRequest(), 2.0)
        assert isinstance(answer, Stats)
        facts: dict[str, Any] = json.loads(answer.facts)
        return facts

    def actor(self, name: str) -> dict[str, Any] | None:
        """What the stats say of an actor; None while it is not in the run."""
        return next((actor for actor in self.stats()["actors"] if actor["name"] == name), None)

    def eventually(self, condition: Callable[[], T | None], seconds: float = PATIENCE) -> T:
        """As the function, but a supervisor that has ended is not waited for."""

        def alive_and() -> T | None:
            assert self.process.poll() is None, f"ended with {self.process.returncode}: {self.said}{self.complained}"
            return condition()

        return eventually(alive_and, seconds)

    def await_stats(self, condition: Callable[[dict[str, Any]], object], seconds: float = PATIENCE) -> dict[str, Any]:
        """The first stats for which the condition holds."""

        def good() -> dict[str, Any] | None:
            stats = self.stats()
            return stats if condition(stats) else None

        return self.eventually(good, seconds)

    def await_t(self, t: int) -> dict[str, Any]:
        """The first stats at clock t or later."""
        return self.await_stats(lambda stats: stats["t"] >= t)

    def await_all(self) -> dict[str, Any]:
        """The first stats with all actors in the run, and the learner at work."""
        self.eventually(self.directory.config.exists)
        actors = load_config(self.directory.config).system.actors
        return self.await_stats(lambda stats: len(stats["actors"]) == actors and stats["rate"]["batches"] > 0)

    def end(self, number: signal.Signals) -> int:
        """Signal the supervisor; its exit code after a run that has ended as it should."""
        self.process.send_signal(number)
        return self.wait(END_SECONDS)

    def wait(self, seconds: float = PATIENCE) -> int:
        """The exit code of the supervisor, which has left no process behind."""
        code = self.process.wait(seconds)
        assert self.processes() == []
        return code

    def kill_all(self) -> None:
        """End everything at once."""
        kill_all_with(self._mark)
        self.process.wait()


@contextmanager
def running(path: Path, *arguments: str | Path) -> Iterator[Run]:
    """A command that runs the run in `path`; whatever is left of it in the end is killed."""
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
    """A new small run with these settings besides."""
    options = ["--actors", str(actors), "--steps", str(steps), "--bind", bind, "--run-dir", str(path)]
    with running(path, "train", config, *options, *(f"--set={setting}" for setting in (*SMALL, *settings))) as run:
        yield run


def last_saved(directory: RunDirectory) -> int:
    """The clock of the newest checkpoint, while others are written; 0 before the first."""
    return max(map(clock_of, list_checkpoints(directory.checkpoints)), default=0)


def last_checkpoint(directory: RunDirectory) -> Checkpoint:
    """The newest one, which must be there."""
    found = newest_checkpoint(directory.checkpoints)
    assert found is not None
    return found


def restored(directory: RunDirectory, checkpoint: Checkpoint) -> DpsrReplay:
    """The replay of a checkpoint, looked through."""
    config = load_config(directory.config)
    replay = DpsrReplay(config.replay, config.run.total_steps, np.random.default_rng(0))
    state = checkpoint.parts["replay"]
    replay.load(state.facts["server"]["replay"], state.arrays)
    assert replay.check_valid() == (True, "")
    return replay


def sent_by_actors(run: Run) -> int:
    """Transitions that they have sent, by the last words of each of them; one that was killed has none."""
    logs = [path.read_text() for path in run.directory.logs.glob("actor-*.log")]
    return sum(int(count) for log in logs for count in re.findall(r"(\d+) transitions sent", log))


def assert_counters_add_up(directory: RunDirectory, total_steps: int) -> dict[str, int]:
    """What must hold of every run that is finished, whatever died in it; its traffic is returned."""
    checkpoint = last_checkpoint(directory)
    replay = restored(directory, checkpoint)
    counters, traffic = replay.counters, checkpoint.parts["replay"].facts["traffic"]
    assert checkpoint.t == replay.t == traffic["inserted"] == total_steps
    assert traffic["received"] == traffic["inserted"] + traffic["refused"]
    assert replay.size + counters.replaced == traffic["inserted"] + counters.recycled
    assert counters.rounds_opened == counters.rounds_closed + counters.rounds_expired
    ended = counters.candidates_applied + counters.candidates_stale + counters.candidates_lost
    assert counters.candidates_drawn == ended
    assert (traffic["malformed"], traffic["refused_messages"]) == (0, 0)
    found: dict[str, int] = traffic
    return found


def assert_finished(run: Run, total_steps: int) -> Row:
    """The run has ended as every run should; its last row of metrics is returned."""
    assert (run.wait(), run.complained) == (0, "")
    assert read_metrics(run.directory.evaluations)[-1]["t"] == total_steps
    clocks = [row["t"] for row in read_metrics(run.directory.metrics)]
    assert clocks == sorted(set(clocks))
    assert clocks[-1] == total_steps
    assert not run.directory.connection.exists()
    return read_metrics(run.directory.metrics)[-1]
