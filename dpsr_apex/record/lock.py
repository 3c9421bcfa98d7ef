"""The two locks of a run directory, by which one process at a time runs a run, and one at a time serves its replay.

`lock` is held by the process that a user has started, from its first check to its end: a supervisor, a single-process
run, or a replay of its own. Nothing in a run directory is changed without it. `replay.lock` is held by the replay
process. A replay outlives a supervisor that is killed, until it has saved, so whoever takes `lock` waits for it; and
only the holder of `lock` starts a replay. This needs no inherited file, so it is the same rule on a cluster.

The system releases the locks of a process that ends.
"""

from __future__ import annotations

import fcntl
import os
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple, Self

from dpsr_apex import timeouts
from dpsr_apex.files import PRIVATE
from dpsr_apex.formatting import pasteable
from dpsr_apex.record.run_directory import LOCK, REPLAY_LOCK, RunDirectory, RunDirectoryError

_RUNNING, _ENDING = "running", "ending"
_LINE = 320  # bytes of the line in a lock file; more than the longest host name


class RunLock:
    """The right to run what is in a run directory; obtained from `running_alone`."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        _sign(descriptor, _RUNNING)

    def note_ending(self) -> None:
        """Let other processes wait for the lock from now on, instead of giving up at once."""
        _sign(self._descriptor, _ENDING)


@contextmanager
def running_alone(run: RunDirectory, seconds: float = timeouts.LOCK_RELEASE) -> Iterator[RunLock]:
    """Hold the right to run this run inside the block.

    Raise RunDirectoryError at once if a process of this machine has it and is not ending, or if another one, or the
    replay of an earlier one, has it for longer than `seconds`.
    """
    descriptor = _open(run, LOCK)
    try:
        _wait_for_lock(run, descriptor, seconds, at_once=True)
        lock = RunLock(descriptor)
        with serving_alone(run, seconds):
            pass
        yield lock
    finally:
        os.close(descriptor)


@contextmanager
def serving_alone(run: RunDirectory, seconds: float = timeouts.LOCK_RELEASE) -> Iterator[None]:
    """Hold the lock of the replay process inside the block; raise RunDirectoryError if another one holds it too long.

    This process, or the one that started it, must hold the right to run the run.
    """
    descriptor = _open(run, REPLAY_LOCK)
    try:
        _wait_for_lock(run, descriptor, seconds, at_once=False)
        _sign(descriptor, _RUNNING)
        yield
    finally:
        os.close(descriptor)


def is_served(run: RunDirectory) -> bool:
    """Whether a process runs the run or serves its replay now; False also on a file system without locks."""
    return _is_locked(run.path / LOCK) or _is_locked(run.path / REPLAY_LOCK)


class _Holder(NamedTuple):
    """The process that holds a lock, as it has written itself."""

    pid: int
    host: str
    state: str

    @classmethod
    def of(cls, descriptor: int) -> Self | None:
        """Return the holder; None if it has not written itself yet, or could not."""
        words = os.pread(descriptor, _LINE, 0).decode(errors="replace").split()
        return cls(int(words[0]), words[1], words[2]) if len(words) == 3 and words[0].isdecimal() else None

    @property
    def runs_here(self) -> bool:
        """Whether it is a process of this machine that is running and not about to end."""
        if self.host != socket.gethostname() or self.state != _RUNNING:
            return False
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        except OSError:  # a process of another user
            return True
        return True

    def __str__(self) -> str:
        where = "" if self.host == socket.gethostname() else f" on {self.host}"
        return f"process {self.pid}{where}"


def _open(run: RunDirectory, name: str) -> int:
    try:
        descriptor = os.open(run.path / name, os.O_RDWR | os.O_CREAT, PRIVATE)
    except OSError as error:
        reason = error.strerror or error
        raise RunDirectoryError(
            f"{run.path} cannot be written ({name}: {reason}). Make it writable, or copy the run"
        ) from error
    with suppress(OSError):
        os.fchmod(descriptor, PRIVATE)  # whoever can read a file can lock it; earlier versions let everyone read it
    return descriptor


def _sign(descriptor: int, state: str) -> None:
    """Write who holds the lock, on a full disk too if there is a line already; without it, others wait longer."""
    line = f"{os.getpid()} {socket.gethostname()} {state}"
    with suppress(OSError):
        os.pwrite(descriptor, line.ljust(_LINE - 1).encode()[: _LINE - 1] + b"\n", 0)


def _is_locked(path: Path) -> bool:
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        return False
    try:
        # Shared, so that two simultaneous observers do not mistake each other for the holder.
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return False


def _wait_for_lock(run: RunDirectory, descriptor: int, seconds: float, at_once: bool) -> None:
    """Take the lock; raise RunDirectoryError after `seconds`, or `at_once` if its holder is running here."""
    began, reported = time.monotonic(), False
    while not _has_locked(descriptor):
        holder, waited = _Holder.of(descriptor), time.monotonic() - began
        if waited > seconds or (at_once and holder is not None and holder.runs_here):
            watch = pasteable("watch", run.path)
            raise RunDirectoryError(
                f"{run.path} is running already, in {holder or 'another process'}. Stop it first, or watch it: {watch}"
            )
        if waited > timeouts.LOCK_MESSAGE and not reported:
            sys.stderr.write(f"dpsr-apex: {run.path} is still being served; waiting up to {seconds:.0f} s\n")
            reported = True
        time.sleep(timeouts.LOCK_POLL)


def _has_locked(descriptor: int) -> bool:
    """Try to take the lock; True also on a file system without locks."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True
