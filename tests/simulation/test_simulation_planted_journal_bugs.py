"""The simulation can fail: each of these bugs, planted into the journal and its use, is caught by a history."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator

import pytest

from dpsr_apex.protocol.events import Event, EventLog, Evicted, Expired, LearnerSeated, Sampled, Struck
from dpsr_apex.protocol.inbox import Inbox, Key
from dpsr_apex.protocol.recovery import Recovery
from dpsr_apex.protocol.replay_service import Outgoing, ReplayService
from dpsr_apex.record.journal import recover
from dpsr_apex.record.journal.commit import Commit
from dpsr_apex.record.journal.disk import Bytes
from dpsr_apex.record.journal.journal import Journal, remove_all
from dpsr_apex.record.journal.reader import JournalReader
from dpsr_apex.replay.replay import Replay
from dpsr_apex.wire.messages import Chunk, Priorities, Recycled, SetRate
from tests.simulation import storage
from tests.simulation.disk import SimDisk, SimFile
from tests.simulation.hosts import Saved
from tests.simulation.network import Faults
from tests.simulation.storage import JOURNAL, Storage
from tests.simulation.test_simulation_planted_bugs import Bug, Patch, assert_caught
from tests.simulation.trouble import Odds


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    with caplog.at_level(logging.CRITICAL):
        yield


def answers_are_sent_before_their_events_are_written(patch: Patch) -> None:
    commit = Commit.commit

    def early(self: Commit, outgoing: Iterable[Outgoing]) -> list[Outgoing]:
        if self.journal.next % 3 == 0:  # these are written with the next ones
            return list(outgoing)
        return commit(self, outgoing)

    patch.setattr(Commit, "commit", early)


def answers_do_not_wait_for_the_disk(patch: Patch) -> None:
    patch.setattr(Journal, "promised", property(lambda journal: journal.next))


def the_journal_is_cut_before_the_checkpoint_is_durable(patch: Patch) -> None:
    write = Storage.write

    def cut_first(storage: Storage, saved: Saved) -> None:
        if storage.has_journal:
            Journal(storage.disk, JOURNAL, 0, saved.next, {}, awaits_sync=False).remove_before(saved.next)
        write(storage, saved)

    patch.setattr(Storage, "write", cut_first)


def segments_that_only_the_older_checkpoint_needs_are_removed(patch: Patch) -> None:
    checkpoints = Storage.checkpoints
    patch.setattr(Storage, "checkpoints", lambda storage: checkpoints(storage)[-1:])


def records_are_appended_after_a_torn_tail(patch: Patch) -> None:
    patch.setattr(recover, "remove_tail", lambda *_: None)


def the_journal_begins_empty_after_a_recovery(patch: Patch) -> None:
    """So that a second crash before the first checkpoint finds only what came after the first one."""
    patch.setattr(recover, "make_durable", lambda disk, folder: remove_all(disk, folder))


def what_was_recovered_is_not_made_durable(patch: Patch) -> None:
    patch.setattr(recover, "make_durable", lambda *_: None)


def recovered_chunks_are_inserted_without_their_numbers(patch: Patch) -> None:
    def forget(inbox: Inbox, key: Key, chunk: Chunk) -> None:
        stream = inbox.begin(key, 0, 0)
        inbox._traffic.received += len(chunk.transitions)
        stream.done += len(chunk.transitions)
        inbox.report_sent(key, stream.done)

    patch.setattr(Inbox, "settle_again", forget)


def _without(kind: type) -> Bug:
    def plant(patch: Patch) -> None:
        add = EventLog.add
        patch.setattr(EventLog, "add", lambda log, event: None if isinstance(event, kind) else add(log, event))

    plant.__name__ = f"{kind.__name__.lower()}_is_not_recorded"
    return plant


def draws_are_not_repeated_when_batches_are_recovered(patch: Patch) -> None:
    apply = Recovery.apply

    def without_draws(recovery: Recovery, event: Event) -> None:
        if isinstance(event, Sampled):
            recovery.service.rate.batches += event.batches
        else:
            apply(recovery, event)

    patch.setattr(Recovery, "apply", without_draws)


def open_rounds_are_not_saved(patch: Patch) -> None:
    save = Replay.save

    def without_rounds(replay: Replay) -> object:
        facts, arrays = save(replay)
        return facts, {name: array for name, array in arrays.items() if not name.startswith("rounds/")}

    patch.setattr(Replay, "save", without_rounds)


def a_checkpoint_is_taken_with_a_record_unwritten(patch: Patch) -> None:
    patch.setattr(Commit, "may_save", True)


def a_record_is_not_removed_when_the_disk_is_full(patch: Patch) -> None:
    patch.setattr(SimFile, "truncate", lambda *_: None)


def the_service_is_not_held_when_the_disk_is_full(patch: Patch) -> None:
    append = Journal.append

    def careless(journal: Journal, content: list[Bytes], t: int) -> None:
        if journal._disk.free is None:  # type: ignore[attr-defined]
            append(journal, content, t)

    patch.setattr(Journal, "append", careless)


def the_names_of_segments_are_not_synced(patch: Patch) -> None:
    sync_folder = SimDisk.sync_folder
    patch.setattr(SimDisk, "sync_folder", lambda disk, folder: folder == JOURNAL or sync_folder(disk, folder))


def a_failed_sync_is_tried_again(patch: Patch) -> None:
    """As if it had changed nothing; but the kernel has marked as written what it could not write."""
    sync = SimFile.sync

    def patient(file: SimFile) -> None:
        try:
            sync(file)
        except OSError:
            sync(file)

    patch.setattr(SimFile, "sync", patient)


def the_learner_is_lost_when_settings_have_changed(patch: Patch) -> None:
    patch.setattr(ReplayService, "take_over", lambda service, former: service.load(former.save()))


def the_state_of_the_learner_beside_the_journal_is_not_read(patch: Patch) -> None:
    patch.setattr(recover, "read_learner", lambda *_: None)


def damage_is_taken_for_an_interrupted_write(patch: Patch) -> None:
    patch.setattr(JournalReader, "_stop", lambda *_: None)


def a_missing_segment_is_passed_over(patch: Patch) -> None:
    def needed(reader: JournalReader) -> list[int]:
        return list(reader._segments)[-1:]

    patch.setattr(JournalReader, "_needed", needed)


def more_than_the_damage_is_given_up(patch: Patch) -> None:
    patch.setattr(storage, "set_aside", lambda disk, damage: remove_all(disk, damage.path.parent))


JOURNALED = Odds(durabilities=("process", "power"), faults=("disk",), fault_pauses=(1.0,))
KILLED = JOURNALED._replace(disk_faults=("crash", "kill"))
SYNCED = JOURNALED._replace(durabilities=("power",))
RECOVERED = JOURNALED._replace(  # the replay ends at a random moment, again and again
    durabilities=("process",), disk_faults=("loss",), seconds=60.0, fault_pauses=(6.0,), damaged_checkpoints=0.0
)

BUGS: dict[Bug, Odds] = {  # with odds under which a history often leads to it
    answers_are_sent_before_their_events_are_written: Odds(),
    answers_do_not_wait_for_the_disk: SYNCED,
    the_journal_is_cut_before_the_checkpoint_is_durable: Odds(),
    segments_that_only_the_older_checkpoint_needs_are_removed: KILLED._replace(damaged_checkpoints=1.0),
    records_are_appended_after_a_torn_tail: JOURNALED,
    the_journal_begins_empty_after_a_recovery: SYNCED,
    what_was_recovered_is_not_made_durable: SYNCED._replace(disk_faults=("crash", "kill", "kill")),
    recovered_chunks_are_inserted_without_their_numbers: Odds(),
    _without(Sampled): Odds(),
    _without(Expired): RECOVERED._replace(recycle_deadline=0.2),
    _without(Priorities): Odds(),
    _without(Recycled): Odds(),
    _without(LearnerSeated): RECOVERED,
    _without(Evicted): RECOVERED,
    _without(Struck): RECOVERED,
    _without(SetRate): RECOVERED._replace(faults=("disk", "scale"), fault_pauses=(3.0,)),
    draws_are_not_repeated_when_batches_are_recovered: Odds(),
    open_rounds_are_not_saved: RECOVERED,
    a_checkpoint_is_taken_with_a_record_unwritten: JOURNALED._replace(
        disk_faults=("full", "full", "crash"), full_seconds=(0.5,)
    ),
    a_record_is_not_removed_when_the_disk_is_full: JOURNALED,
    the_service_is_not_held_when_the_disk_is_full: JOURNALED._replace(
        durabilities=("process",), disk_faults=("full", "crash")
    ),
    the_names_of_segments_are_not_synced: SYNCED,
    a_failed_sync_is_tried_again: SYNCED._replace(disk_faults=("sync",)),
    the_learner_is_lost_when_settings_have_changed: Odds(
        durabilities=("process",), faults=("command",), network=(Faults(),), fault_pauses=(2.0,)
    ),
    the_state_of_the_learner_beside_the_journal_is_not_read: RECOVERED,
    damage_is_taken_for_an_interrupted_write: Odds(),
    more_than_the_damage_is_given_up: RECOVERED._replace(damaged_journals=1.0),
    a_missing_segment_is_passed_over: Odds(),
}


@pytest.mark.parametrize(("bug", "odds"), BUGS.items(), ids=lambda value: getattr(value, "__name__", ""))
def test_a_planted_bug_is_caught(bug: Bug, odds: Odds) -> None:
    assert_caught(bug, odds)
