"""A command in its own terminal, and the screen that a user would see."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import termios
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pyte

from tests.system.runs import eventually

COLUMNS, LINES = 100, 40


class Terminal:
    """A pseudo-terminal with a process; its output is read on demand."""

    def __init__(self, command: Sequence[str | Path]) -> None:
        self._screen = pyte.HistoryScreen(COLUMNS, LINES)
        self._stream = pyte.ByteStream(self._screen)
        self._master, slave = pty.openpty()
        termios.tcsetwinsize(slave, (LINES, COLUMNS))
        self.process = subprocess.Popen(
            list(map(str, command)),
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env=os.environ | {"TERM": "xterm-256color", "COLUMNS": "", "LINES": ""},
            preexec_fn=lambda: os.login_tty(slave),  # Ctrl-C reaches whom the terminal belongs to
        )
        os.close(slave)

    @property
    def text(self) -> str:
        """The current screen."""
        while select.select([self._master], [], [], 0)[0]:
            try:
                self._stream.feed(os.read(self._master, 65_536))
            except OSError:  # the end of a pseudo-terminal
                break
        return "\n".join(self._screen.display)

    def await_text(self, *parts: str) -> str:
        """Wait for a screen with all of these, and return it."""

        def shown() -> str | None:
            text = self.text
            return text if all(part in text for part in parts) else None

        return eventually(shown)

    def press_control_c(self) -> None:
        """Send Ctrl-C through the terminal."""
        os.write(self._master, b"\x03")

    def wait(self) -> int:
        """Return the exit code; the output is read meanwhile, so that the process is not blocked by it."""
        eventually(lambda: self.text is not None and self.process.poll() is not None)
        return self.process.returncode

    def close(self) -> None:
        """Kill the process and close the terminal."""
        self.process.kill()
        self.process.wait()
        os.close(self._master)


@contextmanager
def in_terminal(*command: str | Path) -> Iterator[Terminal]:
    """Run a command in a terminal, and kill it in the end."""
    terminal = Terminal(command)
    try:
        yield terminal
    finally:
        terminal.close()
