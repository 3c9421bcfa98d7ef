"""Answers of a replay service wait until the events that they depend on are as safe as promised."""

from __future__ import annotations

import errno
import os
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import NamedTuple

from dpsr_apex.protocol.replay_service import Outgoing, ReplayService
from dpsr_apex.record.journal.encoding import encode_events
from dpsr_apex.record.journal.journal import DiskFull, Journal
from dpsr_apex.wire.codec import Frame
from dpsr_apex.wire.messages import Acknowledged, Alive, Chunk, Stats, Welcome


class Commit:
    """Writes the events of a service to its journal, and returns the messages that may be sent.

    Messages are returned in the order in which they were given. While the disk is full, the service is held: it answers
    heartbeats, joins and requests for statistics, but acknowledges nothing.
    """

    def __init__(self, service: ReplayService, journal: Journal) -> None:
        service.events.is_kept = True
        self.journal = journal
        self._service = service
        self._unwritten: list[Frame] = []  # a record that is still to be written
        self._received: dict[int, Sequence[Frame]] = {}  # by the id of a chunk
        self._chunks: list[Chunk] = []  # those, so that no other object gets their ids
        self._waiting: deque[_Waiting] = deque()
        self._t = service.t  # clock after the last record that is as safe as promised
        self._confirmed = self._seen = journal.next  # numbers of records: confirmed, and written by the last tick

    def received(self, chunk: Chunk, frames: Sequence[Frame]) -> None:
        """Keep the frames of a chunk until the next commit: if it is inserted by then, it is not encoded again."""
        self._received[id(chunk)] = frames
        self._chunks.append(chunk)

    def commit(self, outgoing: Iterable[Outgoing]) -> list[Outgoing]:
        """Write what has changed, and return the messages that may be sent: some of these, or earlier ones."""
        was_held, messages = self._service.held, list(outgoing)
        self._unwritten += encode_events(self._service.events.take(), self._received)
        self._received.clear()
        self._chunks.clear()
        if not (messages or self._unwritten or was_held):
            return self.released()
        if not was_held:
            if self._unwritten:
                self._write()
            self._waiting.append(_Waiting(self.journal.next + bool(self._unwritten), self._service.t, messages))
            return self.released()
        acknowledgements = [out for out in messages if isinstance(out.message, Acknowledged)]
        self._waiting.append(_Waiting(self.journal.next + 1, self._service.t, acknowledgements))
        return [self._as_promised(out) for out in messages if not isinstance(out.message, Acknowledged)]

    @property
    def is_waiting(self) -> bool:
        """Whether there are messages that may not be sent yet."""
        return bool(self._waiting)

    def released(self) -> list[Outgoing]:
        """Return the waiting messages that may be sent by now."""
        ready: list[Outgoing] = []
        while self._waiting and self._waiting[0].records <= self.journal.promised:
            _, self._t, messages = self._waiting.popleft()
            ready += messages
        return ready

    def tick(self) -> list[Outgoing]:
        """Write what could not be written, and return the messages that may be sent; must be called once a second.

        If nothing has changed since the last call, an empty record confirms the last one: without a later record,
        damage to it could not be told from an interrupted write.
        """
        if self._unwritten:
            self._write()
        elif self.journal.next == self._seen != self._confirmed:
            with suppress(DiskFull):
                self.journal.append([], self._service.t)
                self._confirmed = self.journal.next
        self._seen = self.journal.next
        return self.released()

    @property
    def may_save(self) -> bool:
        """Whether a checkpoint may be taken: it must not contain what an unwritten record has changed."""
        return not self._unwritten

    def begin_segment(self) -> int:
        """Let the journal continue in a new segment, for a checkpoint of now; return the number of its first record."""
        assert self.may_save
        self.journal.roll()
        return self.journal.next

    def close(self) -> list[Outgoing]:
        """End the journal before the last checkpoint, and return the messages that may be sent.

        Raise OSError if a record still cannot be written: a later record would seem to continue the one before it.
        """
        if self._unwritten:
            self._write()
        if self._unwritten:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.journal.folder))
        self.journal.close()
        return self.released()

    def _write(self) -> None:
        try:
            self.journal.append(self._unwritten, self._service.t)
        except DiskFull as error:
            if not self._service.held:
                self._service.hold(
                    f"Paused at t = {self._t:,}: the journal cannot be written ({error}). The run continues by itself "
                    "when there is space"
                )
            return
        self._unwritten = []
        if self._service.held:
            self._service.release()

    def _as_promised(self, outgoing: Outgoing) -> Outgoing:
        """Return the message with a clock that no crash can undo."""
        message = outgoing.message
        if isinstance(message, Alive | Stats | Welcome):
            return outgoing._replace(message=message._replace(t=min(message.t, self._t)))
        return outgoing


class _Waiting(NamedTuple):
    """Messages, the number of records that they depend on, and the clock after these."""

    records: int
    t: int
    messages: list[Outgoing]
