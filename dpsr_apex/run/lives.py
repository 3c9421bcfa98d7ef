"""One life of a process of a run: started, ended, and what it said last. On this machine; engines have their own."""

from __future__ import annotations

import contextlib
import logging
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple, Protocol

log = logging.getLogger(__name__)


class Task(NamedTuple):
    """What a process is to do."""

    name: str
    role: str
    words: list[str]  # of its command line, after `dpsr-apex`
    log: Path  # takes all that it prints


class Ended(NamedTuple):
    """How a life ended."""

    code: int  # its exit code; the number of a signal below 0
    cause: str
    seconds: float  # that it lasted
    is_lost: bool = False  # with the place where it was: not of itself


class Life(Protocol):
    """A process from its start to its end, wherever it is."""

    @property
    def has_place(self) -> bool:
        """Whether it could be started at all; False while there is no room for it."""

    def poll(self) -> Ended | None:
        """How it ended; None while it lives or waits for a place."""

    def signal(self, number: signal.Signals) -> None:
        """Send a signal, if it is alive."""

    def kill(self) -> None:
        """End it at once, if it is alive, and give its place away."""

    def last_words(self) -> str:
        """Its traceback, or its last lines."""


class LifeHere:
    """A process on this machine."""

    has_place = True

    def __init__(self, task: Task) -> None:
        self._task = task
        self._began = time.monotonic()
        self._ended: Ended | None = None
        with task.log.open("ab") as output:
            self._log_start = output.tell()
            # The pipe tells it when this process is gone.
            self._process = subprocess.Popen(
                [sys.executable, "-m", "dpsr_apex.cli", *task.words, "--lifeline"],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C is for the supervisor, which then ends the run in order
            )

    def poll(self) -> Ended | None:
        """How it ended; None while it lives."""
        code = self._process.poll()
        if code is not None and self._ended is None:
            self._ended = Ended(code, cause_of(code), time.monotonic() - self._began)
            assert self._process.stdin is not None
            self._process.stdin.close()
        return self._ended

    def wait(self, seconds: float) -> Ended | None:
        """The same, after so many seconds at most."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)
        return self.poll()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal, if it is alive."""
        if self._process.poll() is None:
            self._process.send_signal(number)

    def kill(self) -> None:
        """End it at once, if it is alive."""
        if self._process.poll() is None:
            log.warning("%s did not leave and is killed", self._task.name)
            self._process.kill()
            self._process.wait()

    def last_words(self) -> str:
        """Its traceback, or its last lines."""
        with contextlib.suppress(OSError), self._task.log.open("rb") as file:
            file.seek(self._log_start)
            lines = file.read().decode(errors="replace").splitlines()
            begins = [i for i, line in enumerate(lines) if line.startswith("Traceback")]
            return "\n".join(f"    {line}" for line in lines[begins[-1] if begins else -5 :])
        return ""


def cause_of(code: int) -> str:
    """What a process with this exit code died of, in words."""
    return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
