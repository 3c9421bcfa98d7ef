"""The replay service for the other processes of a run: membership, answers, and the end of a run.

A state machine: `handle` and `tick` are given an event and the time, and return the messages to send. It has no
sockets, files, threads or clock.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from dpsr_apex import timeouts
from dpsr_apex.config import Config
from dpsr_apex.config_files import dump_config
from dpsr_apex.protocol.conversions import stored_message, survey_parts
from dpsr_apex.protocol.events import Counted, EventLog
from dpsr_apex.protocol.flow import Flow, Outgoing
from dpsr_apex.protocol.learner_record import LearnerRecord
from dpsr_apex.protocol.members import Members, Replies
from dpsr_apex.protocol.notes import Notes
from dpsr_apex.protocol.rate_limiter import RateLimiter
from dpsr_apex.protocol.sessions import Session, Sessions
from dpsr_apex.protocol.stats import make_stats
from dpsr_apex.rate_limit import RateLimit
from dpsr_apex.replay.layout import Layout
from dpsr_apex.replay.replay import Replay
from dpsr_apex.state import State
from dpsr_apex.wire.messages import (
    SENDERS,
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
    SetActors,
    SetRate,
    Starts,
    StartsRequest,
    Stats,
    StatsRequest,
    StoredRequest,
    Stranger,
    SurveyRequest,
    Terms,
    Unusable,
)
from dpsr_apex.wire.statistics import Figure, Traffic

__all__ = ["Outgoing", "ReplayService"]

log = logging.getLogger(__name__)

MOST_STORED = 200  # stored transitions in one answer to an observer
MOST_ACTORS = 10_000  # that can be planned; a larger number is probably a typing error
DATA_NOTES = 20  # a minute, about bad data
MOST_EVICTED = 10_000  # transitions at a time, because the process takes too much memory
LEAST_EVICTED = 2**16  # bytes; a transition of Atari takes less, even uncompressed
MOST_AHEAD = 10**9  # updates that a learner in free running may have made without the replay's knowledge
MOST_REPEATED = 2  # updates that a learner may have made for each one that is due, in a run with a rate

RECORDED: Final = (Chunk, Priorities, Recycled, Unusable, Learning, SetRate)
"""Messages that change the replay. While the journal cannot be written, they are treated as lost."""


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
        self.learner = LearnerRecord(config.system.lease / 2, era)
        self.notes = Notes()
        self.members = Members(self.sessions, self.flow, self.learner, self.notes)
        self.starts = b""  # the file of moments at which some episodes begin; set from outside
        self._survey_at = -math.inf  # earliest time of the next survey
        self.row: dict[str, Figure] = {}  # the newest row of metrics, for the stats; set from outside
        self._counted: dict[str, int] = {}  # traffic that was recorded last
        self._now = 0.0  # when the last event happened
        self._data_notes = RateLimit(DATA_NOTES)

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
    def events(self) -> EventLog:
        """The events that have changed the state since they were last written to the journal."""
        return self.flow.events

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
        return self.members.goodbye is not None

    @property
    def held(self) -> str:
        """The reason why nothing may change; empty if it may."""
        return self.flow.held

    def hold(self, reason: str) -> None:
        """Change nothing until `release`: what was changed so far could not be recorded."""
        self.flow.held = reason
        self.notes.add(reason)

    def release(self) -> None:
        """Continue after `hold`."""
        self.flow.held = ""
        self.notes.add("The journal can be written again; the run continues.")

    @property
    def everybody_left(self) -> bool:
        """Whether there are no members."""
        return len(self.sessions) == 0

    def handle(self, sender: bytes, message: Message, now: float, role: str, host: str = "") -> list[Outgoing]:
        """Handle one message and return the messages to send.

        `role` is that of the sender's key; `host` is the sender's address, if it is on another machine.
        """
        member = self._hear(sender, now)
        if role not in SENDERS.get(type(message), ()):
            reason = f"{type(message).__name__} is not accepted with the {role}'s key"
            replies: Replies | None = self._refuse(member.name if member else "a client", reason)
        elif self.held and isinstance(message, RECORDED):
            replies = [Refused(self.held)] if isinstance(message, SetRate) else []  # the others will be repeated
        else:
            replies = self._answer_anyone(sender, message, now, role, host)
        if replies is None:
            replies = self._answer_member(member if member and member.role == role else None, message)
        return [Outgoing(sender, reply) for reply in replies] + self._advance(now)

    def tick(self, now: float) -> list[Outgoing]:
        """Do everything that is due at time `now`; must be called about five times a second."""
        self._now = now
        self.members.end_silent(now)
        counts = self.traffic.others()
        if counts != self._counted and not self.held:
            self._counted = counts
            self.events.add(Counted(counts))
        learner = self.sessions.learner
        asked = self.learner.tick(now) if learner else []
        return self._to_learner(asked) + self._advance(now)

    def _advance(self, now: float) -> list[Outgoing]:
        outgoing = self.flow.advance(now)
        for text in self.flow.drain_reports():
            self.notes.add_at_most(self._data_notes, text, now)
        return outgoing

    def heard(self, sender: bytes, now: float) -> None:
        """Renew the lease of a member that is sending a large message."""
        self._hear(sender, now)

    def drop(self, sender: bytes, reason: str) -> None:
        """End the membership of a process that takes too much; it may join again."""
        self.members.drop(sender, reason, self._now)

    def shrink(self, size: int, reason: str) -> None:
        """Quarantine the largest transitions, of `size` bytes together, because this process takes too much memory.

        Those of a usual size stay: they are not what somebody sends to fill the memory.
        """
        if not self.held:
            self.flow.evict(self.replay.largest(size, LEAST_EVICTED)[:MOST_EVICTED].tolist(), reason)

    def malformed(self, sender: bytes, reason: str, now: float) -> list[Outgoing]:
        """Count bytes that cannot be decoded; only a member gets an answer."""
        member = self._hear(sender, now)
        self.traffic.malformed += 1
        log.warning("cannot read a message: %s: %s", member.name if member else sender.hex(), reason)
        return [Outgoing(sender, Refused(reason))] if member else []

    def wrong_protocol(self, sender: bytes, reason: str, now: float) -> list[Outgoing]:
        """Answer a message of another protocol version with what to do about it."""
        self.malformed(sender, reason, now)
        return [Outgoing(sender, Refused(f"{reason}: install the same version of dpsr_apex"))]

    def request_save(self) -> list[Outgoing]:
        """Ask the learner for its state, unless it is missing or was asked already."""
        return self._to_learner(self.learner.request_state(self.rate.batches) if self.sessions.learner else [])

    def _to_learner(self, messages: Replies) -> list[Outgoing]:
        learner = self.sessions.learner
        return [Outgoing(learner.address, message) for message in messages] if learner else []

    def goodbye(self, finished: bool, reason: str) -> list[Outgoing]:
        """Tell all members to leave. From now on no chunk is inserted, nothing is sampled, and nobody can join."""
        self.members.goodbye = goodbye = Goodbye(finished, reason)
        refused = self.flow.close(finished)
        return refused + [Outgoing(session.address, goodbye) for session in self.sessions]

    def save(self) -> State:
        """Return everything except the learner's state and the members, who will rejoin."""
        facts, arrays = self.replay.save()
        return State(
            {
                "replay": facts,
                "rate": self.rate.save().facts,
                "streams": self.flow.inbox.save(),
                "state_t": self.learner.state_t,
                "environment": self.sessions.environment,
                "layout": [*self.sessions.layout],
                "trained_by": self.learner.trained_by,
                "strikes": self.flow.quarantine.save(),
                "traffic": self.traffic.at_rest(),
            },
            arrays,
        )

    def feed(self, update: Callable[[bytes], object]) -> None:
        """Pass everything that a recovery restores exactly to `update`, for a digest."""
        self.replay.feed(update)
        streams, counts = self.flow.inbox.settled_streams(), [self.traffic.inserted, self.traffic.refused]
        described = self.sessions.environment, self.sessions.layout
        strikes = self.flow.quarantine.save()
        facts = [self.rate.save().facts, streams, counts, described, self.learner.trained_by, strikes]
        update(json.dumps(facts).encode())

    def load(self, state: State) -> None:
        """Restore a state returned by `save`; this service must be new."""
        facts = state.facts
        self.replay.load(facts["replay"], state.arrays)
        self.rate.load(State(facts["rate"], {}))
        self.flow.quarantine.load(facts["strikes"])
        self.flow.inbox.load(facts["streams"])
        self.learner.state_t = facts.get("state_t", 0)
        self.sessions.environment, self.sessions.layout = facts["environment"], Layout(*facts["layout"])
        self.learner.trained_by = facts.get("trained_by")  # checkpoints of earlier versions lack it
        traffic = self.traffic
        traffic.load(facts["traffic"])
        traffic.lost = traffic.sent - traffic.inserted - traffic.refused  # until the members return

    def take_over(self, former: ReplayService) -> None:
        """Continue as a service with other settings, which is at rest and is not used any more; this one must be new.

        In contrast to a checkpoint, that one also has what is not part of `save`.
        """
        self.load(former.save())
        self.learner.take_over(former.learner)
        self.flow.take_over(former.flow)

    def stats(self, now: float) -> Stats:
        """Return the statistics of the run."""
        members = self.sessions, self.learner.report, self.members.actors
        return make_stats(self.config, self.flow, *members, list(self.notes.newest), self.row, now)

    def drain_episodes(self) -> list[tuple[float, int]]:
        """Return the score and the length in steps of each episode that ended since the last call."""
        return self.flow.drain_episodes()

    def _answer_anyone(self, sender: bytes, message: Message, now: float, role: str, host: str) -> Replies | None:
        """Return the replies to a message that need not come from a member; None for other messages."""
        match message:
            case Hello():
                return [Terms(self.run_id, dump_config(self.config))]
            case Join():
                return self.members.join(sender, message, role, host, now)
            case Gone():
                self.members.gone(message.name, now)
                return []
            case StatsRequest():
                return [self.stats(now)]
            case StartsRequest():
                return [Starts(self.starts)]
            case SurveyRequest():
                return self._survey(now)
            case StoredRequest():
                return self._stored(message)
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
        match message:
            case Heartbeat():
                self.flow.report_sent(member, message.sent)
                members = self.members
                return [members.goodbye or Alive(self.t, members.actors, members.weights_endpoint)]
            case Leave():
                self.flow.report_sent(member, message.sent)
                self.members.end(member, "left", self._now)
            case Chunk():
                acknowledged = self.flow.take_chunk(member, message)
                return [acknowledged] if acknowledged else []
            case SampleRequest():
                self.flow.take_request()
            case Priorities():
                self.flow.take_priorities(message)
            case Recycled():
                self.flow.take_recycled(member, message)
            case Unusable():
                self.flow.take_unusable(message)
            case Learning():
                self.learner.take_report(message)
                self.events.add(message)
            case LearnerState():
                self.learner.take_state(message, self.t, self._most_updates, self._now)
            case _:
                raise ValueError(f"{type(message).__name__} is not for the replay")
        return []

    @property
    def _most_updates(self) -> int:
        """Return how many updates the learner can have made at most.

        It may have made more than this process has sent batches, or than will ever be due: a replay that went back, as
        it does without a journal, sends batches again for updates that the learner has made.
        """
        due = self.rate.batches_due(self.config.run.total_steps)
        return max(self.rate.batches, MOST_AHEAD if math.isinf(due) else MOST_REPEATED * math.ceil(due))

    def _survey(self, now: float) -> Replies:
        if now < self._survey_at:
            return [Refused(f"one survey in {timeouts.SURVEY_GAP:g} s, because it delays the run")]
        self._survey_at = now + timeouts.SURVEY_GAP
        return survey_parts(self.replay, self.flow.era)

    def _stored(self, message: StoredRequest) -> Replies:
        if message.identities.size > MOST_STORED:
            return self._refuse("a user", f"at most {MOST_STORED} transitions (got {message.identities.size})")
        return [stored_message(self.replay, message.identities, self.flow.era)]

    def _set_rate(self, message: SetRate, now: float) -> Replies:
        steps = message.steps_per_update
        if steps < 0:
            return self._refuse("a user", f"steps_per_update must be >= 0, where 0 is free running (got {steps})")
        self.rate.change(self.t, steps)
        self.events.add(message)
        self.notes.add(f"{steps} transitions per update from t = {self.t:,} on{'' if steps else ' (0: free running)'}")
        return [self.stats(now)]

    def _set_actors(self, message: SetActors, now: float) -> Replies:
        actors = message.actors
        if not 1 <= actors <= MOST_ACTORS:
            return self._refuse("a user", f"actors must be from 1 to {MOST_ACTORS:,} (got {actors})")
        self.config = replace(self.config, system=replace(self.config.system, actors=actors))
        self.sessions.planned = actors
        self.notes.add(f"{actors} {'actor is' if actors == 1 else 'actors are'} planned from t = {self.t:,} on")
        return [self.stats(now)]

    def _refuse(self, name: str, reason: str) -> Replies:
        self.traffic.refused_messages += 1
        log.warning("refused a message: %s: %s", name, reason)
        return [Refused(reason)]

    def _hear(self, sender: bytes, now: float) -> Session | None:
        """Renew the lease of the member at this address, and return it; None if there is none."""
        self._now = now
        member = self.sessions.at(sender)
        if member:
            member.heard = now
        return member
