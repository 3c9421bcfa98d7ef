"""Statistics of a running run, for observers: request them once, or poll the head and follow it when it moves."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable

from dpsr_apex import timeouts
from dpsr_apex.processes.discovery import Address, HeadLocator
from dpsr_apex.processes.link import RefusedByReplay, ReplayLost, ask
from dpsr_apex.wire.codec import BadMessage, decode, encode
from dpsr_apex.wire.messages import Message, Refused, SetActors, SetRate, Stats, StatsRequest
from dpsr_apex.wire.sockets import ClientSocket, wait


def ask_stats(address: Address, question: StatsRequest | SetRate | SetActors, seconds: float) -> Stats:
    """Return the answer of the head at this address.

    Raise RefusedByReplay if it rejects the change, ReplayLost if there is no answer within `seconds`.
    """
    answer = ask(address, question, seconds)
    if isinstance(answer, Refused):
        raise RefusedByReplay(answer.reason)
    if not isinstance(answer, Stats):
        raise ReplayLost(f"The server at {address.endpoint} is not the head of a run")
    return answer


class StatsPoller:
    """Polls the head of a run for statistics, and follows it when it moves.

    `find_head` is called until it returns a locator of the head, which then looks up where the head is.
    """

    def __init__(self, find_head: Callable[[], HeadLocator | None]) -> None:
        self._answered_at = time.monotonic()  # when the newest answer arrived, or when polling began
        self._find_head = find_head
        self._head: HeadLocator | None = None
        self._client: ClientSocket | None = None
        self._looked_at = self._answered_at  # when the head was last looked up

    def poll(self, seconds: float) -> Stats | None:
        """Send one request, wait for `seconds`, and return the newest answer; None if there was none."""
        deadline = time.monotonic() + seconds
        answer = None
        self._follow_head()
        self.send(StatsRequest())
        while (left := deadline - time.monotonic()) > 0:
            if self._client is None:
                time.sleep(left)
                break
            wait([self._client], left)
            answer = self._receive() or answer
        return answer

    def send(self, message: Message) -> bool:
        """Send another message to the head; return False if it is not connected."""
        return self._client is not None and self._client.send(encode(message))

    def close(self) -> None:
        """Close the connection."""
        if self._client is not None:
            self._client.close()

    def _receive(self) -> Stats | None:
        assert self._client is not None
        answer = None
        while (frames := self._client.receive()) is not None:
            with contextlib.suppress(BadMessage):
                if isinstance(message := decode(frames), Stats):
                    answer = message
                    self._answered_at = time.monotonic()
        return answer

    def _follow_head(self) -> None:
        """Connect to the head as soon as there is one; reconnect if it is silent and has moved."""
        if self._head is None:
            self._head = self._find_head()
            if self._head is not None:
                self._connect(self._head)
            return
        now = time.monotonic()
        if now - max(self._answered_at, self._looked_at) > timeouts.REPLAY_SILENCE:
            self._looked_at = now
            if self._head.look_again():
                self._connect(self._head)

    def _connect(self, head: HeadLocator) -> None:
        self.close()
        self._client = ClientSocket(*head.address)


class NewNotes:
    """Selects notes of the head that were not shown yet. With `skip_first`, those of the first answer are skipped."""

    def __init__(self, *, skip_first: bool = False) -> None:
        self._skip = skip_first
        self._era: int | None = None  # era of the numbers of the notes
        self._shown = 0  # highest number shown so far

    def of(self, stats: Stats) -> list[str]:
        """Return the texts of the new notes."""
        if stats.era != self._era:
            self._era, self._shown = stats.era, 0
        new = [note for note in stats.notes if note.number > self._shown]
        self._shown = max((note.number for note in new), default=self._shown)
        skip, self._skip = self._skip, False
        return [] if skip else [note.text for note in new]
