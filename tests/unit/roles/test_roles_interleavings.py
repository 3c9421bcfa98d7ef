"""Whatever happens to the replay service in whatever order, nothing is lost or doubled and nobody waits for ever."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace

import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from dpsr_apex.roles.replay_service import Outgoing
from dpsr_apex.wire.messages import (
    Acknowledged,
    Batch,
    Chunk,
    Gone,
    Heartbeat,
    Leave,
    Message,
    Priorities,
    Recycle,
    Recycled,
    Refused,
    SampleRequest,
    SetActors,
    SetRate,
    Welcome,
)
from tests.unit.roles.watched_service import (
    BATCH,
    CONFIG,
    EMPTY,
    ERA,
    answer,
    balanced,
    inserted,
    join,
    only,
    restarted,
    service,
    transitions,
)

NAMES = st.sampled_from(["actor-0", "actor-1", "actor-2"])
SMALL = replace(
    CONFIG,
    replay=replace(CONFIG.replay, capacity=12, recycle_candidates=3, recycle_period=4),
    run=replace(CONFIG.run, total_steps=90),
)
SIZES = (3, 1, 6, 2, 5)


class Peer:
    """An actor as the network shows it: what it has sent, heard, and been asked."""

    def __init__(self, name: str, incarnation: int, owner: int) -> None:
        self.key = (name, incarnation)
        self.owner = owner
        self.address = b""
        self.acknowledged = 0
        self.tasks: list[Recycle] = []

    def chunk(self, sequence: int) -> Chunk:
        sizes = [SIZES[(self.owner + number) % len(SIZES)] for number in range(sequence + 1)]
        rows = transitions(sizes[-1], sum(sizes[:-1]), self.owner)
        return Chunk(sequence, rows, None, np.ones(1), np.ones(1, dtype=np.int64))

    def rows_before(self, sequence: int) -> int:
        return sum(SIZES[(self.owner + number) % len(SIZES)] for number in range(sequence))


@settings(max_examples=60, stateful_step_count=60, deadline=None, suppress_health_check=list(HealthCheck))
class Interleavings(RuleBasedStateMachine):
    """Joins, deaths, lost, doubled and reordered messages, late and wrong answers, and restarts, in any order."""

    @initialize(rate=st.integers(0, 2))
    def begin(self, rate: int) -> None:
        """Everybody is in, and the replay is full."""
        self.now = 0.0
        self.replay = service(SMALL, steps_per_update=rate)
        self.addresses = 0
        self.peers: dict[str, Peer] = {}  # the newest process of each name
        self.everyone: list[Peer] = []
        self.batches: list[Batch] = []
        self.issued: Counter[tuple[int, int]] = Counter()  # by round and candidate
        self.the_learner_comes_or_goes("join")
        for name in ("actor-0", "actor-1", "actor-2"):
            self.actor_joins(name, anew=True, same_address=False)
            self.chunks_come(name, 3)
        self.the_learner_asks(4)

    def deliver(self, sender: bytes, message: Message) -> list[Outgoing]:
        return self.take(self.replay.handle(sender, message, self.now))

    def take(self, outgoing: list[Outgoing]) -> list[Outgoing]:
        """Hand every message to whom it is for."""
        members = {session.address: session for session in self.replay.sessions}
        for address, message in outgoing:
            if isinstance(message, Batch):
                assert members[address].role == "learner"
                self.batches.append(message)
            elif isinstance(message, Recycle):
                assert members[address].role == "actor"
                self.peers[members[address].name].tasks.append(message)
                self.issued.update((message.round_number, name) for name in message.identities.tolist())
            elif isinstance(message, Acknowledged):
                peer = self.peers[members[address].name]
                assert message.sequence >= peer.acknowledged
                peer.acknowledged = message.sequence
        return outgoing

    def new_address(self) -> bytes:
        self.addresses += 1
        return f"address {self.addresses}".encode()

    @rule(name=NAMES, anew=st.booleans(), same_address=st.booleans())
    def actor_joins(self, name: str, anew: bool, same_address: bool) -> None:
        peer = self.peers.get(name)
        if peer is None or anew:
            peer = Peer(name, len(self.everyone), len(self.everyone))
        address = peer.address if same_address and peer.address else self.new_address()
        request = join(*peer.key[:1], incarnation=peer.key[1], sequence=peer.acknowledged)
        before = self.replay.sessions.named(name)
        outgoing = self.replay.handle(address, request, self.now)
        if isinstance(outgoing[0].message, Refused):
            assert before is not None
            assert before.key != peer.key
            return
        peer.address = address
        if self.peers.get(name) is not peer:
            self.everyone.append(peer)
        self.peers[name] = peer
        self.take(outgoing)
        (welcome,) = only(outgoing, Welcome)
        assert welcome.sequence >= peer.acknowledged

    @rule(name=NAMES, count=st.integers(1, 4))
    def chunks_come(self, name: str, count: int) -> None:
        peer = self.peers[name]
        first = self.expected_of(peer)
        for number in range(first, first + count):
            self.deliver(peer.address, peer.chunk(number))

    @rule(name=NAMES, offset=st.sampled_from([-3, -1, 1, 2]))
    def a_chunk_comes_out_of_order(self, name: str, offset: int) -> None:
        """A repeat, or one whose predecessor was lost."""
        peer = self.peers[name]
        self.deliver(peer.address, peer.chunk(max(self.expected_of(peer) + offset, 0)))

    def expected_of(self, peer: Peer) -> int:
        is_in = self.replay.sessions.of(peer.key) is not None
        return self.replay.flow.inbox.stream(peer.key).accepted if is_in else peer.acknowledged

    @rule(name=NAMES, leaves=st.booleans())
    def an_actor_goes(self, name: str, leaves: bool) -> None:
        if leaves:
            self.deliver(self.peers[name].address, Leave(1))
        else:
            self.deliver(b"supervisor", Gone(name))

    @rule(event=st.sampled_from(["join", "join elsewhere", "die"]))
    def the_learner_comes_or_goes(self, event: str) -> None:
        if event == "die":
            self.deliver(b"supervisor", Gone("learner-0"))
        else:
            self.deliver(b"learner" if event == "join" else self.new_address(), join("learner-0", "learner"))

    @rule(count=st.integers(1, 6))
    def the_learner_asks(self, count: int) -> None:
        learner = self.replay.sessions.learner
        for _ in range(count):
            self.deliver(learner.address if learner else b"learner", SampleRequest(BATCH))

    @precondition(lambda self: self.batches)
    @rule(which=st.integers(0, 100), td_error=st.sampled_from([0.0, 0.5, 3.0, -1.0]), stale=st.booleans())
    def priorities_come(self, which: int, td_error: float, stale: bool) -> None:
        batch = self.batches[which % len(self.batches)]
        learner = self.replay.sessions.learner
        message = Priorities(batch.era + stale, batch.identities, np.full(batch.identities.size, td_error))
        outgoing = self.deliver(learner.address if learner else b"learner", message)
        assert bool(only(outgoing, Refused)) == (learner is not None and td_error < 0 and not stale)

    @rule(
        name=NAMES,
        keep=st.sampled_from([0, 1, 2, 3, 3]),
        fail=st.booleans(),
        again=st.booleans(),
        era=st.sampled_from([ERA] * 4 + [1]),
    )
    def an_answer_comes(self, name: str, keep: int, fail: bool, again: bool, era: int) -> None:
        """To the newest task: of some candidates; the others fail or are never heard of. Some come late, some twice."""
        peer = self.peers[name]
        if not peer.tasks:
            return
        task = peer.tasks[-1] if again else peer.tasks.pop()
        part, rest = task.identities[:keep], task.identities[keep:]
        td_errors = np.arange(part.size, dtype=np.float64)
        failed = rest if fail else EMPTY
        self.deliver(peer.address, Recycled(era, task.round_number, part, transitions(part.size), td_errors, failed))

    @rule()
    def everybody_answers(self) -> None:
        for peer in self.peers.values():
            while peer.tasks:
                self.deliver(peer.address, answer(peer.tasks.pop()))

    @rule(name=NAMES)
    def a_wrong_answer_comes(self, name: str) -> None:
        peer = self.peers[name]
        if peer.tasks:
            bad = answer(peer.tasks[0])
            self.deliver(peer.address, bad._replace(td_errors=-bad.td_errors))

    @rule(seconds=st.sampled_from([0.2, 0.2, 0.2, 1.0, 1.0, 6.0, 11.0]))
    def time_passes(self, seconds: float) -> None:
        for _ in range(round(seconds / 0.2)):
            self.now += 0.2
            self.take(self.replay.tick(self.now))

    @rule(name=NAMES)
    def a_heart_beats(self, name: str) -> None:
        self.deliver(self.peers[name].address, Heartbeat(0))

    @rule(rate=st.integers(0, 3))
    def the_rate_changes(self, rate: int) -> None:
        self.deliver(b"x", SetRate(rate))

    @rule(actors=st.integers(0, 5))
    def the_plan_changes(self, actors: int) -> None:
        self.deliver(b"x", SetActors(actors))

    @rule()
    def the_replay_restarts(self) -> None:
        self.replay = restarted(self.replay)
        self.issued.clear()

    @invariant()
    def the_replay_is_valid(self) -> None:
        assert self.replay.server.replay.check_valid() == (True, "")

    @invariant()
    def every_transition_is_accounted_for(self) -> None:
        assert balanced(self.replay)
        assert self.replay.traffic.inserted == self.replay.t <= SMALL.run.total_steps

    @invariant()
    def what_is_settled_was_inserted_once_and_in_order(self) -> None:
        transitions_seen = inserted(self.replay)
        streams = {(name, incarnation): settled for name, incarnation, settled, _ in self.replay.flow.inbox.save()}
        for peer in self.everyone:
            rows = [number for owner, number in transitions_seen if owner == peer.owner]
            settled = streams.get(peer.key, 0)
            assert peer.acknowledged <= settled
            assert rows == list(range(len(rows)))
            if self.replay.t < SMALL.run.total_steps:
                assert len(rows) == peer.rows_before(settled)
            assert len(rows) <= peer.rows_before(settled)

    @invariant()
    def somebody_can_always_move(self) -> None:
        flow = self.replay.flow
        rate = self.replay.server.rate
        assert not (flow.credits and rate.may_sample(self.replay.t))
        if flow.room:  # after the last step chunks wait for the end
            assert not (flow.inbox and rate.may_insert(self.replay.t))
            assert not (flow.credits and flow.inbox)

    @invariant()
    def open_rounds_are_looked_after_and_no_candidate_is_given_thrice(self) -> None:
        assert self.replay.flow.dispatch._rounds.keys() == self.replay.server.replay.rounds.keys()
        assert max(self.issued.values(), default=0) <= 2

    @invariant()
    def who_is_in_has_one_name_one_address_and_a_lease(self) -> None:
        sessions = list(self.replay.sessions)
        assert len({session.address for session in sessions}) == len(sessions)
        assert all(self.replay.sessions.at(session.address) is session for session in sessions)
        assert len({actor.index for actor in self.replay.sessions.actors}) == len(self.replay.sessions.actors)
        assert all(self.now - session.heard <= SMALL.system.lease for session in sessions)

    @invariant()
    def it_can_be_told(self) -> None:
        json.dumps(self.replay.stats(self.now), allow_nan=False)

    def teardown(self) -> None:
        self.time_passes(6.0)
        assert not self.replay.server.replay.rounds
        self.replay.goodbye(False, "the test is over")
        self.time_passes(11.0)
        assert self.replay.everybody_left
        assert not self.replay.flow.inbox
        assert balanced(self.replay)


TestInterleavings = Interleavings.TestCase
