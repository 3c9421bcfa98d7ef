"""Logs of bounded size: repeated lines are limited, and files are rotated. Uses the standard library only."""

from __future__ import annotations

import logging
import os
import shutil
from collections import defaultdict
from contextlib import suppress
from pathlib import Path

from dpsr_apex.rate_limit import RateLimit, with_left_out

LINES_A_MINUTE = 20  # of the warnings from one place in the code
LONGEST_LINE = 1_000  # characters of a warning without its traceback; it may quote what a client has sent
LOG_BYTES = 10 * 2**20  # of one log file before it is rotated; its predecessor is kept, so a log takes twice as much
ROTATED = ".1"  # suffix of the predecessor


class LimitRepeats(logging.Filter):
    """Leaves out most of the warnings that come from the same place in the code: clients may cause millions of them."""

    def __init__(self) -> None:
        super().__init__()
        self._limits: defaultdict[tuple[str, int], RateLimit] = defaultdict(lambda: RateLimit(LINES_A_MINUTE))

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether the line should be logged; it is shortened, and states how many were left out."""
        if record.levelno < logging.WARNING:
            return True
        left_out = self._limits[record.pathname, record.lineno].admit(record.created)
        if left_out is None:
            return False
        text = record.getMessage()
        text = text if len(text) <= LONGEST_LINE else f"{text[:LONGEST_LINE]}…"
        record.msg, record.args = with_left_out(text, left_out), None
        return True


class RotatingLog(logging.FileHandler):
    """A log file of bounded size, on a disk that may be full: lines that cannot be written are silently lost."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write a line, after rotating a file that is full."""
        rotate(Path(self.baseFilename))
        super().emit(record)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 -- name defined by logging
        """Ignore the error: the run itself reports that the disk is full."""

    def close(self) -> None:
        """Close the file, even if its last lines cannot be written."""
        with suppress(OSError):
            super().close()


def rotate(path: Path) -> None:
    """Move the content of a full log file to its predecessor; a process that appends to the file continues in it.

    Lines that are appended at this very moment may be lost. Nothing happens if the disk is full.
    """
    with suppress(OSError):
        if path.stat().st_size >= LOG_BYTES:
            shutil.copyfile(path, path.with_name(path.name + ROTATED))
            os.truncate(path, 0)
