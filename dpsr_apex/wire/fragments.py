"""Send large messages in fragments, so that no frame exceeds a megabyte, and reassemble them within bounds.

ZeroMQ collects all frames of a message before it delivers the first, from whomever they come. So frames and messages
must be small, and whatever is larger is reassembled here, where it is known who sends it. No sockets and no clock.

A fragment that is lost with its connection makes the rest of its message useless: its receiver requests it again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import cast

import numpy as np
from numpy.typing import NDArray

from dpsr_apex import timeouts
from dpsr_apex.wire.codec import MAX_FRAME, MAX_PARTS, Frame, decode, encode
from dpsr_apex.wire.fields import require
from dpsr_apex.wire.messages import ACTOR, LEARNER, Fragment

MOST_BYTES = {ACTOR: 64 * 2**20, LEARNER: 512 * 2**20}  # of one message from a member; other roles send small ones
FROM_SERVER = 512 * 2**20  # bytes of one message from a server
BUDGET = 768 * 2**20  # bytes of all incomplete messages of one role together

Offer = Callable[[Sequence[Frame]], bool | None]
"""Offers frames to a socket; returns whether it has accepted them, and None if there is no peer any more."""


# Sending.


class Feed:
    """Sends messages to one peer: small ones at once, and a large one in fragments, as fast as the socket takes them.

    Small messages overtake the rest of a large one. `send` and `flush` must be called often.
    """

    def __init__(self, offer: Offer) -> None:
        self._offer = offer
        self._rest: deque[list[Frame]] = deque()  # of the large message
        self._number = 0

    @property
    def is_idle(self) -> bool:
        """Whether nothing is left to send."""
        return not self._rest

    def send(self, frames: Sequence[Frame]) -> bool:
        """Send a message; False, with nothing sent, if the socket does not accept it, or is busy with a large one."""
        if not is_large(frames):
            return bool(self._offer(frames))
        self.flush()
        if self._rest:
            return False
        self._number += 1
        self._rest.extend(fragments(frames, self._number))
        self.flush()
        return True

    def flush(self) -> None:
        """Send as much of the large message as the socket accepts."""
        while self._rest:
            accepted = self._offer(self._rest[0])
            if accepted is None:
                self._rest.clear()
            elif accepted:
                self._rest.popleft()
            else:
                break


def fragments(frames: Sequence[Frame], number: int) -> Iterator[list[Frame]]:
    """Yield the encoded fragments of a message; their data are views of its frames, not copies."""
    sizes = np.array([len(frame) for frame in frames])
    offset = 0
    for frame in frames:
        view = memoryview(frame)
        for start in range(0, len(view), MAX_FRAME):
            data = cast(bytes, view[start : start + MAX_FRAME])  # not copied
            yield encode(Fragment(number, sizes, offset, data))
            offset += len(data)


def is_large(frames: Sequence[Frame]) -> bool:
    """Whether a message must be sent in fragments."""
    return sum(map(len, frames)) > MAX_FRAME


def is_fragment(frames: Sequence[Frame]) -> bool:
    """Whether these are the frames of a fragment, which may still be invalid."""
    return bool(frames) and bytes(frames[0][: len(_PREFIX)]) == _PREFIX


_PREFIX = bytes(encode(Fragment(0, np.zeros(0, np.int64), 0, b""))[0][:3])  # number of entries, protocol and type


# Receiving.


@dataclass
class _Incomplete:
    """A message of which some fragments have arrived."""

    number: int
    sizes: NDArray[np.int64]
    most: int  # bytes that its sender may send in one message
    arrived_at: float  # the newest fragment
    received: bytearray = field(default_factory=bytearray)

    def is_continued_by(self, fragment: Fragment) -> bool:
        """Whether this is the next fragment."""
        is_next = (self.number, len(self.received)) == (fragment.message, fragment.offset)
        return is_next and np.array_equal(self.sizes, fragment.sizes)


class Reassembly:
    """Reassembles the large messages of any number of senders, one of each at a time."""

    def __init__(self, budget: int = BUDGET) -> None:
        self._budget = budget
        self._incomplete: dict[bytes, _Incomplete] = {}

    def add(self, frames: Sequence[Frame], most: int, now: float, sender: bytes = b"") -> list[bytes] | None:
        """Add the frames of a fragment; return those of the message that it completes, None while some are missing.

        Raise BadMessage if it is invalid, or belongs to a message of more than `most` bytes.
        """
        fragment = decode(frames)
        assert isinstance(fragment, Fragment), "not a fragment"
        total = _checked_total(fragment, most)
        if fragment.offset == 0:
            self._incomplete[sender] = _Incomplete(fragment.message, fragment.sizes, most, now)
        incomplete = self._incomplete.get(sender)
        if incomplete is None or not incomplete.is_continued_by(fragment):
            self.forget(sender)  # an earlier fragment was lost
            return None
        incomplete.received += fragment.data
        incomplete.arrived_at = now
        if len(incomplete.received) == total:
            self.forget(sender)
            return _cut(incomplete.received, incomplete.sizes)
        self._keep_budget(most)
        return None

    def __len__(self) -> int:
        """Return the number of incomplete messages."""
        return len(self._incomplete)

    def forget(self, sender: bytes) -> None:
        """Drop what has arrived from a sender."""
        self._incomplete.pop(sender, None)

    def expire(self, now: float) -> None:
        """Drop messages that have not grown for a while, because their senders or the connections are gone."""
        self._incomplete = {
            sender: incomplete
            for sender, incomplete in self._incomplete.items()
            if now - incomplete.arrived_at < timeouts.SOCKET_SILENCE
        }

    @property
    def held(self) -> dict[bytes, int]:
        """The bytes that are held for each sender."""
        return {sender: len(incomplete.received) for sender, incomplete in self._incomplete.items()}

    def _keep_budget(self, most: int) -> None:
        """Drop the largest incomplete messages of senders with the same limit while these are too large together.

        The learner has another limit than actors, so that no number of them can displace its state.
        """
        while True:
            held = {sender: len(one.received) for sender, one in self._incomplete.items() if one.most == most}
            if sum(held.values()) <= self._budget:
                break
            self.forget(max(held, key=held.__getitem__))


def _checked_total(fragment: Fragment, most: int) -> int:
    """Return the size of the whole message, after validating what can be validated about a fragment."""
    sizes = fragment.sizes
    require(1 <= len(sizes) <= MAX_PARTS, f"it is a fragment of a message of {len(sizes)} frames")
    require(bool((sizes >= 0).all()) and bool((sizes <= most).all()), f"it is a fragment of more than {most} bytes")
    total = int(sizes.sum())
    require(total <= most, f"it is a fragment of a message of {total} bytes, more than {most}")
    end = fragment.offset + len(fragment.data)
    require(0 <= fragment.offset < end <= total, "it is a fragment outside of its message")
    return total


def _cut(whole: bytearray, sizes: NDArray[np.int64]) -> list[bytes]:
    """Return the frames, of these sizes, of which the bytes consist."""
    view = memoryview(whole)
    return [bytes(view[start:end]) for start, end in pairwise(accumulate(sizes.tolist(), initial=0))]
