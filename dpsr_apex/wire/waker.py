"""A bell between threads: whoever waits for sockets can be woken without one."""

from __future__ import annotations

import contextlib
import os


class Waker:
    """`wake` may be called from any thread; the one that waits calls `clear` before it looks at what is new."""

    def __init__(self) -> None:
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)
        os.set_blocking(self._write, False)
        self.pollable = [self._read]

    def wake(self) -> None:
        """Let the waiting thread go on, now or when it next waits."""
        with contextlib.suppress(BlockingIOError):  # full: it will wake anyway
            os.write(self._write, b"!")

    def clear(self) -> None:
        """Forget all that was rung so far."""
        with contextlib.suppress(BlockingIOError):
            os.read(self._read, 65_536)

    def close(self) -> None:
        """Let go of the pipe."""
        os.close(self._read)
        os.close(self._write)
