"""What flows through the replay among many processes: chunks in, batches out, candidates there and back.

It sends nothing and has no clock: what is to be sent is returned, and the time is passed in.
"""

from __future__ import annotations

from typing import NamedTuple

from dpsr_apex.config import Config
from dpsr_apex.roles.dispatch import Dispatch
from dpsr_apex.roles.inbox import Inbox
from dpsr_apex.roles.replay_server import ReplayServer
from dpsr_apex.roles.sessions import Session, Sessions
from dpsr_apex.roles.traffic import Traffic, Warner
from dpsr_apex.wire.messages import Acknowledged, Chunk, Insert, Message, Priorities, Recycled, Refused, SampleRequest


class Outgoing(NamedTuple):
    """A message to be sent."""

    address: bytes
    message: Message


class Flow:
    """Moves what can be moved between the members and the replay, and keeps account of it."""

    def __init__(self, config: Config, server: ReplayServer, sessions: Sessions) -> None:
        self.server = server
        self.traffic = Traffic()
        self.inbox = Inbox(config.system.window, self.traffic)
        self.dispatch = Dispatch(config.system.recycle_deadline, self.traffic)
        self.credits = 0  # batches that the learner has asked for and not got
        self.closed = False  # nothing is inserted or drawn any more
        self._total_steps = config.run.total_steps
        self._prefetch = config.system.prefetch
        self._request = SampleRequest(config.learner.batch_size)
        self._sessions = sessions
        self._games: list[tuple[float, int]] = []
        self._warner = Warner("refused a chunk")

    @property
    def t(self) -> int:
        """The one clock: transitions inserted so far."""
        return self.server.replay.t

    @property
    def room(self) -> int:
        """Transitions that may still come in before the run is over."""
        return 0 if self.closed else max(self._total_steps - self.t, 0)

    @property
    def finished(self) -> bool:
        """Whether the last transition is in, no update is owed and no round is open."""
        rate = self.server.rate
        nothing_owed = rate.steps_per_update == 0 or not rate.may_sample(self.t)
        return self.t >= self._total_steps and nothing_owed and not self.server.replay.rounds

    def go_on(self, now: float) -> list[Outgoing]:
        """Do all that can be done now. Batches come first, so that they are drawn close to when they are due.

        After the last step chunks wait for the run's end, and their actors with them: nothing is played in vain.
        """
        outgoing = self._give_batches()
        while self.inbox and (self.closed or (self.room and self.server.rate.may_insert(self.t))):
            outgoing += self._settle_next_chunk(now)
            outgoing += self._give_batches()
        self._end_rounds(now)
        return outgoing + self._give_candidates()

    def close(self) -> list[Outgoing]:
        """Insert and draw nothing any more; what has not been inserted, and what comes from now on, is refused."""
        self.closed = True
        self.credits = 0
        self.forget_open_rounds()
        return self.go_on(now=0.0)

    def actor_moved(self, actor: Session) -> None:
        """It has another address now, and what was on its way to the former one may be lost."""
        self.dispatch.release(actor.name)

    def actor_joined(self, actor: Session, sequence: int) -> int:
        """The next chunk that is expected of it; it has nothing before `sequence` any more."""
        return self.inbox.begin(actor.key, sequence).accepted

    def learner_joined(self) -> None:
        """It asks for batches anew."""
        self.credits = 0

    def member_ended(self, member: Session) -> None:
        """Others do what it was to do."""
        if member.role == "actor":
            self.inbox.end(member.key)
            self.dispatch.release(member.name)
        elif member.role == "learner":
            self.credits = 0

    def hear_sent(self, member: Session, sent: int) -> None:
        """The member says how many transitions it has sent in all."""
        if member.role == "actor":
            self.inbox.hear_sent(member.key, sent)

    def take_chunk(self, actor: Session, chunk: Chunk) -> Acknowledged | None:
        """Queue it; if it is out of order, tell the actor where it stands."""
        stream = self.inbox.stream(actor.key)
        return None if self.inbox.put(stream, chunk) else Acknowledged(stream.settled, self.t)

    def take_request(self, message: SampleRequest) -> None:
        """One more batch is wanted. Another size than that of the run is a ValueError."""
        if message.batch_size != self._request.batch_size:
            wanted = self._request.batch_size
            raise ValueError(f"a batch of {message.batch_size} was asked for: in this run it is {wanted}")
        if self.closed:
            return
        if self.credits < self._prefetch:
            self.credits += 1
        else:
            self.traffic.dropped_requests += 1

    def take_priorities(self, message: Priorities) -> None:
        """New priorities; a ValueError if one is none."""
        if self._is_of_this_era(message.era):
            self.server.priorities(message)

    def take_recycled(self, actor: Session, message: Recycled) -> None:
        """What recycling gave; a ValueError, and nothing is done, if it does not fit what was asked."""
        if self._is_of_this_era(message.era):
            self.server.recycled(message)
            self.dispatch.answered(message.round_number, message.identities.tolist())
            self.dispatch.failed(message.round_number, message.failed.tolist(), actor.name)

    def forget_open_rounds(self) -> None:
        """End every recycling round with what has arrived."""
        self.dispatch.clear()
        for number in list(self.server.replay.rounds):
            self.server.replay.expire(number)

    def drain_games(self) -> list[tuple[float, int]]:
        """Score and length in steps of each game that ended since the last call."""
        games, self._games = self._games, []
        return games

    def _is_of_this_era(self, era: int) -> bool:
        self.traffic.stale_eras += era != self.server.era
        return era == self.server.era

    def _settle_next_chunk(self, now: float) -> list[Outgoing]:
        stream, chunk = self.inbox.pop()
        refusal = self._insert(stream.key[0], chunk, now)
        actor = self._sessions.of(stream.key)
        if actor is None:
            return []
        replies: list[Message] = [Acknowledged(stream.settled, self.t), *([Refused(refusal)] if refusal else [])]
        return [Outgoing(actor.address, reply) for reply in replies]

    def _insert(self, name: str, chunk: Chunk, now: float) -> str:
        """Insert what there is room for, or nothing if the replay refuses it: then why, else an empty text."""
        count = len(chunk.transitions)
        taken = min(count, self.room)
        try:
            games = list(zip(chunk.scores.tolist(), chunk.lengths.tolist(), strict=True))
            _, requests = self.server.insert(_first(chunk, taken))
        except ValueError as error:
            self.traffic.refused += count
            self.traffic.refused_messages += 1
            self._warner.warn(f"{name}, {count} transitions", str(error))
            return str(error)
        self.traffic.inserted += taken
        self.traffic.refused += count - taken
        if self.room or taken:
            self._games += games
        for request in requests:
            self.dispatch.open(request, now)
        return ""

    def _give_batches(self) -> list[Outgoing]:
        learner = self._sessions.learner
        outgoing = []
        while learner and self.credits and (batch := self.server.sample(self._request)):
            self.credits -= 1
            outgoing.append(Outgoing(learner.address, batch))
        return outgoing

    def _end_rounds(self, now: float) -> None:
        """Rounds that were answered in full have ended by themselves."""
        for number in self.dispatch.over(now):
            if number in self.server.replay.rounds:
                self.server.replay.expire(number)

    def _give_candidates(self) -> list[Outgoing]:
        if not self.dispatch.has_waiting:
            return []
        addresses = {actor.name: actor.address for actor in self._sessions.actors}
        return [Outgoing(addresses[name], recycle) for name, recycle in self.dispatch.assign(addresses)]


def _first(chunk: Chunk, count: int) -> Insert:
    """The first `count` transitions of a chunk."""
    if count == len(chunk.transitions):
        return Insert(chunk.transitions, chunk.td_errors)
    td_errors = None if chunk.td_errors is None else chunk.td_errors[:count]
    return Insert(chunk.transitions.rows(0, count), td_errors)
