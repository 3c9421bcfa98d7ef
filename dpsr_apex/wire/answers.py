"""Answers of a server on their way to its clients: how much memory they keep, and whom to disconnect for it.

An answer stays in memory until its client has taken it. Clients that ask and take nothing could keep any number of
them. So each client may have two on their way, and all together are limited: an answer that is sent to many clients
counts once, because they share its frames.

No sockets and no clock.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from dpsr_apex.wire.fields import Frame

MOST_PER_CLIENT = 2  # one, and another that was taken already, which may be noticed late
MOST_BYTES = 2**30  # of all answers that are on their way


class _Answer(NamedTuple):
    address: bytes
    frames: Sequence[Frame]
    is_over: Callable[[], bool]  # whether it needs no memory any more, because it was taken or the client is gone


class Answers:
    """The answers on their way, the oldest first."""

    def __init__(self, most: int = MOST_BYTES) -> None:
        self._most = most
        self._answers: list[_Answer] = []

    def may_begin(self, address: bytes) -> bool:
        """Whether this client may get another answer now."""
        own = [one for one in self._answers if one.address == address and not one.is_over()]
        return len(own) < MOST_PER_CLIENT

    def begin(self, address: bytes, frames: Sequence[Frame], is_over: Callable[[], bool]) -> list[bytes]:
        """Add an answer; return the clients to disconnect: those that have taken longest, if all take too much memory.

        The client of the new one is not among them.
        """
        self._answers = [one for one in self._answers if not one.is_over()]
        self._answers.append(_Answer(address, frames, is_over))
        slow: list[bytes] = []
        while self.held > self._most and (others := [one for one in self._answers if one.address != address]):
            slow.append(others[0].address)
            self._answers = [one for one in self._answers if one.address != slow[-1]]
        return slow

    @property
    def held(self) -> int:
        """Bytes that the answers take."""
        return sum({id(frame): len(frame) for one in self._answers for frame in one.frames}.values())
