"""Watching real runs in a terminal and without one; the watcher never affects the run."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dpsr_apex.cli import main
from dpsr_apex.files import read_rows
from dpsr_apex.record.ending import Ending
from dpsr_apex.record.lock import is_served, running_alone
from dpsr_apex.record.run_directory import RunDirectory
from tests.system.runs import COMMAND, PATIENCE, SMALL, Run, eventually, last_saved, running, training
from tests.system.terminals import in_terminal


class Plain:
    """`dpsr-apex watch` without a terminal."""

    def __init__(self, path: Path) -> None:
        self._out = path.with_name("watched")
        with self._out.open("wb") as out:
            self.process = subprocess.Popen([COMMAND, "watch", path], stdout=out, stderr=subprocess.STDOUT)

    @property
    def lines(self) -> list[str]:
        """All lines that it has printed."""
        return self._out.read_text().splitlines()

    def await_line(self, part: str, since: int = 0) -> str:
        """Wait for a line that contains this text, after skipping `since` lines, and return it."""
        return eventually(lambda: next((line for line in self.lines[since:] if part in line), None))


@contextmanager
def watching(path: Path) -> Iterator[Plain]:
    watcher = Plain(path)
    try:
        yield watcher
    finally:
        watcher.process.kill()
        watcher.process.wait()


def clocks(lines: list[str]) -> list[int]:
    """Return the clock of every line that is a row."""
    return [int(line[2 : line.index("/")].replace(",", "")) for line in lines if line.startswith("t ")]


@contextmanager
def solo(path: Path, steps: int) -> Iterator[Run]:
    options = ["--base=paper", "--solo", "--steps", str(steps), "--run-dir", str(path)]
    with running(path, "train", "cartpole", *options, *(f"--set={setting}" for setting in SMALL)) as run:
        yield run


def test_a_run_of_one_process_is_watched_to_its_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "run"
    with solo(path, steps=500) as run:
        run.hold()
        run.eventually(lambda: is_served(run.directory))
        with watching(path) as plain, in_terminal(COMMAND, "watch", path) as terminal:
            plain.await_line(str(path))  # it has found the run, which has no row yet
            assert clocks(plain.lines) == []
            run.release()
            run.eventually(lambda: read_rows(run.directory.metrics))
            run.hold()
            terminal.await_text("CartPole", "return")
            terminal.press_control_c()
            assert terminal.wait() == 130
            assert run.process.poll() is None
            run.release()
            assert run.wait() == 0
            assert plain.process.wait(PATIENCE) == 0
            assert clocks(plain.lines) == [100 * i for i in range(1, 6)]
            assert_names(plain.lines[-1], "finished", "t = 500")
    assert run.ending == Ending("finished", 0, 500)
    assert main(["watch", str(path)]) == 0
    row, end = capsys.readouterr().out.splitlines()
    assert clocks([row]) == [500]
    assert_names(end, "finished", "t = 500")


def assert_names(line: str, *parts: str) -> None:
    """Assert that a line for the user names all of these."""
    assert [part for part in parts if part not in line] == [], line


@pytest.mark.slow
def test_a_multi_process_run_is_watched_across_a_restart_of_its_replay(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "run"
    with training(path, steps=100_000) as run:
        run.await_t(600)
        with watching(path) as plain, in_terminal(COMMAND, "watch", path) as terminal:
            plain.await_line("t ")
            terminal.await_text("● actor-0", "rate limiter", "4 wanted", "recycling")

            plain.process.send_signal(signal.SIGSTOP)
            t = run.stats().t
            run.await_t(t + 200)
            plain.process.send_signal(signal.SIGCONT)

            era, replay = run.stats().era, run.await_child("replay")
            os.kill(replay.pid, signal.SIGKILL)
            run.await_stats(lambda stats: stats.era != era and stats.actors)
            plain.await_line("t ", since=len(plain.lines))  # a row of the new process
            terminal.await_text("● actor-0")

            terminal.press_control_c()
            assert terminal.wait() == 130
            assert run.stats().t > 0
            assert run.end(signal.SIGINT) == 130
            assert plain.process.wait(PATIENCE) == 0
            assert run.ending == Ending("stopped", 130, last_saved(run.directory))
            stopped = ("stopped", f"t = {last_saved(run.directory):,}", f" resume {path}")
            assert_names(plain.lines[-1], *stopped)
    assert main(["watch", str(path)]) == 0
    assert_names(capsys.readouterr().out.splitlines()[-1], *stopped)
    with in_terminal(COMMAND, "watch", path) as terminal:
        assert terminal.wait() == 0
        assert_names(terminal.text, "return", *stopped[:2])


def test_a_folder_that_is_not_a_run_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["watch", str(tmp_path / "nothing")]) == 2
    assert str(tmp_path / "nothing") in capsys.readouterr().err


def test_the_lock_shows_whether_a_run_is_served_and_checking_it_does_not_take_it(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path / "run")
    assert not is_served(run)
    with running_alone(run):
        assert is_served(run)
        assert is_served(run)
    assert not is_served(run)
    with running_alone(run):
        assert is_served(run)
