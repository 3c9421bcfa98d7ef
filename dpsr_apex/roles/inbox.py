"""Chunks on their way into the replay: each actor's in its own order and none twice, all in the order of arrival.

An actor sends again from the first chunk that was not acknowledged (go-back-N), so only the next one that is expected
is ever taken.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any, NamedTuple

from dpsr_apex.roles.traffic import Traffic
from dpsr_apex.wire.messages import Chunk

Key = tuple[str, int]
"""Name and incarnation: one process."""

REMEMBERED = 10_000  # streams of processes that are gone


@dataclass
class Stream:
    """The chunks of one actor, by their numbers."""

    key: Key
    accepted: int = 0  # the next one that is expected
    settled: int = 0  # all before this one are inserted or refused, for good
    queued: int = 0
    sent: int = 0  # transitions, as the actor says


class Arrival(NamedTuple):
    """A chunk in the queue."""

    stream: Stream
    chunk: Chunk


class Inbox:
    """One queue for the chunks of all actors, at most `window` of each. Streams are remembered when actors are gone."""

    def __init__(self, window: int, traffic: Traffic) -> None:
        self._window = window
        self._traffic = traffic
        self._queue: deque[Arrival] = deque()
        self._streams: dict[Key, Stream] = {}
        self._ended: dict[Key, None] = {}  # in the order in which they ended

    def __len__(self) -> int:
        return len(self._queue)

    @property
    def queued_transitions(self) -> int:
        """Transitions that were received and neither inserted nor refused yet."""
        return sum(len(arrival.chunk.transitions) for arrival in self._queue)

    def begin(self, key: Key, sequence: int) -> Stream:
        """Begin or go on with the stream of an actor that has nothing before `sequence` any more."""
        stream = self._streams.setdefault(key, Stream(key))
        self._ended.pop(key, None)
        if sequence > stream.accepted:  # the replay went back to a checkpoint: what it had settled since is lost
            stream.accepted = stream.settled = sequence
        return stream

    def end(self, key: Key) -> None:
        """The actor is gone; what it has sent stays in the queue."""
        self._ended[key] = None
        while len(self._ended) > REMEMBERED:
            oldest = next(iter(self._ended))
            del self._ended[oldest], self._streams[oldest]

    def stream(self, key: Key) -> Stream:
        """The stream of an actor in the run."""
        return self._streams[key]

    def hear_sent(self, key: Key, sent: int) -> None:
        """The actor says how many transitions it has sent in all."""
        stream = self._streams[key]
        self._traffic.sent += max(sent - stream.sent, 0)
        stream.sent = max(sent, stream.sent)

    def put(self, stream: Stream, chunk: Chunk) -> bool:
        """Whether the chunk is in order; if so it is in the queue now, unless the queue is full for this actor."""
        if chunk.sequence != stream.accepted:
            early = chunk.sequence > stream.accepted
            self._traffic.gaps += early
            self._traffic.duplicate_chunks += not early
            return False
        if stream.queued >= self._window:
            self._traffic.overruns += 1
            return True
        stream.accepted += 1
        stream.queued += 1
        self._traffic.received += len(chunk.transitions)
        self._queue.append(Arrival(stream, chunk))
        return True

    def pop(self) -> Arrival:
        """The chunk that came first, which is settled from now on."""
        arrival = self._queue.popleft()
        stream = arrival.stream
        stream.queued -= 1
        stream.settled = max(stream.settled, arrival.chunk.sequence + 1)
        return arrival

    def save(self) -> list[list[Any]]:
        """What was settled of each stream, as JSON; what is in the queue will be sent again."""
        return [[*stream.key, stream.settled, stream.sent] for stream in self._streams.values()]

    def load(self, streams: list[list[Any]]) -> None:
        """Remember the streams that `save` gave; their actors are not in the run yet."""
        for name, incarnation, settled, sent in streams:
            key = (name, incarnation)
            self._streams[key] = Stream(key, accepted=settled, settled=settled, sent=sent)
            self._ended[key] = None
