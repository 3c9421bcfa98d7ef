"""The replay service for the other processes of a run: membership, answers, and the end of a run.

A state machine: `handle` and `tick` are given an event and the time, and return the messages to send. It has no
sockets, files, threads or clock.
"""

from __future__ import annotations

import json
import logging
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from dpsr_apex.config import Config
from dpsr_apex.config_files import dump_config
from dpsr_apex.protocol.flow import Flow, Outgoing, Warner
from dpsr_apex.protocol.rate_limiter import RateLimiter
from dpsr_apex.protocol.sessions import Session, Sessions, shown, titled
from dpsr_apex.protocol.stats import make_stats
from dpsr_apex.replay.replay import Replay
from dpsr_apex.state import State
from dpsr_apex.wire.messages import (
    Alive,
    Chunk,
    Gone,
    Goodbye,
    Heartbeat,
    Hello,
    Join,
    LearnerState,
    Learning,
    Leave,
    Message,
    Priorities,
    Recycled,
    Refused,
    SampleRequest,
    SaveRequest,
    SetActors,
    SetRate,
    Stats,
    StatsRequest,
    Stranger,
    Terms,
    Welcome,
)
from dpsr_apex.wire.statistics import Figure, Note, Traffic

__all__ = ["Outgoing", "ReplayService"]

log = logging.getLogger(__name__)

MOST_ACTORS = 10_000  # that can be planned; a larger number is probably a typing error

Replies = Sequence[Message]
"""To the sender of a message."""

SENDERS: Final[dict[type, str]] = {
    Chunk: "actor",
    Recycled: "actor",
    SampleRequest: "learner",
    Priorities: "learner",
    Learning: "learner",
    LearnerState: "learner",
}
"""The only role from which such a message makes sense."""


class ReplayService:
    """Serves the replay of one run to its actors, its learner, its evaluator and other observers.

    `emulator` is the version of ale-py that all members must have. `era` identifies this replay process. `config` is
    replaced only when the number of actors is changed.
    """

    def __init__(self, config: Config, replay: Replay, run_id: str, emulator: str, era: int) -> None:
        self.config = config
        self.run_id = run_id
        self.sessions = Sessions(run_id, emulator, config.system.lease, config.system.actors or 1)
        self.flow = Flow(config, replay, era, self.sessions)
        self.learning: Learning | None = None  # the newest
        self.learner_state = LearnerState("", b"")  # the newest; empty if there is none
        self.states_received = 0
        self.awaiting_state = False  # whether a running learner still has to answer a request for its state
        self._asked_at: float | None = None  # when the state was last requested, set at the next tick
        self._trained_by: int | None = None  # incarnation of the learner that has made all updates so far
        self.notes: deque[Note] = deque(maxlen=100)  # events that a user should see
        self.row: dict[str, Figure] = {}  # the newest row of metrics, for the stats; set from outside
        self._goodbye: Goodbye | None = None
        self._noted = 0
        self._reports: list[Learning] = []
        self._refused, self._malformed = Warner("refused a message"), Warner("cannot read a message")

    @property
    def t(self) -> int:
        """The clock: transitions inserted so far."""
        return self.flow.t

    @property
    def replay(self) -> Replay:
        """The replay that is served."""
        return self.flow.replay

    @property
    def rate(self) -> RateLimiter:
        """The rate limiter, which keeps the ratio of transitions to updates."""
        return self.flow.rate

    @property
    def traffic(self) -> Traffic:
        """Counters of everything handled so far."""
        return self.flow.traffic

    @property
    def finished(self) -> bool:
        """Whether the last transition is inserted and no update is due."""
        return self.flow.finished

    @property
    def ending(self) -> bool:
        """Whether all members were told to leave."""
        return self._goodbye is not None

    @property
    def everybody_left(self) -> bool:
        """Whether there are no members."""
        return len(self.sessions) == 0

    def handle(self, sender: bytes, message: Message, now: float, host: str = "") -> list[Outgoing]:
        """Handle one message and return the messages to send; `host` is the sender's, if it is another machine."""
        member = self._hear(sender, now)
        replies = self._answer_anyone(sender, message, now, host)
        if replies is None:
            replies = self._answer_member(member, message)
        return [Outgoing(sender, reply) for reply in replies] + self.flow.advance(now)

    def tick(self, now: float) -> list[Outgoing]:
        """Do everything that is due at time `now`; must be called about five times a second."""
        for session in self.sessions.silent(now):
            self.traffic.expired_leases += 1
            self._end(session, f"was silent for {now - session.heard:.1f} s: its lease has expired")
        return self._ask_again(now) + self.flow.advance(now)

    def malformed(self, sender: bytes, reason: str, now: float) -> list[Outgoing]:
        """Count bytes that cannot be decoded; only a member gets an answer."""
        member = self._hear(sender, now)
        self.traffic.malformed += 1
        self._malformed.warn(member.name if member else sender.hex(), reason)
        return [Outgoing(sender, Refused(reason))] if member else []

    def wrong_protocol(self, sender: bytes, reason: str, now: float) -> list[Outgoing]:
        """Answer a message of another protocol version with what to do about it."""
        self.malformed(sender, reason, now)
        return [Outgoing(sender, Refused(f"{reason}: install the same version of dpsr_apex"))]

    def request_save(self) -> list[Outgoing]:
        """Ask the learner for its state.

        `awaiting_state` is True until the state arrives, which increments `states_received`, or until the learner
        ends. Without a learner, nothing is awaited.
        """
        learner = self.sessions.learner
        if learner is None or self.awaiting_state:
            return []
        self.awaiting_state = True
        self._asked_at = None
        return [Outgoing(learner.address, SaveRequest())]

    def _ask_again(self, now: float) -> list[Outgoing]:
        """Repeat the request for the learner's state: the request or its answer may be lost with a connection."""
        learner = self.sessions.learner
        if learner is None or not self.awaiting_state:
            return []
        if self._asked_at is None or now - self._asked_at < self.config.system.lease / 2:
            self._asked_at = self._asked_at or now
            return []
        self._asked_at = now
        return [Outgoing(learner.address, SaveRequest())]

    def goodbye(self, finished: bool, reason: str) -> list[Outgoing]:
        """Tell all members to leave. From now on nothing is inserted or sampled, and nobody can join."""
        self._goodbye = Goodbye(finished, reason)
        refused = self.flow.close()
        return refused + [Outgoing(session.address, self._goodbye) for session in self.sessions]

    def save(self) -> State:
        """Return everything except the learner's state and the members, who will rejoin.

        Open recycling rounds are ended first with their results so far, because the replay cannot be saved with open
        rounds. To continue undisturbed, a service is saved in a forked copy of its process. The clock of the copy stays
        that of the process: a checkpoint of a later t would be mixed with rows that were logged before that t, and
        could be taken for the last one.
        """
        self.flow.expire_open_rounds(ticks=False)
        facts, arrays = self.replay.save()
        settled = {"received": self.traffic.inserted + self.traffic.refused}  # queued chunks will be sent again
        return State(
            {
                "replay": facts,
                "rate": self.rate.save().facts,
                "streams": self.flow.inbox.save(),
                "environment": self.sessions.environment,
                "traffic": self.traffic.counts() | settled,
            },
            arrays,
        )

    def load(self, state: State) -> None:
        """Restore a state returned by `save`; this service must be new."""
        facts = state.facts
        self.replay.load(facts["replay"], state.arrays)
        self.rate.load(State(facts["rate"], {}))
        self.flow.inbox.load(facts["streams"])
        self.sessions.environment = facts["environment"]
        self.traffic.load(facts["traffic"])

    def stats(self, now: float) -> Stats:
        """Return the statistics of the run."""
        members = self.sessions, self.learning, self._actors
        return make_stats(self.config, self.flow, *members, list(self.notes), self.row, now)

    def note(self, text: str) -> None:
        """Report an event that a user should see."""
        log.info(text)
        self._noted += 1
        self.notes.append(Note(self._noted, text))

    def drain_episodes(self) -> list[tuple[float, int]]:
        """Return the score and the length in steps of each episode that ended since the last call."""
        return self.flow.drain_episodes()

    def drain_learning(self) -> list[Learning]:
        """Return the learner's reports since the last call."""
        reports, self._reports = self._reports, []
        return reports

    def _answer_anyone(self, sender: bytes, message: Message, now: float, host: str) -> Replies | None:
        """Return the replies to a message that need not come from a member; None for other messages."""
        match message:
            case Hello():
                return [Terms(self.run_id, dump_config(self.config))]
            case Join():
                return self._join(sender, message, now, host)
            case Gone():
                return self._gone(message)
            case StatsRequest():
                return [self.stats(now)]
            case SetRate():
                return self._set_rate(message, now)
            case SetActors():
                return self._set_actors(message, now)
        return None

    def _answer_member(self, member: Session | None, message: Message) -> Replies:
        if member is None:
            self.traffic.strangers += 1
            return [Stranger()]
        try:
            return self._serve(member, message)
        except ValueError as error:
            return self._refuse(member.name, str(error))

    def _serve(self, member: Session, message: Message) -> Replies:
        """Return the replies to a member; raise ValueError, without changing anything, if its message is invalid."""
        if SENDERS.get(type(message), member.role) != member.role:
            raise ValueError(f"unexpected {type(message).__name__} from the {member.role} {member.name}")
        match message:
            case Heartbeat():
                self.flow.report_sent(member, message.sent)
                return [self._goodbye or Alive(self.t, self._actors, *self._weights)]
            case Leave():
                self.flow.report_sent(member, message.sent)
                self._end(member, "left")
            case Chunk():
                acknowledged = self.flow.take_chunk(member, message)
                return [acknowledged] if acknowledged else []
            case SampleRequest():
                self.flow.take_request()
            case Priorities():
                self.flow.take_priorities(message)
            case Recycled():
                self.flow.take_recycled(member, message)
            case Learning():
                self.learning = message
                self._reports.append(message)
            case LearnerState():
                self.learner_state, self.awaiting_state = message, False
                self.states_received += 1
            case _:
                raise ValueError(f"{type(message).__name__} is not for the replay")
        return []

    def _join(self, sender: bytes, join: Join, now: float, host: str) -> Replies:
        key = join.name, join.incarnation
        if self._goodbye:
            return self._refuse_late(join, self._goodbye.reason, host)
        if refusal := self.sessions.refusal(join, now):
            return self._refuse_join(join, refusal, host)
        predecessor = self.sessions.at(sender)
        if predecessor and predecessor.key != key:
            self._end(predecessor, f"is {join.name} now")
        namesake = self.sessions.named(join.name)
        if namesake and self.sessions.is_replaced_by(join, namesake, now):
            self._end(namesake, "is replaced by its restarted process")
        known = self.sessions.of(key)
        if known and known.address != sender:
            self.flow.actor_reconnected(known)
        session = self.sessions.enter(join, sender, now, host)
        self.traffic.joins += 1
        self.note(f"{session.title} joined{' again' if known else ''}")
        if session.role == "learner" and join.incarnation != self._trained_by:
            self._trained_by = join.incarnation
            self.rate.batches = self._updates_kept
        return self._welcome(session, join.sequence)

    def _refuse_join(self, join: Join, reason: str, host: str) -> Replies:
        self.traffic.refused_joins += 1
        self.note(f"{titled(shown(join.name), host)} was refused: {reason}")
        return [Refused(reason)]

    def _refuse_late(self, join: Join, reason: str, host: str) -> Replies:
        """Reject a Join while the run is ending; a member that has lost its link counts as having left."""
        if member := self.sessions.of((join.name, join.incarnation)):
            self._end(member, "left")
        return self._refuse_join(join, f"the run has ended: {reason}", host)

    def _welcome(self, session: Session, sequence: int) -> Replies:
        stream = self.flow.actor_joined(session, sequence) if session.role == "actor" else None
        expected = stream.accepted if stream else 0
        welcome = Welcome(self.flow.era, self.t, session.index, self._actors, expected, *self._weights)
        if stream:
            return [welcome, self.flow.acknowledgement(stream)]
        if session.role != "learner":
            return [welcome]
        self.flow.learner_joined()
        return [welcome, self.learner_state, *([SaveRequest()] if self.awaiting_state else [])]

    @property
    def _planned_actors(self) -> int:
        return self.config.system.actors or 1

    @property
    def _actors(self) -> int:
        """Return the number of planned actors, or of joined ones if that is larger."""
        return max([self._planned_actors, *(actor.index + 1 for actor in self.sessions.actors)])

    @property
    def _updates_kept(self) -> int:
        """Return the updates in the state that a new learner starts from: those lost in a crash are due again."""
        return int(json.loads(self.learner_state.facts)["updates"]) if self.learner_state.facts else 0

    def _gone(self, message: Gone) -> Replies:
        if session := self.sessions.named(message.name):
            self._end(session, "has died")
        return []

    def _end(self, session: Session, what: str) -> None:
        self.sessions.end(session)
        self.flow.member_ended(session)
        self.awaiting_state &= session.role != "learner"
        self.note(f"{session.title} {what}")

    def _set_rate(self, message: SetRate, now: float) -> Replies:
        steps = message.steps_per_update
        if steps < 0:
            return self._refuse("a user", f"steps_per_update must be >= 0, where 0 is free running (got {steps})")
        self.rate.change(self.t, steps)
        self.note(f"{steps} transitions per update from t = {self.t:,} on{'' if steps else ' (0: free running)'}")
        return [self.stats(now)]

    def _set_actors(self, message: SetActors, now: float) -> Replies:
        actors = message.actors
        if not 1 <= actors <= MOST_ACTORS:
            return self._refuse("a user", f"actors must be from 1 to {MOST_ACTORS:,} (got {actors})")
        self.config = replace(self.config, system=replace(self.config.system, actors=actors))
        self.sessions.planned = actors
        self.note(f"{actors} {'actor is' if actors == 1 else 'actors are'} planned from t = {self.t:,} on")
        return [self.stats(now)]

    def _refuse(self, name: str, reason: str) -> Replies:
        self.traffic.refused_messages += 1
        self._refused.warn(name, reason)
        return [Refused(reason)]

    def _hear(self, sender: bytes, now: float) -> Session | None:
        """Renew the lease of the member at this address, and return it; None if there is none."""
        member = self.sessions.at(sender)
        if member:
            member.heard = now
        return member

    @property
    def _weights(self) -> tuple[str, bytes]:
        """Return the learner's endpoint for weights and its public key; empty without a learner."""
        learner = self.sessions.learner
        return (learner.weights_endpoint, learner.weights_key) if learner else ("", b"")
