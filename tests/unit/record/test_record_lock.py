"""The locks of a run directory: one process at a time, from its first check to its end."""

from __future__ import annotations

import os
import signal
import socket
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dpsr_apex import timeouts
from dpsr_apex.record.lock import RunLock, is_served, running_alone, serving_alone
from dpsr_apex.record.run_directory import LOCK, REPLAY_LOCK, RunDirectory, RunDirectoryError

LONG = 1_000.0  # seconds; no test waits for that


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    return RunDirectory.create(tmp_path / "run")


@contextmanager
def another_process(work: Callable[[], object]) -> Iterator[int]:
    """Fork a process that does this and then waits until it is killed; yield its process id."""
    ready, done = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            work()
            os.write(done, b"1")
            signal.pause()
        finally:
            os._exit(1)
    os.close(done)
    assert os.read(ready, 1) == b"1"
    os.close(ready)
    try:
        yield child
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_a_second_process_is_refused_at_once_and_named_the_first(run: RunDirectory) -> None:
    with another_process(lambda: enter(run)) as holder:
        with pytest.raises(RunDirectoryError, match=f"{run.path} is running already, in process {holder}"):
            enter(run)
        assert is_served(run)
    enter(run)


def enter(run: RunDirectory) -> RunLock:
    """Take the lock and keep it until this process ends, or until the lock is discarded."""
    context = running_alone(run, LONG)
    KEPT.append(context)
    return context.__enter__()


KEPT: list[object] = []


@pytest.fixture(autouse=True)
def _discard() -> Iterator[None]:
    yield
    KEPT.clear()


def test_a_process_that_is_ending_is_awaited(run: RunDirectory) -> None:
    entered = threading.Event()

    def wait() -> None:
        with running_alone(run, LONG):
            entered.set()

    with running_alone(run) as lock:
        lock.note_ending()
        waiting = threading.Thread(target=wait)
        waiting.start()
        assert is_served(run)
        assert not entered.is_set()
    waiting.join()
    assert entered.is_set()


def test_a_process_of_another_machine_is_awaited_and_named(run: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "far")
    with running_alone(run):
        monkeypatch.setattr(socket, "gethostname", lambda: "here")
        monkeypatch.setattr(timeouts, "LOCK_POLL", 0.001)
        with pytest.raises(RunDirectoryError, match=f"process {os.getpid()} on far"), running_alone(run, 0.01):
            pass


def test_the_replay_of_a_run_whose_supervisor_was_killed_is_awaited(run: RunDirectory) -> None:
    entered = threading.Event()

    def wait() -> None:
        with running_alone(run, LONG):
            entered.set()

    with serving_alone(run):
        with pytest.raises(RunDirectoryError, match="is running already"), running_alone(run, 0.0):
            pass
        waiting = threading.Thread(target=wait)
        waiting.start()
        assert not entered.is_set()
    waiting.join()
    assert entered.is_set()


def test_the_holder_of_the_run_starts_one_replay_after_another(run: RunDirectory) -> None:
    with running_alone(run):
        for _ in range(2):
            with serving_alone(run, 0.0):
                assert is_served(run)
                with pytest.raises(RunDirectoryError), serving_alone(run, 0.0):
                    pass


def test_asking_whether_a_run_is_served_does_not_take_its_lock(run: RunDirectory) -> None:
    assert not is_served(run)
    for context in (running_alone, serving_alone):
        with context(run):
            assert is_served(run)
            assert is_served(run)
        assert not is_served(run)


@pytest.mark.parametrize("had_locks", [False, True])
def test_the_locks_are_private_and_do_not_make_a_folder_a_run(run: RunDirectory, had_locks: bool) -> None:
    if had_locks:  # of an earlier version, which everyone could read
        for name in (LOCK, REPLAY_LOCK):
            (run.path / name).touch()
            (run.path / name).chmod(0o644)
    with running_alone(run), serving_alone(run):
        assert RunDirectory.is_free(run.path)
        modes = {stat.S_IMODE(path.stat().st_mode) for path in run.path.glob("*lock")}
    assert modes == {0o600}


def test_a_folder_that_cannot_be_written_is_refused_with_its_name(run: RunDirectory) -> None:
    (run.path / "lock").mkdir()
    with pytest.raises(RunDirectoryError, match=f"{run.path} cannot be written"), running_alone(run):
        pass
