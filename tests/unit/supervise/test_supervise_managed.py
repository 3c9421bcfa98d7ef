from __future__ import annotations

import signal
import subprocess
from pathlib import Path
from typing import IO

import pytest

from dpsr_apex import logs
from dpsr_apex.supervise.managed import LocalProcess, Task

PATIENCE = 60.0


def test_a_local_process_returns_how_it_ended_and_its_last_output(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("Traceback of an earlier process\n")
    process = LocalProcess(Task("odd", "actor", ["nonsense"], tmp_path / "log"))
    exit = process.wait(PATIENCE)
    assert exit is not None
    assert (exit.code, exit.cause, exit.is_lost) == (2, "ended with exit code 2", False)
    assert "invalid choice: 'nonsense'" in exit.output
    assert "earlier process" not in exit.output
    assert process.poll() is exit
    process.signal(signal.SIGTERM)
    process.kill()
    process.release()


def test_the_last_output_begins_with_the_last_traceback(tmp_path: Path) -> None:
    process = LocalProcess(Task("lonely", "actor", ["actor", "--find", str(tmp_path)], tmp_path / "log"))
    with (tmp_path / "log").open("a") as log:
        log.write(
            "Traceback\n" + "  line\n" * 9 + "ValueError: the first\nTraceback\n" + "  line\n" * 9 + "KeyError: 1\n"
        )
    process.kill()
    exit = process.poll()
    assert exit is not None
    assert exit.output.splitlines() == ["    Traceback", *["      line"] * 9, "    KeyError: 1"]


def test_a_local_process_can_be_killed(tmp_path: Path) -> None:
    process = LocalProcess(Task("lonely", "actor", ["actor", "--find", str(tmp_path)], tmp_path / "log"))
    assert process.poll() is None
    assert process.is_placed
    process.kill()
    exit = process.poll()
    assert exit is not None
    assert (exit.code, exit.cause) == (-signal.SIGKILL, "was killed by SIGKILL")


class Stuck:
    """A process that waits for a disk: it does not even end when it is killed."""

    stdin: IO[bytes] | None = None

    def poll(self) -> int | None:
        return None

    def send_signal(self, number: int) -> None:
        pass

    def kill(self) -> None:
        pass

    def wait(self, timeout: float | None = None) -> int:
        assert timeout is not None, "nobody waits forever"
        raise subprocess.TimeoutExpired("stuck", timeout)


def test_nobody_waits_for_a_killed_process_that_does_not_end(tmp_path: Path) -> None:
    process = LocalProcess(Task("stuck", "actor", [], tmp_path / "log"), lambda _arguments, _output: Stuck())
    process.kill()
    assert process.poll() is None


def test_the_last_output_is_found_in_a_log_that_was_rotated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "log").write_text("x" * 5_000)
    process = LocalProcess(Task("lonely", "actor", ["actor", "--find", str(tmp_path)], tmp_path / "log"))
    monkeypatch.setattr(logs, "LOG_BYTES", 5_000)
    assert process.poll() is None
    assert (tmp_path / "log").stat().st_size < 5_000
    with (tmp_path / "log").open("a") as log:
        log.write("the last line\n")
    process.kill()
    exit = process.poll()
    assert exit is not None
    assert exit.output.endswith("the last line")
