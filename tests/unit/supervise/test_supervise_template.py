"""Processes that are forked from a template: children of this process like any other, whatever happens to it."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dpsr_apex.protocol.restarts import Exit
from dpsr_apex.supervise import template
from dpsr_apex.supervise.managed import LocalProcess, Task
from dpsr_apex.supervise.template import Template
from tests.system.runs import PATIENCE, Process, eventually

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs Linux")

LIGHT = "import sys; from dpsr_apex.cli import template; template.LOADED = (); sys.exit(template.main())"


@pytest.fixture
def light(monkeypatch: pytest.MonkeyPatch) -> Iterator[Template]:
    """A template that has loaded nothing."""
    monkeypatch.setattr(template, "COMMAND", (sys.executable, "-c", LIGHT))
    found = Template()
    found.load()
    yield found
    found.close()
    ctypes.CDLL(None).prctl(template.SET_CHILD_SUBREAPER, 0, 0, 0, 0)


Start = Callable[..., LocalProcess]


@pytest.fixture
def start(light: Template, tmp_path: Path) -> Iterator[Start]:
    """Starts `dpsr-apex` with the given arguments, by default a process that waits for the head of a run."""
    started: list[LocalProcess] = []

    def begin(*arguments: str) -> LocalProcess:
        words = list(arguments) or ["actor", "--find", str(tmp_path)]
        started.append(LocalProcess(Task("lonely", "actor", words, tmp_path / "log"), light.start))
        return started[-1]

    yield begin
    for process in started:
        process.kill()
        process.poll()


def pid_of(process: LocalProcess) -> int:
    """Wait until it was forked; return its process id."""

    def forked() -> int | None:
        assert process.poll() is None
        return getattr(process._process, "_pid", None) or getattr(process._process, "pid", None)

    return eventually(forked)


def ended(process: LocalProcess) -> Exit:
    exit = process.wait(PATIENCE)
    assert exit is not None
    return exit


def test_a_forked_process_returns_how_it_ended_and_its_output(start: Start) -> None:
    exit = ended(start("nonsense"))
    assert (exit.code, exit.cause) == (2, "ended with exit code 2")
    assert "invalid choice: 'nonsense'" in exit.output


def test_it_is_a_child_of_this_process_with_its_own_session_and_command_line(start: Start, tmp_path: Path) -> None:
    pid = pid_of(start())
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    assert (int(fields[1]), int(fields[3])) == (os.getpid(), pid)
    words = Path(f"/proc/{pid}/cmdline").read_text().rstrip("\0").split("\0")
    assert words == [sys.executable, "-P", "-m", "dpsr_apex.cli", "actor", "--find", str(tmp_path), "--lifeline"]
    assert Process(pid, 0, [*words, "--name", "x"]).name == "x"


def test_signals_reach_that_process(start: Start) -> None:
    first, second = start(), start()
    pid_of(first)
    first.signal(signal.SIGTERM)
    assert ended(first).code in (143, -signal.SIGTERM)
    assert second.poll() is None
    second.kill()
    assert ended(second).cause == "was killed by SIGKILL"


def test_a_process_ends_when_its_standard_input_is_closed(start: Start) -> None:
    process = start()
    pid_of(process)
    assert process._process.stdin is not None
    process._process.stdin.close()
    assert ended(process).code in (143, -signal.SIGTERM)


def test_a_signal_before_the_fork_is_delivered_after_it(light: Template, start: Start) -> None:
    assert light._process is not None
    light._process.send_signal(signal.SIGSTOP)
    process = start()
    process.signal(signal.SIGTERM)
    assert process.poll() is None
    light._process.send_signal(signal.SIGCONT)
    assert ended(process).code in (143, -signal.SIGTERM)


def test_a_process_that_is_killed_before_the_fork_never_runs(light: Template, start: Start) -> None:
    assert light._process is not None
    light._process.send_signal(signal.SIGSTOP)
    process = start()
    process.kill()
    assert ended(process).code == os.EX_OSERR


def test_processes_outlive_their_template_and_later_ones_are_started_without_it(light: Template, start: Start) -> None:
    assert light._process is not None
    before = start()
    pid_of(before)
    light._process.kill()
    light._process.wait()
    after = start()
    pid_of(after)
    assert before.poll() is None
    for process in (before, after):
        process.kill()
        assert ended(process).code == -signal.SIGKILL


def test_without_a_template_a_process_is_started_plainly(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(template, "_adopt_orphans", lambda: False)
    unsupported = Template()
    unsupported.load()
    assert ended(LocalProcess(Task("odd", "actor", ["nonsense"], tmp_path / "log"), unsupported.start)).code == 2
    unsupported.close()
