"""A command in a terminal of its own, and what a person would see there."""

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
    """A pseudo-terminal with a process in it. It is read when it is looked at."""

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
        """What is on the screen now."""
        while select.select([self._master], [], [], 0)[0]:
            try:
                self._stream.feed(os.read(self._master, 65_536))
            except OSError:  # how the end of a pseudo-terminal is told
                break
        return "\n".join(self._screen.display)

    def await_text(self, *parts: str) -> str:
        """The first screen that has all of these."""

        def shown() -> str | None:
            text = self.text
            return text if all(part in text for part in parts) else None

        return eventually(shown)

    def press_control_c(self) -> None:
        """As a person would."""
        os.write(self._master, b"\x03")

    def wait(self) -> int:
        """The exit code; the screen is read meanwhile, so that nobody waits for a reader."""
        eventually(lambda: self.text is not None and self.process.poll() is not None)
        return self.process.returncode

    def close(self) -> None:
        """End whatever is left."""
        self.process.kill()
        self.process.wait()
        os.close(self._master)


@contextmanager
def in_terminal(*command: str | Path) -> Iterator[Terminal]:
    """A command in a terminal; whatever is left of it in the end is killed."""
    terminal = Terminal(command)
    try:
        yield terminal
    finally:
        terminal.close()
