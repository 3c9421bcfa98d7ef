"""The pipe that ties a process to the supervisor that started it: when the supervisor is gone, the process ends too."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time


def hold_lifeline(seconds: float) -> None:
    """End this process when its standard input does, which a supervisor holds open for as long as it lives.

    It is asked to save and leave, and killed if it has not after so many seconds.
    """
    threading.Thread(target=_watch, args=(seconds,), name="lifeline", daemon=True).start()


def _watch(seconds: float) -> None:
    while os.read(sys.stdin.fileno(), 1024):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(seconds)
    os._exit(1)
