"""The replay among many processes: who is in the run, what everybody is told, and how it ends.

A state machine: `handle` and `tick` take what happened and the time, and return what is to be sent. It has no sockets,
no files, no threads and no clock.
"""

from __future__ import annotations

import json
import logging
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from dpsr_apex.config import Config
from dpsr_apex.config_files import dump_config
from dpsr_apex.roles.flow import Flow, Outgoing
from dpsr_apex.roles.replay_server import ReplayServer
from dpsr_apex.roles.sessions import Session, Sessions, shown, titled
from dpsr_apex.roles.stats import describe_flow, describe_members, who_waits
from dpsr_apex.roles.traffic import Traffic, Warner
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

__all__ = ["Outgoing", "ReplayService"]

log = logging.getLogger(__name__)

MOST_ACTORS = 10_000  # that can be planned: a number with a digit too many is to be noticed

Replies = Sequence[Message]
"""To the one whose message it was."""

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
    """Serves the replay of one run to its actors, its learner and its onlookers.

    `emulator` is the version of ale-py that everybody must have. Its `config` is another one when the number of actors
    was changed, and never else.
    """

    def __init__(self, config: Config, server: ReplayServer, run_id: str, emulator: str) -> None:
        self.config = config
        self.run_id = run_id
        self.server = server
        self.sessions = Sessions(run_id, emulator, config.system.lease, config.system.actors or 1)
        self.flow = Flow(config, server, self.sessions)
        self.learning: Learning | None = None  # the newest
        self.learner_state = LearnerState("", b"")  # the newest; empty if there is none
        self.states_received = 0
        self.awaiting_state = False  # the learner was asked for its state, and neither that nor its end has come
        self._asked_at: float | None = None  # when that was last asked for, from the next tick on
        self._learnt_by: int | None = None  # the incarnation of the learner that has all updates so far
        self.notes: deque[tuple[int, str]] = deque(maxlen=100)  # numbered: what a person should read
        self.row: dict[str, Any] = {}  # the newest row of metrics, for the stats; set from outside
        self._goodbye: Goodbye | None = None
        self._noted = 0
        self._reports: list[Learning] = []
        self._refused, self._malformed = Warner("refused a message"), Warner("cannot read a message")

    @property
    def t(self) -> int:
        """The one clock: transitions inserted so far."""
        return self.flow.t

    @property
    def traffic(self) -> Traffic:
        """What went through so far."""
        return self.flow.traffic

    @property
    def finished(self) -> bool:
        """Whether the last transition is in and no update is owed."""
        return self.flow.finished

    @property
    def ending(self) -> bool:
        """Whether everybody was told to leave."""
        return self._goodbye is not None

    @property
    def everybody_left(self) -> bool:
        """Whether nobody is in the run (any more)."""
        return len(self.sessions) == 0

    def handle(self, sender: bytes, message: Message, now: float, host: str = "") -> list[Outgoing]:
        """Take one message, from a `host` if not from this machine; what is to be sent because of it."""
        member = self._hear(sender, now)
        replies = self._answer_anyone(sender, message, now, host)
        if replies is None:
            replies = self._answer_member(member, message)
        return [Outgoing(sender, reply) for reply in replies] + self.flow.go_on(now)

    def tick(self, now: float) -> list[Outgoing]:
        """What the passing of time alone leads to; to be called about five times a second."""
        for session in self.sessions.silent(now):
            self.traffic.expired_leases += 1
            self._end(session, f"was silent for {now - session.heard:.1f} s and counts as gone")
        return self._ask_again(now) + self.flow.go_on(now)

    def malformed(self, sender: bytes, reason: str, now: float) -> list[Outgoing]:
        """Something came that is no message; only a member is told so."""
        member = self._hear(sender, now)
        self.traffic.malformed += 1
        self._malformed.warn(member.name if member else sender.hex(), reason)
        return [Outgoing(sender, Refused(reason))] if member else []

    def wrong_protocol(self, sender: bytes, reason: str, now: float) -> list[Outgoing]:
        """A message of another version of the protocol came; whoever sent it is told so, and what to do."""
        self.malformed(sender, reason, now)
        return [Outgoing(sender, Refused(f"{reason}: install the same version of dpsr_apex"))]

    def request_save(self) -> list[Outgoing]:
        """Ask the learner for its state.

        `awaiting_state` is True until it has come, when `states_received` is one more and `learner_state` is it, or
        until the learner is gone. Without a learner nothing is awaited.
        """
        learner = self.sessions.learner
        if learner is None or self.awaiting_state:
            return []
        self.awaiting_state = True
        self._asked_at = None
        return [Outgoing(learner.address, SaveRequest())]

    def _ask_again(self, now: float) -> list[Outgoing]:
        """A link that breaks for a moment loses a question or its answer without a word; a repeat is harmless."""
        learner = self.sessions.learner
        if learner is None or not self.awaiting_state:
            return []
        if self._asked_at is None or now - self._asked_at < self.config.system.lease / 2:
            self._asked_at = self._asked_at or now
            return []
        self._asked_at = now
        return [Outgoing(learner.address, SaveRequest())]

    def goodbye(self, finished: bool, reason: str) -> list[Outgoing]:
        """Tell everybody to leave. From now on nothing is inserted or drawn, and nobody can join."""
        self._goodbye = Goodbye(finished, reason)
        refused = self.flow.close()
        return refused + [Outgoing(session.address, self._goodbye) for session in self.sessions]

    def save(self) -> State:
        """Everything but the learner's state and the members, who will join again.

        Open recycling rounds are ended first, with what has arrived: the replay cannot be saved with them. So a service
        that is to go on as if nothing had been is saved in a copy of its process.
        """
        self.flow.forget_open_rounds()
        facts, arrays = self.server.save()
        settled = {"received": self.traffic.inserted + self.traffic.refused}  # what is queued will be sent again
        return State(
            {
                "server": facts,
                "streams": self.flow.inbox.save(),
                "environment": self.sessions.environment,
                "traffic": self.traffic.counts() | settled,
            },
            arrays,
        )

    def load(self, state: State) -> None:
        """Become what `save` was called on; this one must be new."""
        facts = state.facts
        self.server.load(State(facts["server"], state.arrays))
        self.flow.inbox.load(facts["streams"])
        self.sessions.environment = facts["environment"]
        self.traffic.load(facts["traffic"])

    def stats(self, now: float) -> dict[str, Any]:
        """How things are, ready for JSON."""
        return {
            **describe_flow(self.config, self.flow),
            **describe_members(self.config, self.flow, self.sessions, self.learning, self._actors, now),
            "planned_actors": self._planned_actors,
            "waiting": who_waits(self.flow, self.sessions, now),
            "ending": self.ending,
            "notes": [list(note) for note in self.notes],
            "row": self.row,
        }

    def note(self, text: str) -> None:
        """Say something that a person should read."""
        log.info(text)
        self._noted += 1
        self.notes.append((self._noted, text))

    def drain_games(self) -> list[tuple[float, int]]:
        """Score and length in steps of each game that ended since the last call."""
        return self.flow.drain_games()

    def drain_learning(self) -> list[Learning]:
        """The learner's reports since the last call."""
        reports, self._reports = self._reports, []
        return reports

    def _answer_anyone(self, sender: bytes, message: Message, now: float, host: str) -> Replies | None:
        """Replies to what need not come from a member; None for all else."""
        match message:
            case Hello():
                return [Terms(self.run_id, dump_config(self.config))]
            case Join():
                return self._join(sender, message, now, host)
            case Gone():
                return self._gone(message)
            case StatsRequest():
                return [self._stats(now)]
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
        """Replies to a member; a ValueError says what is wrong with its message, which has changed nothing then."""
        if SENDERS.get(type(message), member.role) != member.role:
            raise ValueError(f"{type(message).__name__} came from the {member.role} {member.name}")
        match message:
            case Heartbeat():
                self.flow.hear_sent(member, message.sent)
                return [self._goodbye or Alive(self.t, self._actors, *self._weights)]
            case Leave():
                self.flow.hear_sent(member, message.sent)
                self._end(member, "left")
            case Chunk():
                acknowledged = self.flow.take_chunk(member, message)
                return [acknowledged] if acknowledged else []
            case SampleRequest():
                self.flow.take_request(message)
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
        if namesake and self.sessions.gives_way(namesake, join, now):
            self._end(namesake, "gives way to its next life")
        known = self.sessions.of(key)
        if known and known.address != sender:  # what was on its way to it may be lost
            self.flow.actor_moved(known)
        session = self.sessions.enter(join, sender, now, host)
        self.traffic.joins += 1
        self.note(f"{session.title} joined{' again' if known else ''}")
        if session.role == "learner" and join.incarnation != self._learnt_by:
            self._learnt_by = join.incarnation
            self.server.rate.batches = self._updates_kept
        return self._welcome(session, join.sequence)

    def _refuse_join(self, join: Join, reason: str, host: str) -> Replies:
        self.traffic.refused_joins += 1
        self.note(f"{titled(shown(join.name), host)} was refused: {reason}")
        return [Refused(reason)]

    def _refuse_late(self, join: Join, reason: str, host: str) -> Replies:
        """Nobody comes in again; one that lost its link while everybody leaves is gone."""
        if member := self.sessions.of((join.name, join.incarnation)):
            self._end(member, "left")
        return self._refuse_join(join, f"the run has ended: {reason}", host)

    def _welcome(self, session: Session, sequence: int) -> Replies:
        expected = self.flow.actor_joined(session, sequence) if session.role == "actor" else 0
        welcome = Welcome(self.server.era, self.t, session.index, self._actors, expected, *self._weights)
        if session.role != "learner":
            return [welcome]
        self.flow.learner_joined()
        return [welcome, self.learner_state, *([SaveRequest()] if self.awaiting_state else [])]

    @property
    def _planned_actors(self) -> int:
        return self.config.system.actors or 1

    @property
    def _actors(self) -> int:
        """How many are planned, or have come if that is more."""
        return max([self._planned_actors, *(actor.index + 1 for actor in self.sessions.actors)])

    @property
    def _updates_kept(self) -> int:
        """Updates in the state that a new learner goes on from: those that a dead one took along are owed again."""
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
            return self._refuse("a person", f"steps_per_update = {steps}: at least 0, which is free running")
        self.server.rate.change(self.t, steps)
        self.note(f"{steps} transitions per update from t = {self.t:,} on{'' if steps else ' (0: free running)'}")
        return [self._stats(now)]

    def _set_actors(self, message: SetActors, now: float) -> Replies:
        actors = message.actors
        if not 1 <= actors <= MOST_ACTORS:
            return self._refuse("a person", f"actors = {actors}: from 1 to {MOST_ACTORS:,} can be planned")
        self.config = replace(self.config, system=replace(self.config.system, actors=actors))
        self.sessions.planned = actors
        self.note(f"{actors} {'actor is' if actors == 1 else 'actors are'} planned from t = {self.t:,} on")
        return [self._stats(now)]

    def _stats(self, now: float) -> Stats:
        return Stats(json.dumps(self.stats(now)))

    def _refuse(self, name: str, reason: str) -> Replies:
        self.traffic.refused_messages += 1
        self._refused.warn(name, reason)
        return [Refused(reason)]

    def _hear(self, sender: bytes, now: float) -> Session | None:
        """The member at this address, whose lease begins anew."""
        member = self.sessions.at(sender)
        if member:
            member.heard = now
        return member

    @property
    def _weights(self) -> tuple[str, bytes]:
        """Where the learner serves them; empty without one."""
        learner = self.sessions.learner
        return (learner.weights_endpoint, learner.weights_key) if learner else ("", b"")
