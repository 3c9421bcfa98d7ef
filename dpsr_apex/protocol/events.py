"""The events that change the state of a replay service, as records of its journal.

They are recorded in the order in which they take effect, and before their effects become visible. Applied to an earlier
state in that order (`dpsr_apex.protocol.recovery`), they lead to the same state. All else that a service handles,
such as heartbeats, leases and requests for statistics, leaves no trace in the state that survives a crash.
"""

from __future__ import annotations

from typing import NamedTuple

from dpsr_apex.replay.layout import Layout
from dpsr_apex.wire.messages import Chunk, Learning, Priorities, Recycled, SetRate


class Sender(NamedTuple):
    """The actor that has sent the chunks recorded next; the first chunk of every record follows one."""

    name: str
    incarnation: int


class Sampled(NamedTuple):
    """Batches were sampled, one after the other."""

    batches: int


class Expired(NamedTuple):
    """A recycling round was ended with the results so far."""

    number: int


class Evicted(NamedTuple):
    """Transitions were quarantined."""

    identities: list[int]
    reason: str


class Struck(NamedTuple):
    """States could not be re-entered; transitions with a second strike were quarantined."""

    identities: list[int]
    reason: str


class Late(NamedTuple):
    """Results of recycling came after the end of their round, and were dropped."""

    chains: int
    steps: int


class LearnerSeated(NamedTuple):
    """Another learner process has joined, with the state after this number of updates."""

    incarnation: int
    updates: int


class Reported(NamedTuple):
    """An actor has reported how many transitions it has sent."""

    name: str
    incarnation: int
    sent: int


class Advanced(NamedTuple):
    """An actor can no longer send chunks before `sequence`; they contained this number of transitions."""

    name: str
    incarnation: int
    sequence: int
    acknowledged: int


class Described(NamedTuple):
    """The environment of actors and learner was described for the first time."""

    environment: str
    layout: Layout


class Counted(NamedTuple):
    """The counters of traffic that no other event changes, at most a tick old."""

    counts: dict[str, int]


class Logged(NamedTuple):
    """A row of metrics was written; the state of the recorder after it, as JSON."""

    recorder: str


Event = (
    Chunk  # was inserted or refused
    | Priorities
    | Recycled
    | Learning
    | SetRate
    | Sender
    | Sampled
    | Expired
    | LearnerSeated
    | Reported
    | Advanced
    | Described
    | Counted
    | Logged
    | Evicted
    | Struck
    | Late
)
"""All events, in the order of their numbers in the journal; new ones are appended."""


class EventLog:
    """Collects the events of a service until they are written to its journal; without one, it ignores them."""

    def __init__(self) -> None:
        self.is_kept = False  # whether there is a journal
        self._events: list[Event] = []
        self._sender: Sender | None = None  # of the newest chunk

    def add(self, event: Event) -> None:
        """Add an event; batches that are sampled one after the other become one event."""
        if not self.is_kept:
            return
        last = self._events[-1] if self._events else None
        if isinstance(event, Sampled) and isinstance(last, Sampled):
            self._events[-1] = Sampled(last.batches + event.batches)
        else:
            self._events.append(event)

    def add_chunk(self, sender: Sender, chunk: Chunk) -> None:
        """Add a chunk from this actor."""
        if self.is_kept and sender != self._sender:
            self.add(sender)
            self._sender = sender
        self.add(chunk)

    def take(self) -> list[Event]:
        """Return the events since the last call."""
        events, self._events, self._sender = self._events, [], None
        return events
