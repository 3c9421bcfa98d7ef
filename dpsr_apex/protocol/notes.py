"""Events of a run that its user should see."""

from __future__ import annotations

import logging
from collections import deque
from typing import Final

from dpsr_apex.rate_limit import RateLimit, with_left_out
from dpsr_apex.wire.statistics import Note

MOST_KEPT: Final = 100

log = logging.getLogger(__name__)


class Notes:
    """The newest events, numbered from 1, in the order in which they happened."""

    def __init__(self) -> None:
        self.newest: deque[Note] = deque(maxlen=MOST_KEPT)
        self._count = 0

    def add(self, text: str) -> None:
        """Add an event."""
        log.info(text)
        self._count += 1
        self.newest.append(Note(self._count, text))

    def add_at_most(self, limit: RateLimit, text: str, now: float) -> None:
        """Add an event that a client can cause, unless there were too many of its kind."""
        left_out = limit.admit(now)
        if left_out is not None:
            self.add(with_left_out(text, left_out))
