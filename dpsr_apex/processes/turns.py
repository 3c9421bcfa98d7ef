"""Whose message is answered next. It looks at senders only, never into a message."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from dpsr_apex.wire.sockets import Received

AHEAD = 8  # messages of others that may be held while one of the favourite's is looked for
IN_A_ROW = 8  # messages of the favourite that may go before one that is held


class Turns:
    """Messages in the order in which they came, but for those of one favourite, which go before some others.

    Each sender's stay in their order, and nobody is passed over for good.
    """

    def __init__(self, receive: Callable[[], Received | None]) -> None:
        self._receive = receive
        self._held: deque[Received] = deque()
        self._in_a_row = 0  # of the favourite, by now

    def __len__(self) -> int:
        """How many are held, which no socket tells of any more."""
        return len(self._held)

    def next(self, favourite: bytes | None) -> Received | None:
        """The next message, or None when there is none."""
        if self._in_a_row < IN_A_ROW or not self._held:
            # One that was held before it became the favourite's must not be overtaken by a later one.
            waits = any(held.sender == favourite for held in self._held)
            while len(self._held) < AHEAD and (received := self._receive()):
                if received.sender == favourite and not waits:
                    self._in_a_row += 1
                    return received
                self._held.append(received)
        self._in_a_row = 0
        return self._held.popleft() if self._held else None
