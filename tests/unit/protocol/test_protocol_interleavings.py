"""Real clients and the real replay service over a link that loses, repeats, reorders and cuts, with restarts anywhere.

Whatever happens in whatever order, no transition is lost or inserted twice, nobody waits for ever, and once the faults
stop, the run finishes.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from dpsr_apex.config import Config
from dpsr_apex.protocol.replay_service import Outgoing
from dpsr_apex.replay.transitions import unpacked
from dpsr_apex.wire.codec import decode, encode
from dpsr_apex.wire.messages import (
    ACTOR,
    LEARNER,
    OWNER,
    Batch,
    Gone,
    Message,
    Priorities,
    Recycle,
    Recycled,
    Refused,
    SampleRequest,
    SetActors,
    SetRate,
    Weights,
    WeightsRequest,
    Welcome,
)
from tests.simulation.accounts import Accounts
from tests.simulation.hosts import ActorHost, Ended, LearnerHost, ReplayHost, Saved, recycle, td_errors_of
from tests.unit.protocol.watched_service import CONFIG

ACTORS = ("actor-0", "actor-1", "actor-2")
NAMES = st.sampled_from([*ACTORS, "learner"])
ACTOR_NAMES = st.sampled_from(ACTORS)
DIRECTIONS = st.sampled_from(["up", "down"])
TICK = 0.25  # seconds
SMALL = replace(
    CONFIG,
    replay=replace(CONFIG.replay, capacity=12, recycle_candidates=3, recycle_period=4),
    run=replace(CONFIG.run, total_steps=200),
    system=replace(
        CONFIG.system, chunk=3, in_flight=9, in_flight_ahead=8, in_flight_behind=4, prefetch=4, weights_period=5
    ),
)


class Wire:
    """A client's socket to the replay: what is on its way in both directions. Weights come at once."""

    def __init__(self, address: bytes, role: str) -> None:
        self.address = address
        self.role = role
        self.up: list[Message] = []
        self.down: list[Message] = []
        self.is_connected = True
        self.addresses = 0
        self.host: ActorHost | LearnerHost | None = None

    def send(self, message: Message, /) -> bool:
        if self.is_connected:
            self.up.append(message)
        return self.is_connected

    def look_up(self) -> bool:
        return False

    def reconnect(self) -> None:
        self.cut()
        self.addresses += 1
        self.address = self.address.partition(b"/")[0] + b"/%d" % self.addresses
        self.is_connected = True

    def cut(self) -> None:
        self.up.clear()
        self.down.clear()

    def connect_to_learner(self, endpoint: str, /) -> None:
        pass

    def request_weights(self, request: WeightsRequest, /) -> bool:
        assert isinstance(self.host, ActorHost)
        self.host.receive_weights(Weights(request.version + 1, 0, 0, 0, b"", b""), 0.0)
        return True

    def send_weights(self, address: bytes, weights: Weights, /) -> None:
        raise AssertionError(f"{address!r} gets weights {weights.version}, and nobody asks the learner")


@settings(max_examples=20, stateful_step_count=50, deadline=None, suppress_health_check=list(HealthCheck))
class Interleavings(RuleBasedStateMachine):
    """A run whose network and processes do whatever Hypothesis finds."""

    @initialize(rate=st.integers(0, 2), steps=st.sampled_from((1, 3)))
    def begin(self, rate: int, steps: int = 1) -> None:
        """Everybody joins, and the replay is filled."""
        self.now = 0.0
        learner, replay = replace(SMALL.learner, steps_per_update=rate), replace(SMALL.replay, recycle_steps=steps)
        self.config: Config = replace(SMALL, learner=learner, replay=replay)
        self.eras = 0
        self.processes = 0
        self.saved: Saved | None = None
        self.accounts = Accounts(SMALL.run.total_steps)
        self.replay = ReplayHost(self.config, self.eras, None)
        self.wires: dict[str, Wire] = {}
        self.hosts: dict[str, ActorHost | LearnerHost] = {}
        self.issued: Counter[tuple[int, int]] = Counter()  # by round and candidate
        self.batches: list[Batch] = []
        for name in (*ACTORS, "learner"):
            self.start(name)
        while self.replay.service.t < 2 * SMALL.replay.capacity:
            self.everything_works()

    # What the world does to the processes.

    def start(self, name: str) -> None:
        """A new process of that name."""
        self.processes += 1
        wire = Wire(f"address {self.processes}".encode(), LEARNER if name == "learner" else ACTOR)
        host: ActorHost | LearnerHost
        if name == "learner":
            host = LearnerHost(name, self.processes, self.config.system, wire, self.now)
        else:
            host = ActorHost(name, self.processes, self.processes, self.config, wire, self.now)
            self.accounts.actors.append(host)
        wire.host = host
        self.wires[name], self.hosts[name] = wire, host

    def actor(self, name: str) -> ActorHost:
        host = self.hosts[name]
        assert isinstance(host, ActorHost)
        return host

    @property
    def learner(self) -> LearnerHost:
        host = self.hosts["learner"]
        assert isinstance(host, LearnerHost)
        return host

    def to_replay(self, sender: bytes, message: Message, role: str = OWNER) -> list[Outgoing]:
        return self.route(self.replay.service.handle(sender, message, self.now, role))

    def route(self, outgoing: list[Outgoing]) -> list[Outgoing]:
        """Put what the replay sends on its way; to an address that is nobody's any more it is lost."""
        wires = {wire.address: wire for wire in self.wires.values()}
        for address, message in outgoing:
            if isinstance(message, Recycle):
                self.issued.update((message.round_number, name) for name in message.identities.tolist())
            if isinstance(message, Batch):
                self.batches.append(message)
            if address in wires and wires[address].is_connected:
                wires[address].down.append(message)
        return outgoing

    def to_client(self, name: str, message: Message) -> None:
        try:
            self.hosts[name].receive(message, self.now)
        except Ended:
            self.start(name)

    def tick(self, name: str) -> None:
        try:
            self.hosts[name].tick(self.now)
        except Ended:
            self.start(name)

    def deliver(self, name: str, direction: str, place: int = 0, keep: bool = False) -> None:
        """Deliver one message that is on its way; it stays on its way, too, if it is to come twice."""
        wire = self.wires[name]
        waiting = wire.up if direction == "up" else wire.down
        if not waiting:
            return
        place %= len(waiting)
        message = waiting[place] if keep else waiting.pop(place)
        if direction == "up":
            self.to_replay(wire.address, message, wire.role)
        else:
            self.to_client(name, message)

    # Rules.

    @rule(name=NAMES, direction=DIRECTIONS, place=st.sampled_from([0, 0, 0, 1, 2, -1]), keep=st.booleans())
    def a_message_comes(self, name: str, direction: str, place: int, keep: bool) -> None:
        self.deliver(name, direction, place, keep)

    @rule(name=NAMES, direction=DIRECTIONS)
    def all_messages_of_one_come(self, name: str, direction: str) -> None:
        wire = self.wires[name]
        for _ in range(len(wire.up if direction == "up" else wire.down)):
            self.deliver(name, direction)

    @rule(name=NAMES, direction=DIRECTIONS, place=st.integers(-2, 2))
    def a_message_is_lost(self, name: str, direction: str, place: int) -> None:
        wire = self.wires[name]
        waiting = wire.up if direction == "up" else wire.down
        if waiting:
            del waiting[place % len(waiting)]

    @rule(name=NAMES, is_connected=st.booleans())
    def a_link_is_cut(self, name: str, is_connected: bool) -> None:
        """All that was on its way is lost; the socket connects again at once, or takes nothing until all is well."""
        self.wires[name].cut()
        self.wires[name].is_connected = is_connected

    @rule(name=ACTOR_NAMES, count=st.integers(1, 8))
    def an_actor_steps(self, name: str, count: int) -> None:
        for _ in range(count):
            self.actor(name).step(1 + count % 2)
        self.tick(name)

    @rule(name=ACTOR_NAMES)
    def an_actor_recycles(self, name: str) -> None:
        self.actor(name).recycle(self.now)

    @rule(count=st.integers(1, 5))
    def the_learner_trains(self, count: int) -> None:
        for _ in range(count):
            self.learner.train(self.now)
        self.tick("learner")

    @rule(seconds=st.sampled_from([0.25, 0.25, 0.5, 1.0, 1.0, 6.0, 11.0]))
    def time_passes(self, seconds: float) -> None:
        for _ in range(round(seconds / TICK)):
            self.now += TICK
            self.route(self.replay.service.tick(self.now))
            for name in self.hosts:
                self.tick(name)

    @rule(name=NAMES, told=st.sampled_from(["before", "after", "never"]))
    def a_process_is_restarted(self, name: str, told: str) -> None:
        """Its supervisor tells the replay before the new process joins, or also when it has, or never."""
        self.start(name)
        if told == "after":
            self.everything_works()
        if told != "never":
            self.to_replay(b"supervisor", Gone(name))

    @rule()
    def the_replay_saves(self) -> None:
        self.saved = self.replay.save()

    @rule(to_now=st.booleans())
    def the_replay_is_restarted(self, to_now: bool) -> None:
        """From its last checkpoint, or from one that was written just before; all that was on its way is lost."""
        saved = self.replay.save() if to_now else self.saved
        for wire in self.wires.values():
            wire.cut()
        self.accounts.rolled_back(self.replay.settled, saved.settled if saved else [])
        self.eras += 1
        self.replay = ReplayHost(self.config, self.eras, saved)
        self.saved = saved
        self.issued.clear()
        self.route(self.replay.service.tick(self.now))

    @rule(moments=st.integers(2, 12))
    def nothing_goes_wrong_for_a_while(self, moments: int) -> None:
        for _ in range(moments):
            self.everything_works()

    @rule(name=NAMES, moments=st.integers(2, 12))
    def one_process_is_slow_for_a_while(self, name: str, moments: int) -> None:
        for _ in range(moments):
            self.everything_works(slow=name)

    def everything_works(self, slow: str = "") -> None:
        """A moment in which nothing goes wrong, but nothing comes to or from a process that is slow."""
        for name in self.hosts:
            self.wires[name].is_connected = True
        for name in ACTORS:
            self.actor(name).step(2)
            self.actor(name).recycle(self.now)
        self.the_learner_trains(5)
        self.time_passes(TICK)
        for name in [name for name in self.hosts if name != slow]:
            for direction in ("up", "down"):
                self.all_messages_of_one_come(name, direction)

    @rule(rate=st.integers(0, 3))
    def the_rate_changes(self, rate: int) -> None:
        self.to_replay(b"x", SetRate(rate))

    @rule(actors=st.integers(0, 5))
    def the_plan_changes(self, actors: int) -> None:
        self.to_replay(b"x", SetActors(actors))

    # What no client of ours does, or only a broken one.

    def from_client(self, name: str, message: Message) -> list[Outgoing]:
        """A message of a broken client at this address; what it is refused with is not for the real one."""
        wire = self.wires[name]
        outgoing = self.replay.service.handle(wire.address, message, self.now, wire.role)
        self.route([out for out in outgoing if not isinstance(out.message, Refused)])
        return outgoing

    @rule(
        name=ACTOR_NAMES,
        keep=st.sampled_from([0, 1, 2, 3]),
        fail=st.booleans(),
        era_offset=st.sampled_from([0, 0, 0, -1]),
        negative=st.booleans(),
    )
    def an_odd_answer_comes(self, name: str, keep: int, fail: bool, era_offset: int, negative: bool) -> None:
        """Of some candidates; the others fail or are never heard of. Some are of another era, some are invalid."""
        task = self.actor(name).client.next_to_recycle()
        if task is None:
            return
        part, rest = task.identities[:keep], task.identities[keep:]
        td_errors = np.arange(part.size, dtype=np.float64) * (-1 if negative else 1)
        failed = rest if fail else rest[:0]
        made = recycle(task).transitions.rows(0, part.size)
        lengths, rewards = np.ones(part.size, dtype=np.int64), np.zeros(part.size)
        era, number = task.era + era_offset, task.round_number
        reasons = ["it is damaged"] * failed.size
        self.from_client(name, Recycled(era, number, part, lengths, rewards, made, td_errors, failed, reasons))

    @precondition(lambda self: self.batches)
    @rule(which=st.integers(0, 100), negative=st.booleans())
    def odd_priorities_come(self, which: int, negative: bool) -> None:
        """Of a batch of any age and era; some are invalid."""
        batch = self.batches[which % len(self.batches)]
        td_errors = td_errors_of(unpacked(batch.transitions))
        message = Priorities(batch.era, batch.identities, -1 - td_errors if negative else td_errors)
        is_member = self.replay.service.sessions.at(self.wires["learner"].address) is not None
        is_invalid = negative and batch.era == self.replay.service.flow.era
        refused = [out for out in self.from_client("learner", message) if isinstance(out.message, Refused)]
        assert bool(refused) == (is_member and is_invalid)

    @rule(count=st.integers(1, 6))
    def too_many_requests_come(self, count: int) -> None:
        for _ in range(count):
            self.from_client("learner", SampleRequest())

    # What always holds.

    @invariant()
    def every_transition_is_accounted_for(self) -> None:
        self.accounts.check(self.replay)

    @invariant()
    def an_actor_never_has_more_in_flight_than_it_may(self) -> None:
        for name in ACTORS:
            outbox = self.actor(name).client.outbox
            assert 0 <= outbox.unacknowledged <= SMALL.system.in_flight + 1, "a step makes up to two transitions"

    @invariant()
    def somebody_can_always_move(self) -> None:
        service = self.replay.service
        flow, rate = service.flow, service.rate
        has_learner = service.sessions.learner is not None
        assert not (has_learner and flow.credits and rate.may_sample(service.t))
        if flow.remaining_steps:  # after the last step chunks wait for the end
            assert not (flow.inbox and rate.may_insert(service.t))
            assert not (flow.credits and flow.inbox)

    @invariant()
    def open_rounds_are_looked_after_and_no_candidate_is_given_thrice(self) -> None:
        assert self.replay.service.flow.dispatch._rounds.keys() == self.replay.replay.rounds.keys()
        assert max(self.issued.values(), default=0) <= 2

    @invariant()
    def members_have_one_name_one_address_and_a_lease(self) -> None:
        sessions = self.replay.service.sessions
        members = list(sessions)
        assert len({member.address for member in members}) == len(members)
        assert all(sessions.at(member.address) is member for member in members)
        assert len({actor.index for actor in sessions.actors}) == len(sessions.actors)
        assert all(self.now - member.heard <= SMALL.system.lease for member in members)

    @invariant()
    def the_statistics_can_be_sent(self) -> None:
        stats = self.replay.service.stats(self.now)
        assert decode(encode(stats)) == stats

    def teardown(self) -> None:
        """Without faults the run finishes, everybody leaves, and everything is still accounted for."""
        self.to_replay(b"x", SetRate(1))
        service = self.replay.service
        for _ in range(2000):
            if service.finished:
                break
            self.everything_works()
        assert service.finished
        assert not self.replay.replay.rounds
        self.route(service.goodbye(True, "the run is finished"))
        for _ in range(round(SMALL.system.lease / TICK) + 2):  # until leases of dead processes end
            self.everything_works()
        for name in ACTORS:
            assert self.actor(name).client.outbox.unacknowledged == 0
            is_member = service.sessions.of(self.actor(name).key) is not None
            assert is_member == (self.actor(name).client.membership.goodbye is not None)
        for name in self.hosts:
            self.hosts[name].leave(self.now)
            self.all_messages_of_one_come(name, "up")
        assert service.everybody_left
        assert not service.flow.inbox
        self.accounts.check(self.replay)


TestInterleavings = Interleavings.TestCase


@pytest.mark.parametrize("steps", [1, 3])
def test_without_faults_everything_is_acknowledged(steps: int) -> None:
    """The machine itself works: what the rules do is what a network does."""
    run = Interleavings()
    run.begin(rate=1, steps=steps)
    for _ in range(200):
        run.everything_works()
        run.every_transition_is_accounted_for()
    assert run.replay.service.finished
    assert (run.replay.replay.counters.chain_steps_stored > 0) == (steps > 1)
    assert not run.accounts.lost(run.replay)
    assert {type(host) for host in run.hosts.values()} == {ActorHost, LearnerHost}
    assert run.processes == 4
    assert run.learner.updates == run.replay.service.rate.batches
    assert run.actor("actor-0").client.membership.welcome is not None
    assert isinstance(run.actor("actor-0").client.membership.welcome, Welcome)
