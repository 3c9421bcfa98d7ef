"""What a replay that takes too much memory does: it drops the peer from which most has come lately.

If that was not enough, the memory is in what is stored, and the largest transitions are evicted: whoever has sent them
could otherwise come back until the system kills the process.

A state machine without sockets and clock.
"""

from __future__ import annotations

from typing import NamedTuple

HALVED = 10.0  # seconds in which what has come counts half
GREEDY = 32 * 2**20  # bytes; a peer from which less has come lately is not dropped
PAUSE = 5.0  # seconds between two measures, in which memory is released
RESERVE = 0.05  # of the limit, which is left free after transitions were evicted


class Greedy(NamedTuple):
    """A peer to drop, and the bytes that have come from it lately."""

    sender: bytes
    size: int


class Relief(NamedTuple):
    """What to do against too much memory."""

    greedy: Greedy | None  # whom to drop; None if nobody has sent much lately
    size: int  # bytes of transitions to evict


class MemoryWatch:
    """Counts what comes from each peer. The process should take at most `limit` bytes; None: there is no limit."""

    def __init__(self, limit: int | None, now: float) -> None:
        self.limit = limit
        self._sizes: dict[bytes, float] = {}  # bytes that have come from each peer; older ones count less
        self._halved_at = now
        self._next = now  # when the next measure may be taken
        self._was_over = False  # whether one was taken, and the process has taken too much ever since

    def came(self, sender: bytes, size: int) -> None:
        """Note a message of this size."""
        self._sizes[sender] = self._sizes.get(sender, 0.0) + size

    def check(self, resident: int | None, now: float) -> Relief | None:
        """Return what to do at the present size of the process; None if there is nothing to do."""
        self._forget(now)
        if resident is None or self.limit is None or resident <= self.limit:
            self._was_over = False
            return None
        if now < self._next:
            return None
        size = resident - int((1 - RESERVE) * self.limit) if self._was_over else 0
        self._next, self._was_over = now + PAUSE, True
        return Relief(self._greediest(), size)

    def _forget(self, now: float) -> None:
        if now - self._halved_at >= HALVED:
            self._halved_at = now
            self._sizes = {sender: size / 2 for sender, size in self._sizes.items() if size >= 2}

    def _greediest(self) -> Greedy | None:
        """Remove and return the peer from which most has come lately; None if that is not much."""
        sender = max(self._sizes, key=self._sizes.__getitem__, default=b"")
        if self._sizes.get(sender, 0.0) < GREEDY:
            return None
        return Greedy(sender, int(self._sizes.pop(sender)))
