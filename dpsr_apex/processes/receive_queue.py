"""The order in which the replay handles messages. It depends on senders only, not on the content of messages."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from dpsr_apex.wire.sockets import Received

LOOKAHEAD = 8  # messages of others that may be held back in search of one from the preferred sender
MAX_IN_A_ROW = 8  # messages of the preferred sender that may overtake a message that is held back


class ReceiveQueue:
    """Messages in order of arrival, except that those of one preferred sender overtake some others.

    The messages of each sender stay in order, and no message is held back forever.
    """

    def __init__(self, receive: Callable[[], Received | None]) -> None:
        self._receive = receive
        self._held: deque[Received] = deque()
        self._in_a_row = 0  # of the preferred sender, so far

    def __len__(self) -> int:
        """Return the number of messages held back, for which no socket will become readable."""
        return len(self._held)

    def next(self, preferred: bytes | None) -> Received | None:
        """Return the next message, or None if there is none."""
        if self._in_a_row < MAX_IN_A_ROW or not self._held:
            # Messages held back before their sender became the preferred one must not be overtaken by its later ones.
            waits = any(held.sender == preferred for held in self._held)
            while len(self._held) < LOOKAHEAD and (received := self._receive()):
                if received.sender == preferred and not waits:
                    self._in_a_row += 1
                    return received
                self._held.append(received)
        self._in_a_row = 0
        return self._held.popleft() if self._held else None
