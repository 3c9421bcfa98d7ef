"""One started process of a run. The implementation here is for this machine; a cluster engine has its own."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, NamedTuple, Protocol

from dpsr_apex import timeouts
from dpsr_apex.logs import rotate
from dpsr_apex.protocol.restarts import Exit

LAST_LINES = 5  # of the output of a process that ended without a traceback

log = logging.getLogger(__name__)


class Task(NamedTuple):
    """What a process should run."""

    name: str
    role: str
    arguments: list[str]  # of its command line, after `dpsr-apex`
    log: Path  # receives its output


class ManagedProcess(Protocol):
    """A process that was started once, on any machine."""

    @property
    def is_placed(self) -> bool:
        """Whether it has its resources; False while it waits for them."""

    def poll(self) -> Exit | None:
        """Return how it ended; None while it runs or waits for resources."""

    def signal(self, number: signal.Signals) -> None:
        """Send a signal, if it runs; a process that waits for resources ends instead."""

    def kill(self) -> None:
        """End it at once if it runs, and release its resources; `poll` then returns how it ended."""

    def release(self) -> None:
        """Release the resources reserved for the next process of its name; this one has ended."""


class Child(Protocol):
    """A child of this process, as `subprocess.Popen`."""

    stdin: IO[bytes] | None

    def poll(self) -> int | None:
        """Return the exit code, or minus the signal that ended it; None while it runs."""

    def send_signal(self, number: int) -> None:
        """Send a signal."""

    def kill(self) -> None:
        """Send SIGKILL."""

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit code; raise TimeoutExpired if it has not ended after `timeout` seconds."""


# Without the current directory in the path: a file there could be imported instead of a standard module.
PYTHON = (sys.executable, "-P")

Starter = Callable[[Sequence[str], IO[bytes]], Child]
"""Starts `dpsr-apex` with these arguments; the file receives what it prints."""


def start_plainly(arguments: Sequence[str], output: IO[bytes]) -> Child:
    """Start `dpsr-apex` with these arguments; `output` receives what it prints."""
    return subprocess.Popen(
        [*PYTHON, "-m", "dpsr_apex.cli", *arguments],
        stdin=subprocess.PIPE,
        stdout=output,
        stderr=subprocess.STDOUT,
        start_new_session=True,  # Ctrl-C reaches only the supervisor, which then stops the run cleanly
    )


class LocalProcess:
    """A process on this machine."""

    is_placed = True

    def __init__(self, task: Task, start: Starter = start_plainly) -> None:
        self._task = task
        self._started_at = time.monotonic()
        self._exit: Exit | None = None
        with task.log.open("ab") as output:
            self._log_start = output.tell()
            # The child ends when it reads the end of its standard input, which is closed when this process ends.
            self._process = start([*task.arguments, "--lifeline"], output)

    def poll(self) -> Exit | None:
        """Return how it ended; None while it runs. Its log is rotated when it is full, so this must be called often."""
        code = self._process.poll()
        if code is None:
            rotate(self._task.log)
        elif self._exit is None:
            seconds = time.monotonic() - self._started_at
            self._exit = Exit(code, cause_of(code), seconds, output=self._last_output())
            assert self._process.stdin is not None
            self._process.stdin.close()
        return self._exit

    def wait(self, seconds: float) -> Exit | None:
        """Wait for its end; return how it ended, None if it is still running after `seconds`."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)
        return self.poll()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal, if it runs."""
        if self._process.poll() is None:
            self._process.send_signal(number)

    def kill(self) -> None:
        """End it at once, if it runs; a process that waits for a disk ends later, and the others must not wait too."""
        if self._process.poll() is None:
            log.warning("%s did not stop in time and is killed", self._task.name)
            self._process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeouts.KILLED)

    def release(self) -> None:
        """Do nothing: on this machine, no resources are reserved for a process."""

    def _last_output(self) -> str:
        """Return its traceback or its last lines, indented."""
        with contextlib.suppress(OSError), self._task.log.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(self._log_start if self._log_start <= size else 0)  # 0 if the log was rotated since
            lines = file.read().decode(errors="replace").splitlines()
            tracebacks = [i for i, line in enumerate(lines) if line.startswith("Traceback")]
            return "\n".join(f"    {line}" for line in lines[tracebacks[-1] if tracebacks else -LAST_LINES :])
        return ""


class Unstarted:
    """A process that could not be started, for example because its log cannot be written: it has crashed at once."""

    is_placed = True

    def __init__(self, error: OSError) -> None:
        where = f"{error.filename}: " if error.filename else ""
        self._exit = Exit(1, f"could not be started ({where}{error.strerror or error})", 0.0)

    def poll(self) -> Exit | None:
        """Return why it was not started."""
        return self._exit

    def signal(self, number: signal.Signals) -> None:
        """Do nothing."""

    def kill(self) -> None:
        """Do nothing."""

    def release(self) -> None:
        """Do nothing."""


def cause_of(code: int) -> str:
    """Return why a process with this exit code ended, as text that follows its name."""
    return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
