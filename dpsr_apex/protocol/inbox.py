"""The receiving end of all outboxes: the chunks of each actor in order and exactly once, in one queue.

An actor resends from the first unacknowledged chunk (go-back-N), so only the next expected chunk is accepted.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any, NamedTuple

from dpsr_apex.replay.transitions import Stack
from dpsr_apex.wire.messages import Chunk
from dpsr_apex.wire.statistics import Traffic

Key = tuple[str, int]
"""Name and incarnation: one process."""

REMEMBERED = 10_000  # streams of processes that have ended
MOST_SENT = 2**40  # transitions that one process can have sent; a greater number is counted as this one
MOST_IN_ALL = 2**62  # transitions that all have sent; more are not counted, so that statistics fit in 64 bits


@dataclass
class Stream:
    """The chunks of one actor, by their numbers."""

    key: Key
    accepted: int = 0  # sequence number of the next expected chunk
    settled: int = 0  # all chunks before this one were inserted or rejected, or are lost
    queued: int = 0  # transitions
    sent: int = 0  # transitions, by the actor's own count, or because they have arrived
    done: int = 0  # transitions in the chunks before `settled`
    bad: int = 0  # of these, found to be bad by this process
    newest: Stack = ()  # state after the last transition that was inserted: the next chunk repeats its frames

    @property
    def outstanding(self) -> int:
        """Transitions that were sent and have not arrived."""
        return self.sent - self.done - self.queued


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

    def begin(self, key: Key, sequence: int, acknowledged: int) -> Stream:
        """Begin or continue the stream of an actor that can no longer send chunks before `sequence`.

        `acknowledged` is the number of transitions in those chunks. Those that this replay does not have are lost: it
        went back to a checkpoint.
        """
        stream, acknowledged = self._streams.setdefault(key, Stream(key)), min(acknowledged, MOST_SENT)
        if key in self._ended:
            del self._ended[key]
            self._traffic.lost -= stream.outstanding  # they will be sent again
        if sequence > stream.accepted:
            stream.accepted = stream.settled = sequence
            self.report_sent(key, acknowledged)
            acknowledged = min(acknowledged, stream.sent)
            self._traffic.lost += max(acknowledged - stream.done, 0)
            stream.done = max(acknowledged, stream.done)
        return stream

    def end(self, key: Key) -> None:
        """End the session of an actor; its chunks stay in the queue, and those that have not arrived are lost."""
        if key not in self._ended:
            self._traffic.lost += self._streams[key].outstanding
        self._streams[key].newest = ()
        self._ended[key] = None
        while len(self._ended) > REMEMBERED:
            oldest = next(iter(self._ended))
            del self._ended[oldest], self._streams[oldest]

    def stream(self, key: Key) -> Stream:
        """Return the stream of an actor in the run."""
        return self._streams[key]

    def would_skip(self, key: Key, sequence: int) -> bool:
        """Whether an actor that can no longer send chunks before `sequence` skips some that were not accepted."""
        stream = self._streams.get(key)
        return sequence > (stream.accepted if stream else 0)

    def report_sent(self, key: Key, sent: int) -> bool:
        """Record the number of transitions that an actor is known to have sent; return whether it is new."""
        stream, sent = self._streams[key], min(sent, MOST_SENT)
        more = max(min(sent - stream.sent, MOST_IN_ALL - self._traffic.sent), 0)
        self._traffic.sent += more
        stream.sent += more
        return more > 0

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
        self.report_sent(stream.key, stream.done + stream.queued)
        self._traffic.received += len(chunk.transitions)
        self._queue.append(Arrival(stream, chunk))
        return True

    def pop(self) -> Arrival:
        """Remove and return the oldest chunk, which counts as settled from now on."""
        arrival = self._queue.popleft()
        stream, chunk = arrival
        stream.queued -= len(chunk.transitions)
        self._settle(stream, chunk)
        return arrival

    def settle_again(self, key: Key, chunk: Chunk) -> Stream:
        """Settle a chunk that an earlier process has accepted and settled; return its stream."""
        stream = self.begin(key, 0, 0)
        stream.accepted = max(stream.accepted, chunk.sequence + 1)
        self._traffic.received += len(chunk.transitions)
        self.report_sent(key, stream.done + len(chunk.transitions))
        self._settle(stream, chunk)
        return stream

    def _settle(self, stream: Stream, chunk: Chunk) -> None:
        stream.done += len(chunk.transitions)
        stream.settled = max(stream.settled, chunk.sequence + 1)

    def end_all(self) -> None:
        """End the sessions of all actors."""
        for key in self._streams.keys() - self._ended.keys():
            self.end(key)

    def return_queued(self, key: Key | None = None) -> None:
        """Remove the chunks of one actor, or of all, without settling them, as if they had not arrived."""
        queue, self._queue = self._queue, deque()
        for arrival in queue:
            stream, chunk = arrival
            if key not in (None, stream.key):
                self._queue.append(arrival)
                continue
            count = len(chunk.transitions)
            stream.accepted, stream.queued = stream.settled, stream.queued - count
            self._traffic.received -= count
            self._traffic.lost += count if stream.key in self._ended else 0

    def save(self) -> list[list[Any]]:
        """Return how far each stream is settled, as JSON; queued chunks will be sent again."""
        return [[*stream.key, stream.settled, stream.sent, stream.done] for stream in self._streams.values()]

    def settled_streams(self) -> list[list[Any]]:
        """Return how far each stream is settled; those without a settled chunk are left out."""
        return sorted([*stream.key, stream.settled, stream.done] for stream in self._streams.values() if stream.settled)

    def load(self, streams: list[list[Any]]) -> None:
        """Restore the streams that `save` returned; their actors have not joined yet."""
        for name, incarnation, settled, sent, *counted in streams:
            key = (name, incarnation)
            done = counted[0] if counted else sent  # checkpoints of earlier versions do not count it
            self._streams[key] = Stream(key, accepted=settled, settled=settled, sent=sent, done=done)
            self._ended[key] = None
