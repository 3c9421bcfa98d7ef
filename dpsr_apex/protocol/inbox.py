"""The receiving end of all outboxes: the chunks of each actor in order and exactly once, in one queue.

An actor resends from the first unacknowledged chunk (go-back-N), so only the next expected chunk is accepted.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any, NamedTuple

from dpsr_apex.wire.messages import Chunk
from dpsr_apex.wire.statistics import Traffic

Key = tuple[str, int]
"""Name and incarnation: one process."""

REMEMBERED = 10_000  # streams of processes that have ended


@dataclass
class Stream:
    """The chunks of one actor, by their numbers."""

    key: Key
    accepted: int = 0  # sequence number of the next expected chunk
    settled: int = 0  # all chunks before this one were inserted or rejected
    queued: int = 0  # transitions
    sent: int = 0  # transitions, by the actor's own count


class Arrival(NamedTuple):
    """A chunk in the queue."""

    stream: Stream
    chunk: Chunk


class Inbox:
    """One queue for the chunks of all actors, with `in_flight` transitions of each. Streams outlast sessions."""

    def __init__(self, in_flight: int, traffic: Traffic) -> None:
        self._in_flight = in_flight
        self._traffic = traffic
        self._queue: deque[Arrival] = deque()
        self._streams: dict[Key, Stream] = {}
        self._ended: dict[Key, None] = {}  # in the order of their ends

    def __len__(self) -> int:
        return len(self._queue)

    @property
    def next_size(self) -> int:
        """Transitions in the oldest chunk."""
        return len(self._queue[0].chunk.transitions)

    @property
    def queued_transitions(self) -> int:
        """Transitions that were received but not yet inserted or rejected."""
        return sum(len(arrival.chunk.transitions) for arrival in self._queue)

    def begin(self, key: Key, sequence: int) -> Stream:
        """Begin or continue the stream of an actor that can no longer send chunks before `sequence`."""
        stream = self._streams.setdefault(key, Stream(key))
        self._ended.pop(key, None)
        if sequence > stream.accepted:  # the replay went back to a checkpoint and has lost later chunks
            stream.accepted = stream.settled = sequence
        return stream

    def end(self, key: Key) -> None:
        """End the session of an actor; its chunks stay in the queue."""
        self._ended[key] = None
        while len(self._ended) > REMEMBERED:
            oldest = next(iter(self._ended))
            del self._ended[oldest], self._streams[oldest]

    def stream(self, key: Key) -> Stream:
        """Return the stream of an actor in the run."""
        return self._streams[key]

    def report_sent(self, key: Key, sent: int) -> None:
        """Record an actor's own count of the transitions that it has sent."""
        stream = self._streams[key]
        self._traffic.sent += max(sent - stream.sent, 0)
        stream.sent = max(sent, stream.sent)

    def put(self, stream: Stream, chunk: Chunk) -> bool:
        """Queue the chunk if it is the next one and fewer than `in_flight` wait; return whether it is in order."""
        if chunk.sequence != stream.accepted:
            early = chunk.sequence > stream.accepted
            self._traffic.gaps += early
            self._traffic.duplicate_chunks += not early
            return False
        if stream.queued >= self._in_flight:
            self._traffic.overruns += 1
            return True
        stream.accepted += 1
        stream.queued += len(chunk.transitions)
        self._traffic.received += len(chunk.transitions)
        self._queue.append(Arrival(stream, chunk))
        return True

    def pop(self) -> Arrival:
        """Remove and return the oldest chunk, which counts as settled from now on."""
        arrival = self._queue.popleft()
        stream = arrival.stream
        stream.queued -= len(arrival.chunk.transitions)
        stream.settled = max(stream.settled, arrival.chunk.sequence + 1)
        return arrival

    def save(self) -> list[list[Any]]:
        """Return how far each stream is settled, as JSON; queued chunks will be sent again."""
        return [[*stream.key, stream.settled, stream.sent] for stream in self._streams.values()]

    def load(self, streams: list[list[Any]]) -> None:
        """Restore the streams that `save` returned; their actors have not joined yet."""
        for name, incarnation, settled, sent in streams:
            key = (name, incarnation)
            self._streams[key] = Stream(key, accepted=settled, settled=settled, sent=sent)
            self._ended[key] = None
