"""Statistics of a running run, for observers: request them once, or poll the head and follow it when it moves."""

from __future__ import annotations

import time

from dpsr_apex.processes.discovery import Address
from dpsr_apex.processes.head_client import HeadClient
from dpsr_apex.processes.link import RefusedByReplay, ReplayLost, ask
from dpsr_apex.wire.messages import Refused, SetActors, SetRate, Stats, StatsRequest


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


class StatsPoller(HeadClient):
    """Polls the head of a run for statistics."""

    def poll(self, seconds: float) -> Stats | None:
        """Send one request, wait for `seconds`, and return the newest answer; None if there was none."""
        deadline = time.monotonic() + seconds
        answer = None
        self.follow_head()
        self.send(StatsRequest())
        while (left := deadline - time.monotonic()) > 0:
            for message in self.receive(left):
                if isinstance(message, Stats):
                    answer = message
        return answer


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
