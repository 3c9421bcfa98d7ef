"""The shell around the supervision of a run: it executes instructions on an engine, and shows what is reported."""

from __future__ import annotations

import errno
import io
import signal
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from dpsr_apex.config import Config
from dpsr_apex.config_files import load_config
from dpsr_apex.interrupt import Interrupt
from dpsr_apex.live.view import LiveView
from dpsr_apex.processes.discovery import Address, HeadLocator
from dpsr_apex.protocol.instructions import Resources
from dpsr_apex.protocol.restarts import Exit
from dpsr_apex.record.progress import goal_of
from dpsr_apex.record.run_directory import RunDirectory, write_config
from dpsr_apex.supervise.managed import ManagedProcess, Task
from dpsr_apex.supervise.supervisor import RunFailed, Supervisor

CRASH = Exit(1, "ended with exit code 1", 1.0, output="    ValueError: 1")
IN_ORDER = Exit(0, "ended with exit code 0", 1.0)


class PaperProcess:
    """A process that runs until it is sent a signal, unless a test ends it."""

    is_placed = True

    def __init__(self, task: Task) -> None:
        self.task = task
        self.exit: Exit | None = None
        self.signals: list[signal.Signals] = []
        self.is_released = False

    def poll(self) -> Exit | None:
        return self.exit

    def signal(self, number: signal.Signals) -> None:
        self.signals.append(number)
        self.exit = self.exit or IN_ORDER

    def kill(self) -> None:
        raise AssertionError(f"{self.task.name} leaves in time")

    def release(self) -> None:
        self.is_released = True


class PaperEngine:
    """An engine whose head is never found; `on_look` is called when the supervisor looks for it."""

    flags: tuple[str, ...] = ()

    def __init__(self, on_look: Callable[[], None]) -> None:
        self.started: list[PaperProcess] = []
        self.calls: list[str] = []
        self._on_look = on_look

    def arguments(self, role: str, actors: int) -> list[str]:
        return ["--engine", f"{role} of {actors}"]

    def start(self, task: Task) -> ManagedProcess:
        self.started.append(PaperProcess(task))
        return self.started[-1]

    def find_head(self) -> HeadLocator | None:
        self._on_look()
        return None

    def how_to_join(self, head: Address) -> str:
        raise AssertionError(f"there is no head: {head}")

    def find_resources(self, roles: AbstractSet[str], actors: tuple[str, ...]) -> Resources:
        raise AssertionError(f"nobody waits: {roles}, {actors}")

    def node_reports(self) -> list[str]:
        return ["Node 10.0.0.1 has left the cluster"]

    def withdraw_head(self) -> None:
        self.calls.append("withdraw_head")

    def close(self) -> None:
        self.calls.append("close")


@pytest.fixture
def config() -> Config:
    config = load_config("cartpole")
    return replace(config, system=replace(config.system, actors=3))


def supervise(config: Config, folder: Path, engine: PaperEngine, interrupt: Interrupt) -> tuple[bool, str]:
    """Run the supervisor; return its result and what it showed."""
    console = Console(file=io.StringIO(), width=200)
    run = RunDirectory.create(folder / "run")
    write_config(config, run)
    with LiveView(goal_of(config.run), console) as view:
        result = Supervisor(config, run, view, engine).run(interrupt)
    assert isinstance(console.file, io.StringIO)
    return result, console.file.getvalue()


def test_an_interrupted_run_is_stopped_in_order(config: Config, tmp_path: Path) -> None:
    interrupt = Interrupt()

    def ask() -> None:
        interrupt.asked = True

    engine = PaperEngine(ask)
    finished, said = supervise(config, tmp_path, engine, interrupt)
    assert not finished
    assert "Saving… press Ctrl-C again to quit without saving." in said
    assert "Node 10.0.0.1 has left the cluster" in said
    (replay,) = engine.started
    path = tmp_path / "run"
    arguments = ["replay", "--run-dir", str(path), "--engine", "replay of 3"]
    assert replay.task == Task("replay", "replay", arguments, path / "logs" / "replay.log")
    assert (replay.signals, replay.is_released) == ([signal.SIGTERM], True)
    assert engine.calls == ["withdraw_head", "close"]


def test_a_run_that_fails_says_why(config: Config, tmp_path: Path) -> None:
    def crash() -> None:
        engine.started[0].exit = CRASH

    engine = PaperEngine(crash)
    with pytest.raises(RunFailed, match="ValueError: 1"):
        supervise(config, tmp_path, engine, Interrupt())
    assert engine.started[0].is_released
    assert engine.calls[-1] == "close"


def test_processes_are_stopped_when_the_supervisor_itself_fails(config: Config, tmp_path: Path) -> None:
    def fail() -> None:
        raise OSError("the key file is gone")

    engine = PaperEngine(fail)
    with pytest.raises(OSError, match="the key file is gone"):
        supervise(config, tmp_path, engine, Interrupt())
    assert engine.started[0].signals == [signal.SIGTERM]
    assert engine.calls[-1] == "close"


def test_a_process_that_cannot_be_started_fails_the_run_with_the_reason(config: Config, tmp_path: Path) -> None:
    class FullEngine(PaperEngine):
        def start(self, task: Task) -> ManagedProcess:
            raise PermissionError(errno.EROFS, "Read-only file system", str(task.log))

    with pytest.raises(RunFailed, match=r"replay could not be started \(.*replay.log: Read-only file system\)"):
        supervise(config, tmp_path, FullEngine(lambda: None), Interrupt())
