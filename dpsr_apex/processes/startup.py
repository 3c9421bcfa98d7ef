"""Setup of a process of a run: ending with its supervisor, the limit of open files, and space on the disk."""

from __future__ import annotations

import errno
import logging
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from dpsr_apex import timeouts
from dpsr_apex.files import UNFINISHED
from dpsr_apex.record.run_directory import RunDirectory

MAX_OPEN_FILES = 65_536
LEAST_SPACE = 2**18  # bytes that a replay process may write before it serves, besides rows that it writes again

log = logging.getLogger(__name__)


def end_with_supervisor(seconds: float) -> None:
    """End this process when its standard input is closed; its supervisor keeps it open as long as it runs.

    The process receives SIGTERM, so that it can save and leave, and is killed if it has not ended after `seconds`.
    """
    threading.Thread(target=_wait_for_supervisor, args=(seconds,), name="lifeline", daemon=True).start()


def _wait_for_supervisor(seconds: float) -> None:
    while os.read(sys.stdin.fileno(), 1024):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(seconds)
    os._exit(1)


def allow_many_connections() -> None:
    """Raise the limit of open files for a server, because each connection uses one.

    At the limit the process could no longer open its own files.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_OPEN_FILES if hard == resource.RLIM_INFINITY else min(MAX_OPEN_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def await_space(run: RunDirectory, is_interrupted: Callable[[], bool]) -> None:
    """Wait until the disk has space for what a replay process writes before it serves, or until interrupted.

    Without it, each attempt to start would fail, and use up the restarts of the process.
    """
    rows = [path.stat().st_size for path in (run.metrics, run.evaluations) if path.exists()]
    has_logged = False
    while not is_interrupted() and (problem := _lacks_space(run.path, LEAST_SPACE + sum(rows))) is not None:
        if not has_logged:
            log.warning("%s cannot be written (%s); waiting until there is space", run.path, problem.strerror)
            has_logged = True
        time.sleep(timeouts.SPACE_POLL)


def _lacks_space(folder: Path, size: int) -> OSError | None:
    """Return the error of a full disk, if a file of this size cannot be written; other errors are raised."""
    path = folder / f"{UNFINISHED}space"
    try:
        with path.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, size)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        return error
    finally:
        path.unlink(missing_ok=True)
    return None
