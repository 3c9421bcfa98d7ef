"""Setup of a process of a run: ending with its supervisor, and the limit of open files."""

from __future__ import annotations

import os
import resource
import signal
import sys
import threading
import time

MAX_OPEN_FILES = 65_536


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
