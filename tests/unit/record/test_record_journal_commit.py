"""Answers wait for their events; a service that is recovered from its journal is the one that ended."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random

import numpy as np
import pytest

from dpsr_apex.config import Config, ConfigError
from dpsr_apex.protocol.events import Logged
from dpsr_apex.protocol.replay_service import Outgoing, ReplayService
from dpsr_apex.record.journal.commit import Commit
from dpsr_apex.record.journal.encoding import digest_of
from dpsr_apex.record.journal.journal import Journal
from dpsr_apex.record.journal.reader import DamagedJournal
from dpsr_apex.record.journal.recover import Base, Recovered, journal_facts, recover
from dpsr_apex.record.journal.segments import list_segments
from dpsr_apex.state import State
from dpsr_apex.wire.codec import decode, encode
from dpsr_apex.wire.messages import (
    Acknowledged,
    Alive,
    Chunk,
    Heartbeat,
    LearnerState,
    Learning,
    Message,
    Refused,
    SampleRequest,
    SetRate,
    Unusable,
)
from tests.simulation.disk import SimDisk
from tests.unit.protocol.watched_service import CONFIG, ERA, KeyedService, WatchedReplay, chunk, join, only

FOLDER = Path("run/journal")
FREE = replace(CONFIG, learner=replace(CONFIG.learner, steps_per_update=0))
LONGER = replace(FREE, run=replace(FREE.run, total_steps=2 * FREE.run.total_steps))


def make(config: Config) -> KeyedService:
    return KeyedService(config, WatchedReplay(config), "run-1", "0.12.1", ERA)


class Run:
    """A service with a journal on a simulated disk."""

    def __init__(self, config: Config = FREE, awaits_sync: bool = False, disk: SimDisk | None = None) -> None:
        self.disk = disk or SimDisk(Random(0))
        self.recovered = self.recover(config)
        assert isinstance(self.recovered.service, KeyedService)
        self.service = self.recovered.service
        facts = journal_facts(config)
        journal = Journal(self.disk, FOLDER, ERA, self.recovered.next, facts, awaits_sync)
        self.commit = Commit(self.service, journal)

    def recover(self, config: Config, state: State | None = None, since: int = 0) -> Recovered:
        def load(service: ReplayService) -> None:
            if state:
                service.load(state)

        return recover(self.disk, FOLDER, config, make, Base(load, next=since))

    def handle(self, sender: str, message: Message) -> list[Outgoing]:
        return self.commit.commit(self.service.handle(sender.encode(), message, 0.0))

    def enter(self, *names: str) -> None:
        for name in names:
            self.handle(name, join(name, name.split("-")[0]))


def test_what_is_answered_can_be_recovered() -> None:
    run = Run()
    run.enter("actor-0", "learner-0")
    for number in range(12):
        assert only(run.handle("actor-0", chunk(number)), Acknowledged)[-1].sequence == number + 1
        run.handle("learner-0", SampleRequest())
        recovered = run.recover(FREE)
        assert digest_of(recovered.service) == digest_of(run.service)
    assert recovered.records >= 12


def test_a_checkpoint_and_the_records_after_it_are_the_whole() -> None:
    run = Run()
    run.enter("actor-0")
    for number in range(5):
        run.handle("actor-0", chunk(number))
    run.commit.journal.roll()
    state, since = run.service.save(), run.commit.journal.next
    for number in range(5, 9):
        run.handle("actor-0", chunk(number))
    recovered = run.recover(FREE, state, since)
    assert digest_of(recovered.service) == digest_of(run.service)
    assert recovered.records == 4


def test_a_service_under_changed_settings_keeps_the_learner_of_its_checkpoint() -> None:
    run, kept = Run(), LearnerState('{"updates": 7}', b"weights")

    def load(service: ReplayService) -> None:
        service.learner.state = kept

    run.enter("actor-0")
    run.handle("actor-0", chunk(0))
    recovered = recover(run.disk, FOLDER, LONGER, make, Base(load))
    assert recovered.records > 0, "under the settings of before"
    assert recovered.service.learner.state == kept


def drained(service: ReplayService) -> list[object]:
    """What a service has for the next row of metrics, for the quarantine folder and for the user."""
    quarantined = [
        (each.t, each.reason, each.rows.slots.identities.tolist()) for each in service.flow.quarantine.drain()
    ]
    learning = service.learner.report, service.learner.drain_reports()
    return [
        service.drain_episodes(),
        learning,
        service.flow.policy_ages.drain(),
        quarantined,
        service.flow.drain_reports(),
    ]


def test_a_service_under_changed_settings_keeps_what_was_not_logged_yet() -> None:
    run = Run()
    run.enter("actor-0", "learner-0")
    run.handle("actor-0", chunk(0, count=12, scores=[3.0]))
    for _ in range(3):
        run.handle("learner-0", SampleRequest())
    run.handle("learner-0", Learning(3, 3, 0.5, 1.0, 2.0, 0.1))
    run.handle("learner-0", Unusable(ERA, run.service.replay.identities[:2], "damaged"))
    expected, found = drained(run.recover(FREE).service), drained(run.recover(LONGER).service)
    assert all(expected)
    assert found == expected


def test_a_chunk_is_recorded_as_it_was_received_if_it_is_inserted_at_once() -> None:
    run, other = Run(), Run()
    for one in (run, other):
        one.enter("actor-0")
    for number in range(3):
        sent = chunk(number, scores=[1.5])
        received = decode([bytes(frame) for frame in encode(sent)])
        assert isinstance(received, Chunk)
        run.commit.received(received, encode(sent))
        run.handle("actor-0", received)
        other.handle("actor-0", sent)
    assert digest_of(run.recover(FREE).service) == digest_of(run.service)
    contents = [[one.disk.read(path) for path in list_segments(one.disk, FOLDER).values()] for one in (run, other)]
    assert contents[0] == contents[1], "the frames differ only in the number of the message type"


def test_with_power_answers_wait_until_their_records_are_durable() -> None:
    run = Run(awaits_sync=True)
    run.enter("actor-0")
    assert run.commit.released() == []
    run.commit.journal.sync()
    assert len(run.commit.released()) > 0
    assert run.handle("actor-0", chunk(0)) == []
    assert run.handle("actor-0", Heartbeat(5)) == [], "it would show the new clock"
    assert run.commit.released() == []
    run.commit.journal.sync()
    kinds = [type(out.message) for out in run.commit.released()]
    assert kinds == [Acknowledged, Alive], "in their order"
    assert run.handle("x", Heartbeat(5)), "what depends on nothing new is sent at once"


def test_a_full_disk_holds_the_service_until_there_is_space() -> None:
    run = Run()
    run.enter("actor-0", "learner-0")
    run.handle("actor-0", chunk(0))
    before = digest_of(run.recover(FREE).service)
    run.disk.free = 0
    assert run.handle("actor-0", chunk(1)) == [], "its acknowledgement waits"
    assert "no space left" in run.service.held
    held = digest_of(run.service)
    assert only(run.handle("actor-0", Heartbeat(10)), Alive)[0].t == 5, "the clock after the last record"
    assert run.handle("actor-0", chunk(2)) == []
    assert only(run.handle("x", SetRate(3)), Refused)
    for message in (SampleRequest(), Heartbeat(20)):
        run.handle("learner-0", message)
    run.service.tick(0.5)
    assert run.commit.tick() == []
    assert digest_of(run.service) == held, "nothing changes"
    assert digest_of(run.recover(FREE).service) == before, "and nothing was written"
    run.disk.free = None
    assert [type(out.message) for out in run.commit.tick()] == [Acknowledged]
    assert not run.service.held
    assert only(run.handle("actor-0", chunk(2)), Acknowledged)[0].sequence == 3
    assert digest_of(run.recover(FREE).service) == digest_of(run.service)
    notes = [note.text for note in run.service.notes.newest if "journal" in note.text]
    assert len(notes) == 2


def test_a_journal_that_lacks_a_record_is_not_closed_as_if_it_were_complete() -> None:
    run = Run()
    run.enter("actor-0")
    run.handle("actor-0", chunk(0))
    before = digest_of(run.service)
    run.disk.free = 0
    run.handle("actor-0", chunk(1))
    with pytest.raises(OSError, match="No space left"):
        run.commit.close()
    assert digest_of(run.recover(FREE).service) == before, "the next process continues without the record"


def test_a_journal_is_closed_with_a_record_for_which_there_is_space_again() -> None:
    run = Run()
    run.enter("actor-0")
    run.disk.free = 0
    run.handle("actor-0", chunk(0))
    run.disk.free = None
    assert [type(out.message) for out in run.commit.close()] == [Acknowledged]
    assert digest_of(run.recover(FREE).service) == digest_of(run.service)


def test_the_last_record_is_confirmed_once_when_nothing_happens() -> None:
    run = Run()
    run.enter("actor-0")
    run.handle("actor-0", chunk(0))
    run.commit.tick()
    written = run.commit.journal.next
    for _ in range(5):
        run.commit.tick()
    assert run.commit.journal.next == written + 1
    (path,) = list_segments(run.disk, FOLDER).values()
    run.disk.flip_bit(path, run.disk.read(path).rindex(b"snapshot"), 3)
    with pytest.raises(DamagedJournal):
        run.recover(FREE)


def test_another_config_applies_from_where_it_was_set() -> None:
    run = Run()
    run.enter("actor-0")
    for number in range(8):
        run.handle("actor-0", chunk(number))
    longer = replace(FREE, run=replace(FREE.run, total_steps=200), replay=replace(FREE.replay, recycle_candidates=3))
    second = Run(longer, disk=run.disk)
    assert second.service.t == 40
    assert second.service.replay.config == longer.replay
    np.testing.assert_array_equal(second.service.replay.identities, run.service.replay.identities)
    second.enter("actor-0")
    for number in range(8, 20):
        second.handle("actor-0", chunk(number))
    recovered = second.recover(longer)
    assert digest_of(recovered.service) == digest_of(second.service)
    assert recovered.service.t == 100
    third = second.recover(FREE)
    assert (third.service.t, third.service.flow.remaining_steps) == (100, 0)


def test_the_state_of_the_recorder_is_that_of_the_last_row() -> None:
    run = Run()
    run.enter("actor-0")
    run.handle("actor-0", chunk(0, scores=[1.0]))
    run.service.events.add(Logged('{"row": 1}'))
    run.handle("actor-0", chunk(1, scores=[2.0]))
    recovered = run.recover(FREE)
    assert recovered.recorder == '{"row": 1}'
    assert recovered.service.drain_episodes() == [(2.0, 11)]


def test_chunks_that_were_not_written_are_sent_again() -> None:
    """A crash between the change and the write: nobody was told, and the actor still has it."""
    run = Run()
    run.enter("actor-0")
    run.handle("actor-0", chunk(0))
    run.service.handle(b"actor-0", chunk(1), 0.0)
    assert run.service.t == 10
    recovered = run.recover(FREE).service
    assert recovered.t == 5
    assert isinstance(chunk(1), Chunk)
    welcome = recovered.handle(b"a", join(), 0.0, "actor")
    assert only(welcome, Acknowledged)[0].sequence == 1


def test_a_setting_on_which_the_records_depend_cannot_change() -> None:
    run = Run()
    run.enter("actor-0")
    run.handle("actor-0", chunk(0))
    with pytest.raises(ConfigError, match=r"replay\.capacity is 30 now, but .* with 20: set it back"):
        run.recover(replace(FREE, replay=replace(FREE.replay, capacity=30)))
