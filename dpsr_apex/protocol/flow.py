"""The data flow of the replay service: chunks in, batches out, recycling candidates out and results in.

A state machine without sockets and clock: messages to send are returned, and `now` is passed in.
"""

from __future__ import annotations

import logging
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dpsr_apex.config import Config
from dpsr_apex.protocol.conversions import batch_message, chains_of, recycle_request
from dpsr_apex.protocol.dispatch import Dispatch
from dpsr_apex.protocol.inbox import Inbox, Stream
from dpsr_apex.protocol.policy_age import PolicyAges
from dpsr_apex.protocol.rate_limiter import RateLimiter
from dpsr_apex.protocol.sessions import Session, Sessions
from dpsr_apex.protocol.throttle import Throttle
from dpsr_apex.replay.replay import Replay
from dpsr_apex.replay.transitions import Transitions
from dpsr_apex.wire.messages import Acknowledged, Chunk, Message, Priorities, Recycled, Refused
from dpsr_apex.wire.statistics import Traffic

log = logging.getLogger(__name__)


class Outgoing(NamedTuple):
    """A message to be sent."""

    address: bytes
    message: Message


class Warner:
    """Logs one kind of fault: the first ten and then every thousandth, because a client may cause millions."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._count = 0

    def warn(self, who: str, reason: str) -> None:
        """Count a fault, and log it if it is one of those."""
        self._count += 1
        if self._count <= 10 or self._count % 1000 == 0:
            log.warning("%s: %s: %s (number %d)", self._what, who, reason, self._count)


class Flow:
    """Moves transitions, batches and candidates between the members and the replay, and counts them."""

    def __init__(self, config: Config, replay: Replay, era: int, sessions: Sessions) -> None:
        self.replay = replay
        self.era = era
        self.rate = RateLimiter.of(config)
        self.traffic = Traffic()
        self.inbox = Inbox(config.system.in_flight, self.traffic)
        self.throttle = Throttle(config)
        self._in_flight = config.system.in_flight  # limit that the actors were told last
        self.policy_ages = PolicyAges()
        self.dispatch = Dispatch(config.system.recycle_deadline * config.replay.recycle_steps, self.traffic)
        self.credits = 0  # batches that the learner has requested but not received
        self.closed = False  # whether inserting and sampling have stopped
        self._prefetch = config.system.prefetch
        self._batch_size = config.learner.batch_size
        self._sessions = sessions
        self._episodes: list[tuple[float, int]] = []
        self._warner = Warner("refused a chunk")

    @property
    def t(self) -> int:
        """The clock: transitions inserted so far."""
        return self.replay.t

    @property
    def remaining_steps(self) -> int:
        """Transitions left to insert before the run is over."""
        return 0 if self.closed else self.replay.remaining

    @property
    def finished(self) -> bool:
        """Whether all transitions are inserted, no update is due and no round is open."""
        nothing_owed = self.rate.steps_per_update == 0 or not self.rate.may_sample(self.t)
        return self.replay.is_over and nothing_owed and not self.replay.rounds

    def advance(self, now: float) -> list[Outgoing]:
        """Do everything that is possible now. Batches come first, so that they are sampled as soon as they are due.

        Only the ends of rounds precede them: their chains tick the clock, and may leave steps to the actors. After the
        last step, chunks and their actors wait for the end of the run, so that no transition is discarded.
        """
        self._end_rounds(now)
        outgoing = self._send_batches()
        while self.inbox and (self.closed or self._may_insert):
            outgoing += self._settle_next_chunk(now)
            outgoing += self._send_batches()
        self.throttle.observe(bool(self.inbox), now)
        return outgoing + self._send_limit() + self._send_candidates()

    def close(self) -> list[Outgoing]:
        """Stop inserting and sampling; queued and future chunks are rejected."""
        self.closed = True
        self.credits = 0
        self.expire_open_rounds()
        return self.advance(now=0.0)

    def actor_reconnected(self, actor: Session) -> None:
        """Reassign its candidates, because messages to its former address may be lost."""
        self.dispatch.release(actor.name)

    def actor_joined(self, actor: Session, sequence: int) -> Stream:
        """Return the stream of an actor that can no longer send chunks before `sequence`."""
        return self.inbox.begin(actor.key, sequence)

    def learner_joined(self) -> None:
        """Discard the learner's requests: it repeats them after joining."""
        self.credits = 0

    def member_ended(self, member: Session) -> None:
        """Discard the requests of a member that has left, or reassign its candidates."""
        if member.role == "actor":
            self.inbox.end(member.key)
            self.dispatch.release(member.name)
        elif member.role == "learner":
            self.credits = 0

    def report_sent(self, member: Session, sent: int) -> None:
        """Record an actor's own count of the transitions that it has sent."""
        if member.role == "actor":
            self.inbox.report_sent(member.key, sent)

    def take_chunk(self, actor: Session, chunk: Chunk) -> Acknowledged | None:
        """Queue a chunk; if it is out of order, return an acknowledgement of the chunks settled so far."""
        stream = self.inbox.stream(actor.key)
        return None if self.inbox.put(stream, chunk) else self.acknowledgement(stream)

    def acknowledgement(self, stream: Stream) -> Acknowledged:
        """Return the acknowledgement of the chunks settled so far."""
        return Acknowledged(stream.settled, self.t, self.rate.batches, self._in_flight)

    def take_request(self) -> None:
        """Count the learner's request for one more batch."""
        if self.closed:
            return
        if self.credits < self._prefetch:
            self.credits += 1
        else:
            self.traffic.dropped_requests += 1

    def take_priorities(self, message: Priorities) -> None:
        """Set new priorities; raise ValueError, without changing anything, if one is invalid."""
        if self._is_of_this_era(message.era):
            self.replay.update_priorities(message.identities, message.td_errors)

    def take_recycled(self, actor: Session, message: Recycled) -> None:
        """Apply results of recycling; raise ValueError, without changing anything, if they do not match the request."""
        if self._is_of_this_era(message.era):
            self.replay.answer(message.round_number, chains_of(message))
            self.dispatch.answered(message.round_number, message.identities.tolist())
            self.dispatch.failed(message.round_number, message.failed.tolist(), actor.name)

    def expire_open_rounds(self, ticks: bool = True) -> None:
        """End every recycling round with the results so far; without `ticks`, t stays as it is."""
        self.dispatch.clear()
        for number in list(self.replay.rounds):
            self.replay.expire(number, ticks)

    def drain_episodes(self) -> list[tuple[float, int]]:
        """Return the score and the length in steps of each episode that ended since the last call."""
        episodes, self._episodes = self._episodes, []
        return episodes

    def _is_of_this_era(self, era: int) -> bool:
        """Whether the identities and round numbers in an answer were assigned by this replay process."""
        self.traffic.stale_eras += era != self.era
        return era == self.era

    @property
    def _may_insert(self) -> bool:
        """Whether the next chunk may be inserted; one that fits only partly waits for the steps of open rounds."""
        left = self.remaining_steps
        is_whole = self.inbox.next_size <= left or not self.replay.is_reserving
        return left > 0 and is_whole and self.rate.may_insert(self.t)

    def _settle_next_chunk(self, now: float) -> list[Outgoing]:
        stream, chunk = self.inbox.pop()
        refusal = self._insert(stream.key[0], chunk, now)
        actor = self._sessions.of(stream.key)
        if actor is None:
            return []
        replies: list[Message] = [self.acknowledgement(stream), *([Refused(refusal)] if refusal else [])]
        return [Outgoing(actor.address, reply) for reply in replies]

    def _insert(self, name: str, chunk: Chunk, now: float) -> str:
        """Insert as many transitions as the run still needs; return "", or the reason why the replay rejected them."""
        count = len(chunk.transitions)
        taken = min(count, self.remaining_steps)
        updates_due = self._updates_due
        try:
            episodes = list(zip(chunk.scores.tolist(), chunk.lengths.tolist(), strict=True))
            rounds = self.replay.insert(*_first(chunk, taken))
        except ValueError as error:
            self.traffic.refused += count
            self.traffic.refused_messages += 1
            self._warner.warn(f"{name}, {count} transitions", str(error))
            return str(error)
        self.traffic.inserted += taken
        self.policy_ages.add(updates_due, chunk.policy, taken)
        self.traffic.refused += count - taken
        if self.remaining_steps or taken:
            self._episodes += episodes
        for round_ in rounds:
            self.dispatch.open(recycle_request(round_, self.era), now)
        return ""

    @property
    def _updates_due(self) -> float:
        """The updates that a policy without delay has at this clock."""
        return self.rate.batches if self.rate.steps_per_update == 0 else self.rate.batches_due(self.t)

    def _send_batches(self) -> list[Outgoing]:
        learner = self._sessions.learner
        outgoing = []
        while learner and self.credits and self.rate.may_sample(self.t):
            self.credits -= 1
            self.rate.batches += 1
            sample = self.replay.sample(self._batch_size)
            outgoing.append(Outgoing(learner.address, batch_message(sample, self.t, self.era)))
        return outgoing

    def _end_rounds(self, now: float) -> None:
        """End rounds that cannot be completed; completed rounds end by themselves."""
        for number in self.dispatch.over(now):
            if number in self.replay.rounds:
                self.replay.expire(number)

    def _send_limit(self) -> list[Outgoing]:
        """Tell the actors at once if they may have more or fewer transitions in flight."""
        actors = self._sessions.actors
        in_flight = self.throttle.limit(len(actors), self.rate.steps_per_update)
        if in_flight == self._in_flight:
            return []
        self._in_flight = in_flight
        return [Outgoing(actor.address, self.acknowledgement(self.inbox.stream(actor.key))) for actor in actors]

    def _send_candidates(self) -> list[Outgoing]:
        if not self.dispatch.has_waiting:
            return []
        addresses = {actor.name: actor.address for actor in self._sessions.actors}
        return [Outgoing(addresses[name], recycle) for name, recycle in self.dispatch.assign(addresses)]


def _first(chunk: Chunk, count: int) -> tuple[Transitions, NDArray[np.float64] | None]:
    """Return the first `count` transitions of a chunk, and their TD errors."""
    if count == len(chunk.transitions):
        return chunk.transitions, chunk.td_errors
    td_errors = None if chunk.td_errors is None else chunk.td_errors[:count]
    return chunk.transitions.rows(0, count), td_errors
