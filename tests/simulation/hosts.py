"""Processes of a run without IO: the real state machines, with tiny environments and agents around them.

A transition carries whose it is (`owner`, one for each actor process) and its number (`serial`), so that each can be
accounted for. A recycled one carries the owner `RECYCLED`.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple, Protocol
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from dpsr_apex.config import Config, SystemConfig
from dpsr_apex.protocol.client_instructions import (
    ActorInstruction,
    ConnectToLearner,
    HeadLost,
    LearnerInstruction,
    LinkInstruction,
    LoadWeights,
    LookUpHead,
    PublishWeights,
    Reconnect,
    Rejected,
    RequestWeights,
    Send,
    SendWeights,
    SetClock,
    SetPosition,
    Work,
)
from dpsr_apex.protocol.clients import ActorClient, LearnerClient
from dpsr_apex.protocol.inbox import Inbox, Stream
from dpsr_apex.protocol.membership import Membership
from dpsr_apex.protocol.replay_service import ReplayService
from dpsr_apex.protocol.state_requests import StateRequests
from dpsr_apex.record.journal.commit import Commit
from dpsr_apex.record.journal.journal import Journal
from dpsr_apex.record.journal.reader import DamagedJournal
from dpsr_apex.record.journal.recover import Base, journal_facts, recover_and_continue
from dpsr_apex.replay.records import Chains, Floats, Integers, Round
from dpsr_apex.replay.replay import Replay
from dpsr_apex.replay.transitions import Transitions, concatenate, from_lists, unpacked
from dpsr_apex.state import State
from dpsr_apex.wire.messages import (
    Batch,
    Chunk,
    Join,
    LearnerState,
    Message,
    Priorities,
    Recycle,
    Recycled,
    SaveRequest,
    Unusable,
    Weights,
    WeightsRequest,
)
from dpsr_apex.wire.statistics import Traffic
from tests.simulation.storage import JOURNAL, Storage

RUN_ID, EMULATOR = "run-1", "0.12.1"
RECYCLED = 1_000_000  # owner of recycled transitions

Row = tuple[int, int]
"""Owner and serial of one transition."""


class Ended(Exception):
    """A process has ended by itself, and why."""


class Port(Protocol):
    """What the process of a client has of the world outside."""

    def send(self, message: Message, /) -> bool:
        """Send to the replay; False if the socket does not take it."""

    def look_up(self) -> bool:
        """Whether the head has moved or was restarted."""

    def reconnect(self) -> None:
        """Replace the socket to the replay."""

    def connect_to_learner(self, endpoint: str, /) -> None:
        """Replace the socket to the learner."""

    def request_weights(self, request: WeightsRequest, /) -> bool:
        """Send to the learner; False if the socket does not take it."""

    def send_weights(self, address: bytes, weights: Weights, /) -> None:
        """Send from the learner to one of its clients."""


class Client(Protocol):
    """The state machine of any role."""

    membership: Membership

    def undelivered(self, message: Message, /) -> None:
        """The socket to the replay did not take this message."""


def execute_link(instruction: LinkInstruction, client: Client, port: Port, now: float) -> list[LinkInstruction]:
    """Execute one instruction about the link to the replay; those that follow from it."""
    match instruction:
        case Send(message):
            if not port.send(message):
                client.undelivered(message)
        case LookUpHead():
            return client.membership.head_looked_up(port.look_up(), now)
        case Reconnect():
            port.reconnect()
        case HeadLost(silence):
            raise Ended(f"nothing was heard for {silence:.0f} s")
        case Rejected(reason):
            raise Ended(reason)
    return []


def join_request(name: str, role: str, incarnation: int) -> Join:
    endpoint = f"{name} {incarnation}" if role == "learner" else ""
    return Join(RUN_ID, role, name, incarnation, EMULATOR, "digest", 0, 0, endpoint)


def make_transitions(owner: int, first: int, count: int) -> Transitions:
    serials = range(first, first + count)
    return from_lists(
        s_tm1=[(f"s {owner} {serial}".encode(),) for serial in serials],
        a_tm1=np.full(count, owner),
        r_t=np.array(serials, dtype=np.float32),
        s_t=[(f"s' {owner} {serial}".encode(),) for serial in serials],
        terminal=np.zeros(count, dtype=np.bool_),
        n_steps=np.ones(count, dtype=np.uint8),
        snapshots=[f"snapshot {owner} {serial}".encode() for serial in serials],
    )


def rows_of(transitions: Transitions) -> list[Row]:
    return list(zip(transitions.a_tm1.tolist(), map(int, transitions.r_t.tolist()), strict=True))


def td_errors_of(transitions: Transitions) -> Floats:
    """TD errors that tell one transition from another."""
    contents = zip(transitions.s_tm1, transitions.a_tm1.tolist(), strict=True)
    return np.array([crc32(b"%s %d" % (stack[0], action)) % 1000 / 100 for stack, action in contents])


def recycle(request: Recycle, most_steps: int = 1, bad_period: int = 0) -> Recycled:
    """The answer of an actor, in which a candidate has the same chain each time.

    It could re-enter all states but those of candidates whose identity is a multiple of `bad_period`; 0: all.
    """
    failing = _are_bad(request.identities, bad_period)
    starts, identities = request.starts.pick(np.flatnonzero(~failing)), request.identities[~failing]
    first = replace(make_transitions(RECYCLED, 0, len(starts)), s_tm1=starts.s_tm1, snapshots=starts.snapshots)
    lengths = 1 + identities % most_steps
    parts = []
    for row, (identity, length) in enumerate(zip(identities.tolist(), lengths.tolist(), strict=True)):
        later = make_transitions(RECYCLED, 1, length - 1)
        names = [f"chain {request.era} {request.round_number} {identity} {i}".encode() for i in range(1, length)]
        parts += [first.rows(row, row + 1), replace(later, s_tm1=[(name,) for name in names])]
    made, failed = concatenate([first.rows(0, 0), *parts]), request.identities[failing]
    rewards = lengths.astype(np.float64)
    return Recycled(
        *(request.era, request.round_number, identities, lengths, rewards, made),
        *(td_errors_of(made), failed, ["it cannot be re-entered"] * failed.size),
    )


def _are_bad(identities: Integers, period: int) -> NDArray[np.bool_]:
    return identities % period == 0 if period else np.zeros(identities.size, dtype=np.bool_)


class ActorHost:
    """An actor's process; `owner` is unique to it. For `bad_period` see `recycle`."""

    def __init__(
        self, name: str, incarnation: int, owner: int, config: Config, port: Port, now: float, bad_period: int = 0
    ) -> None:
        self.name = name
        self.key = (name, incarnation)
        self.owner = owner
        self.client = ActorClient(join_request(name, "actor", incarnation), config.system, now)
        self._recycle_steps = config.replay.recycle_steps
        self._bad_period = bad_period
        self.chunks: list[list[int]] = []  # the serials in each chunk, by its sequence
        self.clock = 0
        self.position: tuple[int, int] | None = None
        self._port = port
        self._made = 0

    @property
    def acknowledged(self) -> list[Row]:
        """All transitions that the actor does not keep any more."""
        return self.rows_before(self.client.outbox.oldest)

    def rows_before(self, sequence: int) -> list[Row]:
        """All transitions in the chunks before this number."""
        return [(self.owner, serial) for chunk in self.chunks[:sequence] for serial in chunk]

    def step(self, count: int = 1) -> None:
        """Make this many transitions in one step, if the actor may step."""
        if self.client.may_step:
            self.client.stepped(make_transitions(self.owner, self._made, count), None, [(1.0, 1)])
            self._made += count

    def recycle(self, now: float) -> None:
        """Answer the next request to recycle, if there is any."""
        if (request := self.client.next_to_recycle()) is not None:
            self.execute(self.client.recycled(recycle(request, self._recycle_steps, self._bad_period)), now)

    def receive(self, message: Message, now: float) -> None:
        self.execute(self.client.handle(message, now), now)

    def receive_weights(self, weights: Weights, now: float) -> None:
        self.execute(self.client.weights.handle(weights), now)

    def tick(self, now: float) -> None:
        self.execute(self.client.tick(now), now)

    def leave(self, now: float) -> None:
        self.execute(self.client.membership.leave(), now)

    def execute(self, instructions: Iterable[ActorInstruction], now: float) -> None:
        for instruction in instructions:
            match instruction:
                case SetClock(t):
                    self.clock = t
                case SetPosition(place, actors):
                    self.position = place, actors
                case ConnectToLearner(endpoint):
                    self._port.connect_to_learner(endpoint)
                case RequestWeights(request):
                    if not self._port.request_weights(request):
                        self.client.weights.undelivered()
                case LoadWeights(weights):
                    self.client.weights.loaded(weights)
                case Send(Chunk() as chunk):
                    self._remember(chunk)
                    self.execute(execute_link(instruction, self.client, self._port, now), now)
                case _:
                    self.execute(execute_link(instruction, self.client, self._port, now), now)

    def _remember(self, chunk: Chunk) -> None:
        serials = [serial for _, serial in rows_of(chunk.transitions)]
        if chunk.sequence == len(self.chunks):
            self.chunks.append(serials)
        assert self.chunks[chunk.sequence] == serials, "another content under the same number"


class LearnerHost:
    """A learner's process, both threads of it; an update costs no time of its own.

    It cannot train on transitions whose identity is a multiple of `bad_period`; 0: on all.
    """

    def __init__(
        self, name: str, incarnation: int, system: SystemConfig, port: Port, now: float, bad_period: int = 0
    ) -> None:
        self.name = name
        self.key = (name, incarnation)
        self.client = LearnerClient(join_request(name, "learner", incarnation), system, now)
        self.updates: int | None = None  # None before it has a state to start from
        self.batches = 0  # that came
        self._bad_period = bad_period
        self._work: deque[Batch | SaveRequest | LearnerState] = deque()
        self._is_asked_to_publish = False
        self._port = port

    @property
    def ready(self) -> int:
        """Items of work that wait."""
        return len(self._work)

    @property
    def updates_to_come(self) -> int | None:
        """The updates after all batches that have come; None before it has a state to start from."""
        return None if self.updates is None else self.updates + sum(isinstance(item, Batch) for item in self._work)

    def train(self, now: float) -> None:
        """Do the next item of work, if there is any, and publish weights if they are wanted."""
        match self._work.popleft() if self._work else None:
            case Batch() as batch:
                self._update(batch)
            case LearnerState() as state:
                assert self.updates is None, "a state came twice"
                self.updates = json.loads(state.facts)["updates"] if state.facts else 0
                self._publish(now)
            case SaveRequest(era, number):
                self.client.send(LearnerState(json.dumps({"updates": self.updates}), b"arrays", era, number))
        if self._is_asked_to_publish:
            self._publish(now)

    def _update(self, batch: Batch) -> None:
        assert self.updates is not None, "a batch came before the state to start from"
        self.updates += 1
        bad = _are_bad(batch.identities, self._bad_period)
        if bad.any():
            self.client.send(Unusable(batch.era, batch.identities[bad], "it cannot be trained on"))
        priorities = Priorities(batch.era, batch.identities[~bad], td_errors_of(unpacked(batch.transitions))[~bad])
        self.client.updated(priorities, self.updates)

    def receive(self, message: Message, now: float) -> None:
        self.batches += isinstance(message, Batch)
        self._execute(self.client.handle(message, now), now)

    def receive_request(self, sender: bytes, request: WeightsRequest, now: float) -> None:
        self._execute(self.client.handle_request(sender, request), now)

    def tick(self, now: float) -> None:
        self._execute(self.client.tick(self.ready, now), now)

    def leave(self, now: float) -> None:
        self._execute(self.client.membership.leave(), now)

    def stop(self, now: float) -> None:
        """Send the last state and leave, as a process that was asked to stop."""
        if self.updates is not None and self.client.membership.goodbye is None:
            self.client.send(LearnerState(json.dumps({"updates": self.updates}), b"arrays"))
        self._execute(self.client.flush(), now)
        self.leave(now)

    def _publish(self, now: float) -> None:
        assert self.updates is not None
        self._is_asked_to_publish = False
        self._execute(self.client.published(Weights(self.updates, 0, 0, self.updates, b"online", b"target")), now)

    def _execute(self, instructions: Iterable[LearnerInstruction], now: float) -> None:
        for instruction in instructions:
            match instruction:
                case Work(item):
                    self._work.append(item)
                case PublishWeights():
                    self._is_asked_to_publish = True
                case SendWeights(address, weights):
                    self._port.send_weights(address, weights)
                case _:
                    self._execute(execute_link(instruction, self.client, self._port, now), now)


class WatchedReplay(Replay):
    """Remembers every transition that was inserted, in this process and in those whose checkpoints it continues.

    It also checks that what clients say about a transition was computed from that transition.
    """

    def __init__(self, config: Config, seed: int) -> None:
        super().__init__(config.replay, config.run.total_steps, np.random.default_rng(seed))
        self.inserted: list[Row] = []

    def insert(self, transitions: Transitions, td_errors: Floats | None = None) -> list[Round]:
        rounds = super().insert(transitions, td_errors)
        self.inserted += rows_of(transitions)
        return rounds

    def update_priorities(self, identities: Integers, td_errors: Floats) -> None:
        super().update_priorities(identities, td_errors)
        present = set(self.identities.tolist())
        stored = np.array([identity in present for identity in identities.tolist()])
        expected = td_errors_of(self.read(identities[stored]))
        assert td_errors[stored].tolist() == expected.tolist(), "priorities of other transitions"

    def answer(self, number: int, chains: Chains) -> None:
        round_ = self.rounds.get(number)
        super().answer(number, chains)
        if round_ is not None:
            starts = dict(zip(round_.candidates.tolist(), round_.stored.s_tm1, strict=True))
            for identity, chain in chains.split():
                is_own = chain.transitions.s_tm1[0] == starts[identity]
                assert is_own, "a state was re-entered that is not the candidate's"


class WatchedInbox(Inbox):
    """Remembers every transition that was settled: inserted or refused, for good."""

    def __init__(self, in_flight: int, traffic: Traffic) -> None:
        super().__init__(in_flight, traffic)
        self.settled: list[Row] = []

    def _settle(self, stream: Stream, chunk: Chunk) -> None:
        super()._settle(stream, chunk)
        self.settled += rows_of(chunk.transitions)


class WatchedService(ReplayService):
    """A service whose replay and inbox remember what they have seen, also if its settings are changed."""

    def __init__(self, config: Config, era: int) -> None:
        super().__init__(config, WatchedReplay(config, 0), RUN_ID, EMULATOR, era)
        self.flow.inbox = WatchedInbox(config.system.in_flight, self.traffic)

    def take_over(self, former: ReplayService) -> None:
        super().take_over(former)
        (replay, inbox), (former_replay, former_inbox) = watched(self), watched(former)
        replay.inserted, inbox.settled = former_replay.inserted, former_inbox.settled


def watched(service: ReplayService) -> tuple[WatchedReplay, WatchedInbox]:
    replay, inbox = service.replay, service.flow.inbox
    assert isinstance(replay, WatchedReplay)
    assert isinstance(inbox, WatchedInbox)
    return replay, inbox


class Saved(NamedTuple):
    """A checkpoint of the replay."""

    t: int
    state: State
    learner: LearnerState
    inserted: list[Row]
    settled: list[Row]
    next: int = 0  # number of the first record of the journal after it
    is_finished: bool = False  # whether no update is due after it


class ReplayHost:
    """The replay's process, new or from a checkpoint and the journal after it."""

    def __init__(self, config: Config, era: int, saved: Saved | None, storage: Storage | None = None) -> None:
        self._era = era
        self.commit: Commit | None = None
        if storage is None or not storage.has_journal:
            self.service = self._make(config)
            self._load(saved, self.service)
        else:
            self.service = self._recover(config, saved, storage)
        self.replay, self._inbox = watched(self.service)
        self.states = StateRequests(self.service)

    def _make(self, config: Config) -> ReplayService:
        return WatchedService(config, self._era)

    def _load(self, saved: Saved | None, service: ReplayService) -> None:
        if saved is not None:
            service.load(saved.state)
            service.learner.state = saved.learner
            replay, inbox = watched(service)
            replay.inserted, inbox.settled = list(saved.inserted), list(saved.settled)

    def _recover(self, config: Config, saved: Saved | None, storage: Storage) -> ReplayService:
        """Load the checkpoint, apply the journal, and continue it, as `dpsr_apex.processes.journaling` does."""
        base = Base(lambda service: self._load(saved, service), saved.t if saved else 0, saved.next if saved else 0)
        try:
            recovered = recover_and_continue(storage.disk, JOURNAL, config, self._make, base)
        except DamagedJournal as damage:
            storage.give_up(damage)
            recovered = recover_and_continue(storage.disk, JOURNAL, config, self._make, base)
        facts = journal_facts(config)
        journal = Journal(storage.disk, JOURNAL, self._era, recovered.next, facts, storage.awaits_sync)
        self.commit = Commit(recovered.service, journal)
        return recovered.service

    @property
    def settled(self) -> list[Row]:
        """All transitions that were inserted or refused, also by those whose checkpoints it continues."""
        return self._inbox.settled

    def save(self, is_finished: bool = False) -> Saved:
        """What a forked copy of the process would write, or the process itself at its end."""
        facts, arrays = self.service.save()
        state = State(json.loads(json.dumps(facts)), arrays)
        rows = list(self.replay.inserted), list(self.settled)
        next_ = self.commit.begin_segment() if self.commit else 0
        return Saved(self.service.t, state, self.service.learner.state, *rows, next_, is_finished)
