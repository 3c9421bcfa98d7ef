"""The template of a run: a process that has loaded torch once, and is forked for every process that needs it.

A forked process starts in milliseconds instead of seconds, and shares the memory of the libraries. It is a child of
this process, not of the template: the template forks twice, and this process adopts the orphan. So it is polled,
signalled and reaped like any other child, whether the template still runs or not. That needs Linux; elsewhere, and
after the template has ended, processes are started plainly.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import IO

from dpsr_apex import timeouts
from dpsr_apex.supervise.managed import PYTHON, Child, start_plainly

COMMAND = (*PYTHON, "-m", "dpsr_apex.cli.template")
LONGEST_COMMAND = 2_000  # bytes of a forked process's command line that `ps` can show
SET_CHILD_SUBREAPER = 36  # of prctl(2)


class Template:
    """The template process, from its first use until `close`."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._requests: socket.socket | None = None

    def load(self) -> None:
        """Start the template, which loads its libraries in the background; one that has ended is not replaced."""
        if self._process is not None or not _adopt_orphans():
            return
        self._requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [*COMMAND, " " * LONGEST_COMMAND],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
                env=os.environ | {"OPENBLAS_NUM_THREADS": "1"},  # numpy would start threads, which a fork loses
            )

    def start(self, arguments: Sequence[str], output: IO[bytes]) -> Child:
        """Start `dpsr-apex` with these arguments as soon as the template is ready; `output` receives what it prints."""
        if self._requests is None:
            return start_plainly(arguments, output)
        lifeline, stdin = os.pipe()
        reply, answer = os.pipe()
        try:
            request = json.dumps(arguments).encode()
            socket.send_fds(self._requests, [request], [lifeline, output.fileno(), answer])
        except OSError:
            self.close()
            os.close(stdin)
            os.close(reply)
            return start_plainly(arguments, output)
        finally:
            os.close(lifeline)
            os.close(answer)
        return ForkedProcess(self, os.fdopen(stdin, "wb", buffering=0), reply)

    def close(self) -> None:
        """End the template, if it runs; the processes that were forked from it continue."""
        if self._requests is not None and self._process is not None:
            self._requests.close()
            self._requests = None
            self._process.kill()
            self._process.wait()


class ForkedProcess:
    """A process that was requested from the template: pending until the template has forked it."""

    def __init__(self, template: Template, stdin: IO[bytes], reply: int) -> None:
        self.stdin: IO[bytes] | None = stdin
        self._template = template
        self._reply: IO[bytes] | None = os.fdopen(reply, "rb", buffering=0)
        os.set_blocking(reply, False)
        self._answer = b""
        self._pid: int | None = None
        self._pending_signal: int | None = None
        self._code: int | None = None

    def poll(self) -> int | None:
        """Return the exit code, or minus the signal that ended it; None while it is pending or runs."""
        if self._reply is not None and not self._read_answer(self._reply):
            return None
        if self._code is None and self._pid is not None:
            self._code = _reaped(self._pid)
        return self._code

    def send_signal(self, number: int) -> None:
        """Send a signal, now or as soon as it runs."""
        if self.poll() is not None:
            return
        if self._pid is None:
            self._pending_signal = number
        else:
            os.kill(self._pid, number)

    def kill(self) -> None:
        """Send SIGKILL; if it is still pending, the template is ended first."""
        if self.poll() is None and self._pid is None:
            self._template.close()
        self.send_signal(signal.SIGKILL)

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit code; raise TimeoutExpired if it has not ended after `timeout` seconds."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            if timeout is not None and deadline is not None and time.monotonic() >= deadline:
                raise subprocess.TimeoutExpired(COMMAND, timeout)
            time.sleep(timeouts.EXIT_POLL)
        return code

    def _read_answer(self, reply: IO[bytes]) -> bool:
        """Read the process id from the template; return whether the answer is complete.

        It is empty if the template has ended, or could not fork.
        """
        try:
            while part := os.read(reply.fileno(), 64):
                self._answer += part
        except BlockingIOError:
            return False
        reply.close()
        self._reply = None
        if not self._answer:
            self._code = os.EX_OSERR
            return True
        self._pid = int(self._answer)
        if self._pending_signal is not None:
            os.kill(self._pid, self._pending_signal)
        return True


def _reaped(pid: int) -> int | None:
    """Return the exit code of a child that has ended, and reap it; None while it runs."""
    try:
        ended, status = os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:  # reaped by the system, because this process was started with SIGCHLD ignored
        return os.EX_OSERR
    return os.waitstatus_to_exitcode(status) if ended else None


def _adopt_orphans() -> bool:
    """Become the parent of all descendants whose own parent has ended; return whether the system supports that."""
    if sys.platform != "linux":
        return False
    with contextlib.suppress(OSError, AttributeError):
        return bool(ctypes.CDLL(None).prctl(SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0)
    return False
