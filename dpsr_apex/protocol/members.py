"""Who takes part in a run: processes join, are welcomed with what they need, and leave, die or become silent.

The rules for joining are in `dpsr_apex.protocol.sessions`; here is what follows for the flow of data and for the
learner's record. A state machine without sockets and clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from dpsr_apex.protocol.events import Described, LearnerSeated
from dpsr_apex.protocol.flow import Flow
from dpsr_apex.protocol.learner_record import LearnerRecord
from dpsr_apex.protocol.notes import Notes
from dpsr_apex.protocol.sessions import Session, Sessions, shown, titled
from dpsr_apex.rate_limit import RateLimit
from dpsr_apex.wire.messages import Goodbye, Join, Message, Refused, Welcome

REFUSAL_NOTES: Final = 20  # a minute, because any client can be refused as often as it likes
MEMBER_NOTES: Final = 500  # a minute: many actors may join at once, but a client could also join and leave all the time
MOST_DROPPED: Final = 10_000  # names of members that were dropped, each of which was reported once

Replies = Sequence[Message]
"""To the sender of a message."""


class Members:
    """Admits processes to a run, and ends their membership."""

    def __init__(self, sessions: Sessions, flow: Flow, learner: LearnerRecord, notes: Notes) -> None:
        self.goodbye: Goodbye | None = None  # once the run is ending: nobody can join any more
        self._sessions = sessions
        self._flow = flow
        self._learner = learner
        self._notes = notes
        self._dropped: set[str] = set()  # names
        self._refusal_notes, self._member_notes = RateLimit(REFUSAL_NOTES), RateLimit(MEMBER_NOTES)

    @property
    def actors(self) -> int:
        """The number of planned actors, or of joined ones if that is larger."""
        return max([self._sessions.planned, *(actor.index + 1 for actor in self._sessions.actors)])

    @property
    def weights_endpoint(self) -> str:
        """The learner's endpoint for weights; empty without a learner."""
        return self._sessions.learner.weights_endpoint if self._sessions.learner else ""

    def join(self, sender: bytes, join: Join, role: str, host: str, now: float) -> Replies:
        """Admit a process with the key of this role, or refuse it; return the replies, none if that is undecided."""
        sessions = self._sessions
        if self.goodbye:
            return self._refuse_late(join, self.goodbye.reason, host, now)
        if refusal := sessions.refusal(join, role, now):
            return self._refuse(join, refusal, host, now)
        if sessions.is_undecided(join, now):
            return []  # the Join is repeated, and answered when the member was heard again or counts as silent
        self._end_predecessors(sender, join, now)
        known = sessions.of((join.name, join.incarnation))
        is_repeated = known is not None and known.address == sender  # its answer was slower than the next attempt
        if known and not is_repeated:
            self._flow.actor_reconnected(known)
        session = self._enter(sender, join, host, now)
        self._flow.traffic.joins += 1
        if not is_repeated:
            self._note(f"{session.title} joined{' again' if known else ''}", now)
        if session.role == "learner" and join.incarnation != self._learner.trained_by:
            self._seat_learner(join.incarnation)
        return self._welcome(session, join)

    def end(self, session: Session, what: str, now: float, has_died: bool = False) -> None:
        """End a membership; `what` has happened, as text that follows the member's name."""
        self._sessions.end(session)
        self._flow.member_ended(session, has_died)
        if session.role == "learner":
            self._learner.ended()
        self._note(f"{session.title} {what}", now)

    def gone(self, name: str, now: float) -> None:
        """End the membership of a process that has ended."""
        if session := self._sessions.named(name):
            self.end(session, "is gone", now, has_died=True)

    def end_silent(self, now: float) -> None:
        """End the memberships whose lease has expired; must be called often."""
        for session in self._sessions.silent(now):
            self._flow.traffic.expired_leases += 1
            self.end(session, f"was silent for {now - session.heard:.1f} s: its lease has expired", now, has_died=True)

    def drop(self, sender: bytes, reason: str, now: float) -> None:
        """End the membership of a process that takes too much; what was not stored of it is as if not sent.

        It may join again. The user is told once about each.
        """
        member = self._sessions.at(sender)
        if member is None:
            return
        self._flow.inbox.return_queued(member.key)
        self.end(member, "was dropped", now)
        if member.name not in self._dropped and len(self._dropped) < MOST_DROPPED:
            self._dropped.add(member.name)
            self._notes.add(f"{member.title} was dropped: {reason}")

    def _end_predecessors(self, sender: bytes, join: Join, now: float) -> None:
        """End the memberships that this process replaces: an earlier one at its address, and a silent namesake."""
        predecessor = self._sessions.at(sender)
        if predecessor and predecessor.key != (join.name, join.incarnation):
            self.end(predecessor, f"is {join.name} now", now)
        namesake = self._sessions.named(join.name)
        if namesake and self._sessions.is_replaced_by(join, namesake, now):
            self.end(namesake, "is replaced by its restarted process", now, has_died=True)

    def _enter(self, sender: bytes, join: Join, host: str, now: float) -> Session:
        sessions = self._sessions
        former = sessions.environment
        session = sessions.enter(join, sender, now, host)
        if sessions.environment != former:
            self._flow.events.add(Described(sessions.environment, sessions.layout))
        return session

    def _seat_learner(self, incarnation: int) -> None:
        """Note that another process makes the updates from now on; those lost with the former one are due again."""
        self._learner.seated(incarnation)
        self._flow.rate.batches = self._learner.updates
        self._flow.events.add(LearnerSeated(incarnation, self._learner.updates))

    def _welcome(self, session: Session, join: Join) -> Replies:
        flow, is_actor = self._flow, session.role == "actor"
        stream = flow.actor_joined(session, join.sequence, join.acknowledged) if is_actor else None
        expected = stream.accepted if stream else 0
        welcome = Welcome(flow.era, flow.t, session.index, self.actors, expected, self.weights_endpoint)
        if stream:
            return [welcome, flow.acknowledgement(stream)]
        if session.role != "learner":
            return [welcome]
        flow.learner_joined()
        return [welcome, *self._learner.welcome()]

    def _refuse(self, join: Join, reason: str, host: str, now: float) -> Replies:
        self._flow.traffic.refused_joins += 1
        refused = f"{titled(shown(join.name), host)} was refused: {reason}"
        self._notes.add_at_most(self._refusal_notes, refused, now)
        return [Refused(reason)]

    def _refuse_late(self, join: Join, reason: str, host: str, now: float) -> Replies:
        """Reject a Join while the run is ending; a member that has lost its link counts as having left."""
        if member := self._sessions.of((join.name, join.incarnation)):
            self.end(member, "left", now)
        return self._refuse(join, f"the run has ended: {reason}", host, now)

    def _note(self, text: str, now: float) -> None:
        self._notes.add_at_most(self._member_notes, text, now)
