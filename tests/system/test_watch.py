"""Watching real runs from outside, in a terminal and without one; what the watcher does never matters to the run."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dpsr_apex.cli import main
from dpsr_apex.processes.lock import is_served, serving_alone
from dpsr_apex.run.metrics import read_metrics
from dpsr_apex.run.run_directory import RunDirectory
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
        """All that it has said."""
        return self._out.read_text().splitlines()

    def await_line(self, part: str, since: int = 0) -> str:
        """The first line with this in it, after so many."""
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
    """The clock of every line that is a row."""
    return [int(line[2 : line.index("/")].replace(",", "")) for line in lines if line.startswith("t ")]


@contextmanager
def solo(path: Path, steps: int) -> Iterator[Run]:
    options = ["--solo", "--steps", str(steps), "--run-dir", str(path)]
    with running(path, "train", "cartpole", *options, *(f"--set={setting}" for setting in SMALL)) as run:
        yield run


def test_a_run_of_one_process_is_watched_to_its_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "run"
    with solo(path, steps=500) as run:
        run.hold()
        run.eventually(lambda: is_served(run.directory))
        with watching(path) as plain, in_terminal(COMMAND, "watch", path) as terminal:
            assert "has logged nothing yet" in plain.await_line("running")
            run.release()
            run.eventually(lambda: read_metrics(run.directory.metrics))
            run.hold()
            terminal.await_text("CartPole", "return", "this process", "One process: nobody waits")
            terminal.press_control_c()
            assert terminal.wait() == 130
            assert run.process.poll() is None
            run.release()
            assert run.wait() == 0
            assert plain.process.wait(PATIENCE) == 0
            assert clocks(plain.lines) == [100 * i for i in range(1, 6)]
            assert plain.lines[-1] == "The run has ended: finished at t = 500"
    assert main(["watch", str(path)]) == 0
    row, end = capsys.readouterr().out.splitlines()
    assert clocks([row]) == [500]
    assert end == "Not running: finished at t = 500"


def test_a_run_of_many_processes_is_watched_over_all_its_lives(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "run"
    with training(path, steps=100_000) as run:
        run.await_t(600)
        with watching(path) as plain, in_terminal(COMMAND, "watch", path) as terminal:
            plain.await_line("t ")
            terminal.await_text("● actor-0", "rate limiter", "4 wanted", "recycling")

            plain.process.send_signal(signal.SIGSTOP)
            t = run.stats()["t"]
            run.await_t(t + 200)
            plain.process.send_signal(signal.SIGCONT)

            said = len(plain.lines)
            replay = run.await_child("replay")
            os.kill(replay.pid, signal.SIGKILL)
            run.await_another(replay)
            plain.await_line("learner joined", since=said)  # that life's own words
            terminal.await_text("● actor-0")

            terminal.press_control_c()
            assert terminal.wait() == 130
            assert run.stats()["t"] > 0
            assert run.end(signal.SIGINT) == 130
            assert plain.process.wait(PATIENCE) == 0
            stopped = f"stopped at t = {last_saved(run.directory):,}. To go on: dpsr-apex resume {path}"
            assert plain.lines[-1] == f"The run has ended: {stopped}"
    assert main(["watch", str(path)]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == f"Not running: {stopped}"
    with in_terminal(COMMAND, "watch", path) as terminal:
        assert terminal.wait() == 0
        assert "return" in terminal.text
        assert "Not running: stopped" in terminal.text


def test_what_is_no_run_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["watch", str(tmp_path / "nothing")]) == 2
    assert "is not a run directory" in capsys.readouterr().err


def test_a_lock_tells_whether_a_run_is_served_and_looking_takes_nothing(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path / "run")
    assert not is_served(run)
    with serving_alone(run):
        assert is_served(run)
        assert is_served(run)
    assert not is_served(run)
    with serving_alone(run):
        assert is_served(run)
