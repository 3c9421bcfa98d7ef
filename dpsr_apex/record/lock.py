"""The lock of a run directory: only one process at a time serves a run. The lock is released when the process ends."""

from __future__ import annotations

import fcntl
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from dpsr_apex import timeouts
from dpsr_apex.record.run_directory import RunDirectory, RunDirectoryError


@contextmanager
def serving_alone(run: RunDirectory, former_seconds: float = timeouts.LOCK_RELEASE) -> Iterator[None]:
    """Hold the lock inside the block; raise RunDirectoryError if another process holds it for `former_seconds`."""
    descriptor = os.open(run.path / "lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        _wait_for_lock(run, descriptor, former_seconds, lambda: False)
        os.truncate(descriptor, 0)
        os.write(descriptor, str(os.getpid()).encode())
        yield
    finally:
        os.close(descriptor)


def wait_until_free(
    run: RunDirectory, seconds: float = timeouts.LOCK_RELEASE, given_up: Callable[[], bool] = lambda: False
) -> bool:
    """Wait until no process serves the run; return False if `given_up` became True first.

    Raise RunDirectoryError if one still does after `seconds`.
    """
    try:
        descriptor = os.open(run.path / "lock", os.O_RDWR)
    except FileNotFoundError:
        return True
    try:
        return _wait_for_lock(run, descriptor, seconds, given_up)
    finally:
        os.close(descriptor)


def is_served(run: RunDirectory) -> bool:
    """Whether a process serves the run now; False also on a file system without locks."""
    try:
        descriptor = os.open(run.path / "lock", os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        # Shared, so that two simultaneous observers do not mistake each other for the server.
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return False


def _wait_for_lock(run: RunDirectory, descriptor: int, seconds: float, given_up: Callable[[], bool]) -> bool:
    began, reported = time.monotonic(), False
    while not _has_locked(descriptor):
        if given_up():
            return False
        waited = time.monotonic() - began
        if waited > timeouts.LOCK_MESSAGE and not reported:
            sys.stderr.write(f"dpsr-apex: {run.path} is still being served; waiting up to {seconds:.0f} s\n")
            reported = True
        if waited > seconds:
            pid = os.pread(descriptor, 32, 0).decode()
            raise RunDirectoryError(f"{run.path} is running already, served by process {pid}. Stop that run first")
        time.sleep(timeouts.LOCK_POLL)
    return True


def _has_locked(descriptor: int) -> bool:
    """Try to take the lock; True also on a file system without locks."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True
