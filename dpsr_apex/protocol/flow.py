"""The data flow of the replay service: chunks in, batches out, recycling candidates out and results in.

A state machine without sockets and clock: messages to send are returned, and `now` is passed in.
"""

from __future__ import annotations

import logging
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dpsr_apex.config import Config
from dpsr_apex.formatting import counted
from dpsr_apex.protocol.conversions import batch_message, chains_of, recycle_request
from dpsr_apex.protocol.dispatch import Dispatch
from dpsr_apex.protocol.events import Advanced, EventLog, Evicted, Expired, Late, Reported, Sampled, Sender, Struck
from dpsr_apex.protocol.inbox import Inbox, Stream
from dpsr_apex.protocol.policy_age import PolicyAges
from dpsr_apex.protocol.quarantine import Quarantine, readable
from dpsr_apex.protocol.rate_limiter import RateLimiter
from dpsr_apex.protocol.sessions import Session, Sessions
from dpsr_apex.protocol.throttle import Throttle
from dpsr_apex.protocol.validation import Faults, Validation, good_chains
from dpsr_apex.replay.records import Round
from dpsr_apex.replay.replay import Replay
from dpsr_apex.replay.transitions import Transitions, share_frames
from dpsr_apex.wire.messages import Acknowledged, Chunk, Message, Priorities, Recycled, Refused, Unusable
from dpsr_apex.wire.statistics import Traffic

NO_IDENTITIES: Final = np.zeros(0, dtype=np.int64)

log = logging.getLogger(__name__)


class Outgoing(NamedTuple):
    """A message to be sent."""

    address: bytes
    message: Message


class Inserted(NamedTuple):
    """What became of a chunk."""

    refusal: str  # why the replay rejected all of it; empty if it did not
    faults: Faults  # the transitions that were not stored because they are bad
    rounds: list[Round]  # recycling rounds that were opened


class Flow:
    """Moves transitions, batches and candidates between the members and the replay, and counts them."""

    def __init__(self, config: Config, replay: Replay, era: int, sessions: Sessions) -> None:
        self.replay = replay
        self.era = era
        self.rate = RateLimiter.of(config)
        self.traffic = Traffic()
        self.events = EventLog()
        self.inbox = Inbox(config.system.in_flight, self.traffic)
        self.throttle = Throttle(config)
        self._in_flight = config.system.in_flight  # limit that the actors were told last
        self.policy_ages = PolicyAges()
        self.dispatch = Dispatch(config.system.recycle_deadline * config.replay.recycle_steps, self.traffic)
        self.credits = 0  # batches that the learner has requested but not received
        self.closed = False  # whether inserting and sampling have stopped
        self.held = ""  # why nothing may change at the moment; empty if it may
        self._takes_chunks = True  # False in a run that was stopped: they stay with their actors, unacknowledged
        self._prefetch = config.system.prefetch
        self.batch_size = config.learner.batch_size
        self._sessions = sessions
        self._has_resumed = True  # the rounds of a loaded replay are not assigned yet
        self._episodes: list[tuple[float, int]] = []
        self._validation = Validation(config)
        self.quarantine = Quarantine(replay)
        self._reports: list[str] = []  # of bad data, for the user

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
        nothing_owed = self.rate.steps_per_update == 0 or not self._may_sample
        return self.replay.is_over and nothing_owed and not self.replay.rounds

    def advance(self, now: float) -> list[Outgoing]:
        """Do everything that is possible now. Batches come first, so that they are sampled as soon as they are due.

        Only the ends of rounds precede them: their chains tick the clock, and may leave steps to the actors. After the
        last step, chunks and their actors wait for the end of the run, so that no transition is discarded.
        """
        if self.held:
            return []
        self._reopen_rounds(now)
        self._end_rounds(now)
        outgoing = self._send_batches()
        while self.inbox and (self.closed or self._may_insert):
            outgoing += self._settle_next_chunk(now)
            outgoing += self._send_batches()
        self.throttle.observe(bool(self.inbox), now)
        return outgoing + self._send_limit() + self._send_candidates()

    def close(self, finished: bool) -> list[Outgoing]:
        """Stop inserting and sampling.

        Queued and future chunks of a finished run are rejected. Those of a run that was stopped are not acknowledged,
        because they will not be stored.
        """
        self.closed, self._takes_chunks = True, finished
        self.credits = 0
        self.dispatch.clear()
        if not finished:
            self.inbox.return_queued()
        return self.advance(now=0.0)

    def take_over(self, former: Flow) -> None:
        """Take from another flow what belongs to the next row of metrics, to the quarantine folder and to the user."""
        self._episodes, self._reports, self.policy_ages = former._episodes, former._reports, former.policy_ages
        self.quarantine.take_over(former.quarantine)

    def actor_reconnected(self, actor: Session) -> None:
        """Reassign its candidates, because messages to its former address may be lost."""
        self.dispatch.release(actor.name)

    def actor_joined(self, actor: Session, sequence: int, acknowledged: int) -> Stream:
        """Return the stream of an actor that can no longer send chunks before `sequence`, with those transitions."""
        if self.inbox.would_skip(actor.key, sequence):
            self.events.add(Advanced(*actor.key, sequence, acknowledged))
        return self.inbox.begin(actor.key, sequence, acknowledged)

    def learner_joined(self) -> None:
        """Discard the learner's requests: it repeats them after joining."""
        self.credits = 0

    def member_ended(self, member: Session, has_died: bool) -> None:
        """Discard the requests of a member that is gone, or reassign its candidates.

        If it has died, one of the states that it was re-entering may be the cause.
        """
        if member.role == "actor":
            self.inbox.end(member.key)
            released = self.dispatch.release(member.name, has_died)
            self.strike(released if has_died else [], f"{member.name} has died while it re-entered the state")
        elif member.role == "learner":
            self.credits = 0

    def report_sent(self, member: Session, sent: int) -> None:
        """Record an actor's own count of the transitions that it has sent."""
        if member.role == "actor" and not self.held and self.inbox.report_sent(member.key, sent):
            self.events.add(Reported(*member.key, sent))

    def take_chunk(self, actor: Session, chunk: Chunk) -> Acknowledged | None:
        """Queue a chunk; if it is out of order, return an acknowledgement of the chunks settled so far.

        Raise ValueError for an empty one, which would take memory and never count against the actor's limit.
        """
        if not len(chunk.transitions):
            raise ValueError("a chunk has no transitions")
        if not self._takes_chunks:
            return None
        stream = self.inbox.stream(actor.key)
        return None if self.inbox.put(stream, chunk) else self.acknowledgement(stream)

    def acknowledgement(self, stream: Stream) -> Acknowledged:
        """Return the acknowledgement of the chunks settled so far."""
        return Acknowledged(stream.settled, self.t, self.rate.batches, self._in_flight, stream.bad)

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
            self.events.add(message)

    def take_recycled(self, actor: Session, message: Recycled) -> None:
        """Apply results of recycling; raise ValueError, without changing anything, if they do not match the request."""
        if not self._is_of_this_era(message.era):
            return
        if len(message.reasons) != message.failed.size:
            raise ValueError(f"there are {len(message.reasons)} reasons for {message.failed.size} failures")
        number = message.round_number
        if number in self.replay.rounds:
            dropped = self.answer(message)
            self.events.add(message._replace(failed=NO_IDENTITIES, reasons=[]))  # failures are events of their own
            if dropped:
                self._reports.append(f"{actor.title}: {counted(len(dropped), 'result')} of recycling refused: bad data")
            self.dispatch.failed(number, dropped, actor.name)
        else:
            late = Late(message.identities.size, self._steps_late(actor, message))
            self.replay.count_late(*late)
            self.events.add(late)
        self.dispatch.answered(number, message.identities.tolist())
        reasons = dict(zip(message.failed.tolist(), message.reasons, strict=True))
        for identity in self.dispatch.failed(number, reasons, actor.name):
            self.strike([identity], reasons[identity])

    def answer(self, message: Recycled) -> list[int]:
        """Give results of recycling to the replay; drop the chains with bad transitions, and return their candidates.

        Raise ValueError, without changing anything, if the message does not match the request.
        """
        chains = chains_of(message)
        faults = self._validation.faults(chains.transitions, None, self._sessions.layout)
        good = good_chains(chains, faults) if faults else chains
        self.replay.answer(message.round_number, good)
        self._count(faults)
        return sorted(set(chains.identities.tolist()) - set(good.identities.tolist()))

    def _steps_late(self, actor: Session, message: Recycled) -> int:
        """Return the steps in results for a round that has ended, as far as the actor was asked to take them.

        They count as environment steps, which may end a run: nobody can add as many as they like.
        """
        overdue = self.dispatch.overdue(actor.name)
        steps = np.clip(message.lengths, 0, self.replay.config.recycle_steps)
        first = np.unique(message.identities, return_index=True)[1]
        return int(steps[first][np.isin(message.identities[first], overdue)].sum())

    def drain_episodes(self) -> list[tuple[float, int]]:
        """Return the score and the length in steps of each episode that ended since the last call."""
        episodes, self._episodes = self._episodes, []
        return episodes

    def take_unusable(self, message: Unusable) -> None:
        """Quarantine transitions that the learner cannot train on."""
        self.traffic.unusable += message.identities.size
        if self._is_of_this_era(message.era):
            self.evict(message.identities.tolist(), message.reason)

    def evict(self, identities: list[int], reason: str) -> None:
        """Quarantine those of these transitions that are stored."""
        reason = readable(reason)
        self._withdraw(self.quarantine.evict(identities, reason), reason)
        self.events.add(Evicted(identities, reason))

    def strike(self, identities: list[int], reason: str) -> None:
        """Note that these states could not be re-entered; quarantine those to which it has happened before."""
        if identities and not self.held:
            reason = readable(reason)
            self._withdraw(self.quarantine.strike(identities, reason), reason)
            self.events.add(Struck(identities, reason))

    def _withdraw(self, evicted: list[int], reason: str) -> None:
        if evicted:
            self.dispatch.withdraw(evicted)
            who = f"transition {evicted[0]}" if len(evicted) == 1 else counted(len(evicted), "transition")
            self._reports.append(f"Quarantined {who}: {reason}")

    def drain_reports(self) -> list[str]:
        """Return the texts about bad data since the last call."""
        reports, self._reports = self._reports, []
        return reports

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
        self.events.add_chunk(Sender(*stream.key), chunk)
        refusal, faults, rounds = self.insert(stream, chunk)
        if faults:
            stream.bad += len(faults)
            self.quarantine.refuse(stream.key[0], faults)
            refused = f"{len(faults)} of {counted(len(chunk.transitions), 'transition')} refused"
            self._reports.append(f"{stream.key[0]}: {refused}: {next(iter(faults.values())).reason}")
        for round_ in rounds:
            self.dispatch.open(recycle_request(round_, self.era), now)
        actor = self._sessions.of(stream.key)
        if actor is None:
            return []
        replies: list[Message] = [self.acknowledgement(stream), *([Refused(refusal)] if refusal else [])]
        return [Outgoing(actor.address, reply) for reply in replies]

    def insert(self, stream: Stream, chunk: Chunk) -> Inserted:
        """Insert as many of the good transitions of an actor's chunk as the run still needs."""
        count = len(chunk.transitions)
        faults = self._validation.faults(chunk.transitions, chunk.td_errors, self._sessions.layout)
        taken = min(count - len(faults), self.remaining_steps)
        updates_due = self._updates_due
        try:
            # Each episode ends with one of the transitions: more are made up, and would take memory until the next row.
            episodes = list(zip(chunk.scores.tolist(), chunk.lengths.tolist(), strict=True))[:count]
            rounds = self._store(stream, *_good(chunk, faults, taken)) if taken else []
        except ValueError as error:
            self.traffic.refused += count
            self.traffic.refused_messages += 1
            log.warning("refused a chunk: %s, %d transitions: %s", stream.key[0], count, error)
            return Inserted(str(error), {}, [])
        self._count(faults)
        self.traffic.inserted += taken
        self.policy_ages.add(updates_due, chunk.policy, taken)
        self.traffic.refused += count - taken
        if self.remaining_steps or taken:
            self._episodes += episodes
        return Inserted("", faults, rounds)

    def _store(self, stream: Stream, transitions: Transitions, td_errors: NDArray[np.float64] | None) -> list[Round]:
        """Insert transitions that follow those of earlier chunks, whose frames are not stored twice."""
        share_frames(transitions, stream.newest)
        rounds = self.replay.insert(transitions, td_errors)
        stream.newest = transitions.s_t[-1]
        return rounds

    def _count(self, faults: Faults) -> None:
        for fault in faults.values():
            name = f"bad_{fault.kind}"
            setattr(self.traffic, name, getattr(self.traffic, name) + 1)

    @property
    def _updates_due(self) -> float:
        """The updates that a policy without delay has at this clock."""
        return self.rate.batches if self.rate.steps_per_update == 0 else self.rate.batches_due(self.t)

    def _send_batches(self) -> list[Outgoing]:
        learner = self._sessions.learner
        outgoing = []
        while learner and self.credits and self._may_sample:
            self.credits -= 1
            self.rate.batches += 1
            sample = self.replay.sample(self.batch_size)
            self.events.add(Sampled(1))
            outgoing.append(Outgoing(learner.address, batch_message(sample, self.t, self.era)))
        return outgoing

    @property
    def _may_sample(self) -> bool:
        """Whether a batch is due; a replay may be empty again if all of its transitions were quarantined."""
        return self.rate.may_sample(self.t) and self.replay.size > 0

    def _reopen_rounds(self, now: float) -> None:
        """Assign the candidates of rounds that were opened by an earlier process, unless they are answered.

        If a state that is stored has a strike, an actor may have died with it.
        """
        if self._has_resumed:
            self._has_resumed = False
            self.dispatch.must_try = self.quarantine.has_strikes
            for round_ in self.replay.rounds.values():
                self.dispatch.open(recycle_request(round_, self.era), now, answered=round_.answers)

    def _end_rounds(self, now: float) -> None:
        """End rounds that cannot be completed; completed rounds end by themselves."""
        for number in self.dispatch.over(now):
            if number in self.replay.rounds:
                self._expire(number)

    def _expire(self, number: int) -> None:
        self.replay.expire(number)
        self.events.add(Expired(number))

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


def _good(chunk: Chunk, faults: Faults, count: int) -> tuple[Transitions, NDArray[np.float64] | None]:
    """Return the first `count` transitions of a chunk without a fault, and their TD errors."""
    if count == len(chunk.transitions):
        return chunk.transitions, chunk.td_errors
    rows = np.array([row for row in range(len(chunk.transitions)) if row not in faults][:count], dtype=np.int64)
    return chunk.transitions.pick(rows), None if chunk.td_errors is None else chunk.td_errors[rows]
