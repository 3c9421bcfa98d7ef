"""One process at a time serves a run directory: it holds a lock there, which ends with the process, however it ends."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from dpsr_apex.run.run_directory import RunDirectory, RunDirectoryError

FORMER_SECONDS = 15.0  # for a former life, whose supervisor was killed, to save and end
LOOK_SECONDS = 0.1


@contextmanager
def serving_alone(run: RunDirectory, former_seconds: float = FORMER_SECONDS) -> Iterator[None]:
    """While inside, nobody else serves the run; RunDirectoryError when somebody does and goes on for so long."""
    descriptor = os.open(run.path / "lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        _wait_for_lock(run, descriptor, former_seconds, lambda: False)
        os.truncate(descriptor, 0)
        os.write(descriptor, str(os.getpid()).encode())
        yield
    finally:
        os.close(descriptor)


def wait_until_free(run: RunDirectory, given_up: Callable[[], bool] = lambda: False) -> bool:
    """Whether nobody serves the run, now or soon; False when `given_up` said so first.

    RunDirectoryError when somebody does and goes on.
    """
    try:
        descriptor = os.open(run.path / "lock", os.O_RDWR)
    except FileNotFoundError:
        return True
    try:
        return _wait_for_lock(run, descriptor, FORMER_SECONDS, given_up)
    finally:
        os.close(descriptor)


def is_served(run: RunDirectory) -> bool:
    """Whether a process serves the run at this moment; False also where the file system knows no locks."""
    try:
        descriptor = os.open(run.path / "lock", os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        # Shared, so that two who look at once do not take each other for the server, which would try again anyway.
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return False


def _wait_for_lock(run: RunDirectory, descriptor: int, seconds: float, given_up: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + seconds
    while not _has_locked(descriptor):
        if given_up():
            return False
        if time.monotonic() > deadline:
            pid = os.pread(descriptor, 32, 0).decode()
            raise RunDirectoryError(f"{run.path} is running already: process {pid} serves it. End that run first")
        time.sleep(LOOK_SECONDS)
    return True


def _has_locked(descriptor: int) -> bool:
    """Also where the file system knows no locks."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True
