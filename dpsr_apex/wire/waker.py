"""Wake a thread that waits for sockets, from another thread, through a pipe."""

from __future__ import annotations

import contextlib
import os


class Waker:
    """A self-pipe. Any thread may call `wake`; the waiting thread calls `clear` before it checks for new work."""

    def __init__(self) -> None:
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)
        os.set_blocking(self._write, False)
        self.pollable = [self._read]

    def wake(self) -> None:
        """Wake the waiting thread, now or when it waits next."""
        with contextlib.suppress(BlockingIOError):  # the pipe is full: the thread will wake anyway
            os.write(self._write, b"!")

    def clear(self) -> None:
        """Discard all wake-ups so far."""
        with contextlib.suppress(BlockingIOError):
            os.read(self._read, 65_536)

    def close(self) -> None:
        """Close the pipe."""
        os.close(self._read)
        os.close(self._write)
