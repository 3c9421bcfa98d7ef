"""A second service that applies the recorded events of a first one has the same state after each of them."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from dpsr_apex.config import Config
from dpsr_apex.protocol.events import Counted, Event, Logged, Sampled, Sender
from dpsr_apex.protocol.recovery import Recovery
from dpsr_apex.protocol.replay_service import Outgoing, ReplayService
from dpsr_apex.record.journal.encoding import decode_events, digest_of, encode_events
from dpsr_apex.state import State
from dpsr_apex.wire.codec import BadMessage
from dpsr_apex.wire.messages import (
    ACTOR,
    Batch,
    Chunk,
    Gone,
    Heartbeat,
    LearnerState,
    Learning,
    Leave,
    Priorities,
    Recycle,
    SampleRequest,
    SetRate,
    Unusable,
    Welcome,
)
from tests.unit.protocol.watched_service import (
    CONFIG,
    DEEP,
    ERA,
    WatchedReplay,
    answer,
    chained,
    chunk,
    enter,
    join,
    recycled,
    service,
    transitions,
)


def fresh(config: Config) -> ReplayService:
    return ReplayService(config, WatchedReplay(config), "run-1", "0.12.1", ERA + 1)


class Pair:
    """A service with a journal, and another one that is recovered from it, step by step."""

    def __init__(self, config: Config = CONFIG) -> None:
        self.live = service(replace(config, run=replace(config.run, total_steps=5_000)))
        self.live.events.is_kept = True
        self.shadow = Recovery(fresh(self.live.config))
        self.events: list[Event] = []

    def commit(self) -> None:
        """Write a record, read it, and apply its events."""
        record = b"".join(encode_events(self.live.events.take()))
        for event in decode_events(record):
            self.events.append(event)
            self.shadow.apply(event)
        assert digest_of(self.shadow.service) == digest_of(self.live)


class Members:
    """Two actors and a learner, who do anything at any time."""

    def __init__(self, pair: Pair, rng: np.random.Generator) -> None:
        self.pair, self.rng = pair, rng
        self.now = 0.0
        self.incarnations = {"actor-0": 1, "actor-1": 1, "learner-0": 1}
        self.sequences: dict[str, int] = dict.fromkeys(self.incarnations, 0)
        self.requests: list[tuple[str, Recycle]] = []
        self.batches: list[Batch] = []
        for name in self.incarnations:
            self.enter(name)

    def enter(self, name: str, **more: int) -> None:
        role = name.partition("-")[0]
        self.take(self.pair.live.handle(name.encode(), join(name, role, self.incarnations[name], **more), self.now))

    def take(self, outgoing: list[Outgoing]) -> None:
        for address, message in outgoing:
            if isinstance(message, Recycle):
                self.requests.append((address.decode(), message))
            elif isinstance(message, Batch):
                self.batches.append(message)
        self.pair.commit()

    def send(self, name: str, message: object) -> None:
        self.take(self.pair.live.handle(name.encode(), message, self.now))  # type: ignore[arg-type]

    def act(self) -> None:
        self.now += float(self.rng.choice([0.01, 0.1, 0.5]))
        match int(self.rng.integers(15)):
            case 0 | 1 | 2 | 3:
                self.send_chunk(str(self.rng.choice(["actor-0", "actor-1"])))
            case 4 | 5:
                self.send("learner-0", SampleRequest())
            case 6 if self.batches:
                self.send_priorities(self.batches[int(self.rng.integers(len(self.batches)))])
            case 7 | 8 if self.requests:
                self.recycle(*self.requests.pop(int(self.rng.integers(len(self.requests)))))
            case 9:
                self.send("x", SetRate(int(self.rng.integers(3))))
            case 10:
                self.restart(str(self.rng.choice(list(self.incarnations))))
            case 11:
                self.send("actor-0", Heartbeat(int(self.rng.integers(500))))
                self.send("learner-0", Learning(3, 1, 0.5, 0.5, 0.5, 0.0))
            case 12:
                self.send("learner-0", LearnerState(json.dumps({"updates": int(self.rng.integers(5))}), b"1"))
            case 13:
                self.take(self.pair.live.tick(self.now))
            case 14:
                stored = self.pair.live.replay.identities
                some = self.rng.choice(stored, self.rng.integers(3)) if stored.size else stored
                self.send("learner-0", Unusable(ERA, some, "damaged"))

    def send_chunk(self, name: str) -> None:
        size = int(self.rng.integers(1, 9))
        message = chunk(0, size)._replace(sequence=self.sequences[name], scores=np.ones(1), lengths=np.array([9]))
        if self.rng.random() < 0.1:
            message.transitions.r_t[self.rng.integers(size)] = np.nan
        self.sequences[name] += 1
        self.send(name, message)

    def send_priorities(self, batch: Batch) -> None:
        td_errors = self.rng.random(batch.identities.size) * 10 - (5 if self.rng.random() < 0.1 else 0)
        self.send("learner-0", Priorities(batch.era, batch.identities, td_errors))

    def recycle(self, name: str, request: Recycle) -> None:
        count = request.identities.size
        if self.rng.random() < 0.3:
            self.send(name, recycled(request, transitions(count - 1), request.identities[-1:]))
        elif self.rng.random() < 0.5:
            self.send(name, answer(request))
        else:
            most = self.pair.live.config.replay.recycle_steps
            self.send(name, chained(request, self.rng.integers(1, most, count, endpoint=True).tolist()))

    def restart(self, name: str) -> None:
        """Another process of this name, or the same one again, which can only send later chunks."""
        if self.rng.random() < 0.5:
            self.send(name, Leave(0)) if self.rng.random() < 0.5 else self.send("x", Gone(name))
            self.incarnations[name] += 1
            self.sequences[name] = 0
            self.enter(name)
        elif name != "learner-0":
            self.sequences[name] += int(self.rng.integers(3))
            self.enter(name, sequence=self.sequences[name], acknowledged=4 * self.sequences[name])


@pytest.mark.parametrize("seed", range(6))
def test_events_lead_to_the_same_state_after_each_of_them(seed: int) -> None:
    pair = Pair(DEEP if seed % 2 else CONFIG)
    members = Members(pair, np.random.default_rng(seed))
    for _ in range(400):
        members.act()
    assert pair.live.t > 150
    kinds = {type(event).__name__ for event in pair.events}
    expected = {"Chunk", "Sender", "Sampled", "Priorities", "Recycled", "Expired", "SetRate", "LearnerSeated"}
    assert expected | {"Learning", "Reported", "Advanced", "Described", "Counted", "Evicted", "Struck"} <= kinds
    assert pair.live.traffic.bad_rewards > 0
    assert pair.live.replay.counters.quarantined > 0
    assert pair.live.traffic.refused > 0
    for event in (Sampled, Counted):
        assert any(isinstance(each, event) for each in pair.events)


def test_events_can_be_applied_to_any_earlier_state() -> None:
    pair = Pair()
    members = Members(pair, np.random.default_rng(1))
    saved: list[tuple[State, int]] = []
    for step in range(300):
        members.act()
        if step % 50 == 0:
            state = pair.live.save()
            saved.append((State(json.loads(json.dumps(state.facts)), state.arrays), len(pair.events)))
    for state, place in saved:
        recovery = Recovery(fresh(pair.live.config))
        recovery.service.load(state)
        for event in pair.events[place:]:
            recovery.apply(event)
        assert digest_of(recovery.service) == digest_of(pair.live)
        recovery.finish()
        assert digest_of(recovery.service) == digest_of(pair.live)
        assert recovery.service.replay.check_valid() == (True, "")
        traffic = recovery.service.traffic
        assert traffic.received == traffic.inserted + traffic.refused
        assert traffic.sent == traffic.received + traffic.lost


def test_a_recovered_service_welcomes_actors_where_they_were() -> None:
    pair = Pair()
    enter(pair.live, "actor-0")
    for number in range(6):
        pair.live.handle(b"actor-0", chunk(number), 0.0)
    pair.commit()
    pair.shadow.finish()
    recovered = pair.shadow.service
    welcome = recovered.handle(b"a", join("actor-0"), 0.0, ACTOR)[0].message
    assert isinstance(welcome, Welcome)
    assert (welcome.sequence, welcome.t) == (4, 20), "two chunks waited for updates; they are sent again"


def test_episodes_and_reports_after_the_last_row_are_kept() -> None:
    pair = Pair()
    enter(pair.live, "actor-0", "learner-0")
    pair.live.handle(b"actor-0", chunk(0, scores=[1.0, 2.0]), 0.0)
    pair.commit()
    pair.live.events.add(Logged("{}"))
    pair.live.handle(b"actor-0", chunk(1, scores=[3.0]), 0.0)
    pair.live.handle(b"learner-0", Learning(3, 1, 0.5, 0.5, 0.5, 0.0), 0.0)
    pair.commit()
    assert pair.shadow.service.drain_episodes() == [(3.0, 11)]
    assert [report.updates for report in pair.shadow.service.learner.drain_reports()] == [3]


def test_events_are_merged_and_senders_are_named_once_in_a_row() -> None:
    log = service(CONFIG).events
    log.add(Sampled(1))
    assert log.take() == [], "without a journal nothing is kept"
    log.is_kept = True
    for name in ("a", "a", "b", "a"):
        log.add_chunk(Sender(name, 1), chunk(0))
    log.add(Sampled(1))
    log.add(Sampled(1))
    events = log.take()
    assert [type(event) for event in events] == [Sender, Chunk, Chunk, Sender, Chunk, Sender, Chunk, Sampled]
    assert events[-1] == Sampled(2)
    log.add_chunk(Sender("a", 1), chunk(0))
    assert isinstance(log.take()[0], Sender), "every record names its senders"


def test_a_record_that_was_cut_is_refused() -> None:
    record = b"".join(encode_events([Sender("a", 1), Sampled(3), chunk(0)]))
    assert len(list(decode_events(record))) == 3
    for end in range(1, len(record)):
        try:
            events = list(decode_events(record[:end]))
        except BadMessage:
            continue
        assert len(events) < 3
