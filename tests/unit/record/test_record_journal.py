"""The journal on a simulated disk that is killed, cut, full, failing or damaged at any operation."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from dpsr_apex.protocol.learner_record import updates_in
from dpsr_apex.record.journal import journal as journal_module
from dpsr_apex.record.journal.disk import Disk, RealDisk
from dpsr_apex.record.journal.journal import DiskFull, Journal, make_durable, remove_all
from dpsr_apex.record.journal.learner import read_learner, remove_learner, write_learner
from dpsr_apex.record.journal.reader import DamagedJournal, JournalReader, remove_tail
from dpsr_apex.record.journal.segments import (
    Place,
    find_records,
    list_segments,
    newest_t,
    pack_record,
    parse,
    read_facts,
)
from dpsr_apex.wire.messages import LearnerState
from tests.simulation.disk import Killed, SimDisk

FOLDER = Path("run/journal")


def open_journal(disk: Disk, next_: int = 0, awaits_sync: bool = False, folder: Path = FOLDER, era: int = 1) -> Journal:
    return Journal(disk, folder, era, next_, {"config": "of this run"}, awaits_sync)


def content_of(number: int) -> bytes:
    """Records of many sizes, all different."""
    return b"record %d " % number * (number * 7919 % 23)


def append(journal: Journal, count: int) -> None:
    for number in range(journal.next, journal.next + count):
        journal.append([content_of(number), b"end"], t=10 * number)


def read(disk: Disk, since: int = 0, folder: Path = FOLDER) -> tuple[list[int], JournalReader]:
    """The numbers of all records, whose contents are checked, and the reader after them."""
    reader = JournalReader(disk, folder, since, 0)
    numbers = []
    for record in reader.records():
        if not record.is_header:
            assert bytes(record.content) == content_of(record.place.sequence) + b"end"
            assert record.place.t == 10 * record.place.sequence
            numbers.append(record.place.sequence)
    return numbers, reader


@pytest.fixture(autouse=True)
def _small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_module, "SEGMENT", 1_000)


@pytest.fixture
def disk() -> SimDisk:
    return SimDisk(Random(0))


@pytest.fixture(params=["simulated", "real"])
def any_disk(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Disk, Path]:
    return (SimDisk(Random(0)), FOLDER) if request.param == "simulated" else (RealDisk(), tmp_path)


def test_what_is_appended_is_read_across_segments_and_processes(any_disk: tuple[Disk, Path]) -> None:
    disk, folder = any_disk
    for era in range(4):
        numbers, reader = read(disk, folder=folder)
        assert numbers == list(range(25 * era))
        journal = open_journal(disk, reader.next, folder=folder, era=era)
        append(journal, 25)
        journal.close()
    numbers, reader = read(disk, folder=folder)
    assert numbers == list(range(100))
    assert (reader.next, reader.t, reader.tail) == (100, 990, None)
    assert read(disk, 37, folder)[0] == list(range(37, 100))
    assert len(list_segments(disk, folder)) > 8


def test_a_journal_that_does_not_exist_yet_is_durable_and_empty(tmp_path: Path) -> None:
    make_durable(RealDisk(), tmp_path / "journal")
    assert list(JournalReader(RealDisk(), tmp_path / "journal", 0, 0).records()) == []


def test_a_header_states_the_process_and_the_first_record(disk: SimDisk) -> None:
    journal = open_journal(disk, 7, era=99)
    append(journal, 1)
    (path,) = list_segments(disk, FOLDER).values()
    header = parse(disk.read(path), 0)
    assert header is not None
    assert (header.is_header, header.place.era, header.place.sequence) == (True, 99, 7)
    assert read_facts(header)["config"] == "of this run"


def test_records_are_found_without_searching_a_byte_twice(disk: SimDisk) -> None:
    """The newest clock of a run is read from a whole segment, which has thousands of records."""
    searched = 0

    class Searched(bytes):
        def find(self, wanted: bytes, start: int) -> int:  # type: ignore[override]
            nonlocal searched
            place = super().find(wanted, start)
            searched += (len(self) if place < 0 else place) - start
            return place

    append(open_journal(disk), 14)
    path = next(iter(list_segments(disk, FOLDER).values()))
    data = Searched(b"torn" + disk.read(path))
    assert len(list(find_records(data, 0))) > 5
    assert searched <= len(data)


def test_an_empty_journal_has_no_records(disk: SimDisk) -> None:
    numbers, reader = read(disk, 5)
    assert (numbers, reader.next, reader.tail) == ([], 5, None)
    open_journal(disk).close()
    assert disk.names(FOLDER) == [], "a process that changes nothing leaves no segment"


def test_a_torn_tail_is_reported_and_nothing_is_appended_after_it() -> None:
    """Wherever the last write was interrupted: the records before it are read, also after another process."""
    size, tails = 1, 0
    while size > 0:
        disk = SimDisk(Random(0))
        append(open_journal(disk), 14)
        last = list(list_segments(disk, FOLDER).values())[-1]
        size = len(disk.read(last)) - 1 - tails
        disk.open(last).truncate(size)
        numbers, reader = read(disk)
        assert numbers == list(range(len(numbers)))
        if reader.tail:
            assert reader.tail.path == last
            remove_tail(disk, reader.tail)
        journal = open_journal(disk, reader.next, era=2)
        append(journal, 9)
        numbers, reader = read(disk)
        assert numbers == list(range(journal.next))
        assert reader.tail is None
        tails += 1
    assert tails > 100


def test_content_that_looks_like_a_record_does_not_make_an_interrupted_write_look_like_damage(disk: SimDisk) -> None:
    journal = open_journal(disk)
    append(journal, 3)
    forged = b"".join(pack_record(Place(era=99, sequence=9, promised=9, t=9), [b"made by a client"]))
    journal.append([forged, b"the rest"], 4)
    (path,) = list_segments(disk, FOLDER).values()
    disk.open(path).truncate(len(disk.read(path)) - 3)
    numbers, reader = read(disk)
    assert numbers == [0, 1, 2]
    assert reader.tail is not None
    assert newest_t(disk, FOLDER) == reader.t


def test_content_of_a_later_segment_that_looks_like_a_record_does_not_either(disk: SimDisk) -> None:
    journal = open_journal(disk, awaits_sync=True)
    append(journal, 3)
    journal.roll()
    forged = b"".join(pack_record(Place(era=99, sequence=9, promised=9, t=9), [b"made by a client"]))
    journal.append([forged, b"the rest"], 4)
    for path in list_segments(disk, FOLDER).values():
        disk.open(path).truncate(len(disk.read(path)) - 3)
    numbers, reader = read(disk)
    assert numbers == [0, 1]
    assert reader.tail is not None


def test_a_process_killed_in_any_operation_loses_nothing_that_was_written() -> None:
    """Killed again and again, also while it recovers: what `append` has returned for is there, and nothing twice."""
    for seed in range(300):
        rng = Random(seed)
        disk = SimDisk(rng)
        promised = 0
        for era in range(6):
            disk.kill_after = rng.randrange(40)
            try:
                numbers, reader = read(disk)
                assert numbers == list(range(len(numbers)))
                assert reader.next >= promised
                if reader.tail:
                    remove_tail(disk, reader.tail)
                journal = open_journal(disk, reader.next, era=era)
                for _ in range(50):
                    append(journal, 1)
                    promised = journal.promised
                    if rng.random() < 0.1:
                        journal.roll()
            except Killed:
                pass


def test_a_power_cut_loses_nothing_that_was_synced() -> None:
    lost = 0
    for seed in range(300):
        rng = Random(seed)
        disk = SimDisk(rng)
        promised = 0
        for era in range(5):
            numbers, reader = read(disk)
            assert numbers == list(range(len(numbers)))
            assert reader.next >= promised, f"seed {seed}"
            if reader.tail:
                remove_tail(disk, reader.tail)
            make_durable(disk, FOLDER)
            journal = open_journal(disk, reader.next, awaits_sync=True, era=era)
            for _ in range(rng.randrange(40)):
                append(journal, 1)
                if rng.random() < 0.3:
                    journal.sync()
                assert journal.promised <= journal.next
            promised = max(journal.promised, reader.next)
            lost += journal.next - promised
            if rng.random() < 0.5:
                disk.cut_power()
    assert lost > 100, "records that were not synced"


def test_what_an_earlier_process_did_not_sync_is_durable_before_it_is_promised(disk: SimDisk) -> None:
    append(open_journal(disk, awaits_sync=True), 20)  # and then it is killed
    assert read(disk)[0] == list(range(20))
    make_durable(disk, FOLDER)
    disk.cut_power()
    assert read(disk)[0] == list(range(20))


def test_a_failed_sync_leaves_nothing_behind_that_was_not_promised() -> None:
    """A kernel may mark pages as clean that it could not write: they can be read, but are not on the disk."""
    for seed in range(100):
        rng = Random(seed)
        disk = SimDisk(rng)
        journal = open_journal(disk, awaits_sync=True)
        append(journal, 30)
        journal.sync()
        append(journal, rng.randrange(1, 40))
        disk.sync_fails = True
        with pytest.raises(OSError, match="input/output"):
            journal.sync()
        assert journal.promised == 30
        with pytest.raises(OSError, match="input/output"):
            append(journal, 1)
        numbers, reader = read(disk)
        assert numbers == list(range(30))
        make_durable(disk, FOLDER)
        journal = open_journal(disk, reader.next, awaits_sync=True, era=2)
        append(journal, 5)
        journal.sync()
        disk.cut_power()
        assert read(disk)[0] == list(range(35))


def test_what_a_killed_process_could_not_flush_is_written_again_before_it_is_promised() -> None:
    """It was killed before it could remove what its last flush has failed to store."""
    for seed in range(60):
        disk = SimDisk(Random(seed))
        journal = open_journal(disk, awaits_sync=True)
        append(journal, 10)
        journal.sync()
        append(journal, 30)
        disk.sync_fails, disk.kill_after = True, seed % 6
        with pytest.raises((Killed, OSError)):
            journal.sync()
        disk.sync_fails, disk.kill_after = False, None
        numbers, reader = read(disk)
        make_durable(disk, FOLDER)
        disk.cut_power()
        assert read(disk)[0] == numbers == list(range(reader.next))
        assert reader.next >= 10


def test_a_file_is_written_again_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(range(256)) * 100)
    before = path.stat()
    RealDisk().rewrite(path)
    assert path.read_bytes() == bytes(range(256)) * 100
    assert path.stat().st_mtime_ns > before.st_mtime_ns
    assert path.stat().st_ino == before.st_ino


def test_a_journal_that_could_not_be_flushed_cannot_be_closed_as_if_it_were(disk: SimDisk) -> None:
    journal = open_journal(disk, awaits_sync=True)
    append(journal, 10)
    journal.sync()
    append(journal, 5)
    disk.sync_fails = True  # once: the next one succeeds, and stores nothing
    with pytest.raises(OSError, match="input/output"):
        journal.sync()
    with pytest.raises(OSError, match="input/output"):
        journal.close()
    assert journal.promised == 10
    assert read(disk)[0] == list(range(10)), "what is not durable is not read by the next process"


def test_a_disk_that_fails_when_the_journal_is_closed_leaves_only_what_is_durable(disk: SimDisk) -> None:
    journal = open_journal(disk, awaits_sync=True)
    append(journal, 10)
    journal.sync()
    append(journal, 5)
    disk.sync_fails = True
    with pytest.raises(OSError, match="input/output"):
        journal.close()
    assert read(disk)[0] == list(range(10))


def test_a_full_disk_refuses_a_record_and_takes_it_later(disk: SimDisk) -> None:
    journal = open_journal(disk)
    append(journal, 3)
    for free in (0, 1, 30, 60):
        disk.free = free
        with pytest.raises(DiskFull, match="no space left"):
            append(journal, 1)
        assert read(disk)[0] == list(range(journal.next)), "nothing of it is left"
        tail = read(disk)[1].tail
        assert tail is None or tail.size == 0
        disk.free = None
        append(journal, 20)
    assert read(disk)[0] == list(range(journal.next))
    assert journal.next == 83


def test_a_disk_that_is_full_from_the_start_is_used_when_there_is_space(disk: SimDisk) -> None:
    journal = open_journal(disk)
    for free in (0, 10):
        disk.free = free
        with pytest.raises(DiskFull):
            append(journal, 1)
    disk.free = None
    append(journal, 2)
    assert read(disk)[0] == [0, 1]


def test_a_segment_in_which_nothing_could_be_written_is_used_after_a_checkpoint(disk: SimDisk) -> None:
    journal = open_journal(disk)
    append(journal, 3)
    journal.roll()
    disk.free = 10
    with pytest.raises(DiskFull):
        journal.append([], 20)  # which only confirms the last record, so that nothing waits for it
    journal.roll()
    disk.free = None
    append(journal, 2)
    assert read(disk)[0] == list(range(5))


def test_damage_in_the_middle_is_refused_with_its_place_and_the_way_out() -> None:
    """Any single bit: either the records before it and a clear error, or, at the very end, an interrupted write."""
    refused = 0
    for seed in range(400):
        rng = Random(seed)
        disk = SimDisk(rng)
        journal = open_journal(disk)
        append(journal, 30)
        paths = list(list_segments(disk, FOLDER).values())
        path = rng.choice(paths)
        offset = rng.randrange(len(disk.read(path)))
        disk.flip_bit(path, offset, rng.randrange(8))
        damage = damage_of(disk)
        if damage is not None:
            refused += 1
            assert damage.path == path
            assert damage.offset <= offset
            assert "resume run --until-damage" in str(damage)
            continue
        numbers, reader = read(disk)
        assert path == paths[-1]
        assert numbers == list(range(29)), "only the last record can be taken for an interrupted write"
        assert reader.tail is not None
    assert refused > 300


def damage_of(disk: Disk) -> DamagedJournal | None:
    try:
        read(disk)
    except DamagedJournal as damage:
        return damage
    return None


def test_the_last_record_is_protected_by_an_empty_one(disk: SimDisk) -> None:
    journal = open_journal(disk)
    append(journal, 3)
    journal.append([], 20)
    (path,) = list_segments(disk, FOLDER).values()
    data = disk.read(path)
    disk.flip_bit(path, data.rindex(b"end"), 3)
    with pytest.raises(DamagedJournal, match="record 2 cannot be read"):
        read(disk)


def test_records_that_were_never_promised_may_have_holes() -> None:
    """After a power cut, later sectors of the end may be there without earlier ones: nobody was told of them."""
    holes = 0
    for seed in range(200):
        disk = SimDisk(Random(seed))
        journal = open_journal(disk, awaits_sync=True)
        append(journal, 10)
        journal.sync()
        append(journal, 10)
        disk.cut_power()
        numbers, reader = read(disk)
        assert len(numbers) >= 10
        holes += reader.tail is not None and reader.tail.size > 200
    assert holes > 20


def test_a_missing_segment_is_refused() -> None:
    for removed in range(5):
        disk = SimDisk(Random(0))
        append(open_journal(disk), 60)
        starts = list(list_segments(disk, FOLDER))
        assert len(starts) > 5
        disk.remove(list_segments(disk, FOLDER)[starts[removed]])
        with pytest.raises(DamagedJournal):
            read(disk, 0)
        if removed < 4:
            assert read(disk, starts[removed + 1])[0] == list(range(starts[removed + 1], 60)), "covered by a checkpoint"


def test_records_of_another_process_are_not_taken_for_later_ones(disk: SimDisk) -> None:
    append(open_journal(disk, era=1), 3)
    other = SimDisk(Random(0))
    append(open_journal(other, era=2), 4)
    (path,) = list_segments(disk, FOLDER).values()
    first, second = disk.read(path), other.read(path)
    disk.open(path).append([second[len(first) :]])
    numbers, reader = read(disk)
    assert numbers == [0, 1, 2]
    assert reader.tail is not None


def test_only_segments_that_a_checkpoint_covers_are_removed(disk: SimDisk) -> None:
    journal = open_journal(disk)
    append(journal, 60)
    starts = list(list_segments(disk, FOLDER))
    journal.remove_before(starts[3] - 1)
    assert list(list_segments(disk, FOLDER)) == starts[2:]
    journal.remove_before(starts[3])
    assert list(list_segments(disk, FOLDER)) == starts[3:]
    assert read(disk, starts[3])[0] == list(range(starts[3], 60))
    journal.remove_before(60)
    assert list(list_segments(disk, FOLDER)) == starts[-1:], "the one that is being written stays"
    journal.roll()
    journal.remove_before(60)
    assert list(list_segments(disk, FOLDER)) == []
    journal.remove_before(60)
    append(journal, 5)
    assert read(disk, 60)[0] == list(range(60, 65))


def test_a_journal_that_is_removed_never_has_a_gap(disk: SimDisk) -> None:
    append(open_journal(disk), 60)
    for operations in range(8):
        disk.kill_after = operations
        try:
            remove_all(disk, FOLDER)
        except Killed:
            numbers, reader = read(disk)
            assert numbers == list(range(reader.next))
    assert disk.names(FOLDER) == []


def test_the_state_of_the_learner_is_replaced_whole_or_not_at_all() -> None:
    for seed in range(200):
        rng = Random(seed)
        disk = SimDisk(rng)
        assert read_learner(disk, FOLDER) is None
        written = 0
        for number in range(1, 8):
            disk.kill_after = rng.choice([None, rng.randrange(7)])
            disk.free = rng.choice([None, None, rng.randrange(300)])
            try:
                write_learner(disk, FOLDER, LearnerState(f'{{"updates": {number}}}', b"arrays" * number * 30))
                written = number
            except (OSError, Killed):
                pass
            if rng.random() < 0.3:
                disk.cut_power()
            found = read_learner(disk, FOLDER)
            updates = updates_in(found) if found else 0
            assert written <= updates <= number
            assert found is None or found.arrays == b"arrays" * updates * 30


def test_a_damaged_state_of_the_learner_is_not_used(disk: SimDisk) -> None:
    write_learner(disk, FOLDER, LearnerState('{"updates": 3}', b"arrays"))
    size = len(disk.read(FOLDER / "learner.state"))
    for offset in range(size):
        disk.flip_bit(FOLDER / "learner.state", offset, offset % 8)
        assert read_learner(disk, FOLDER) is None
        write_learner(disk, FOLDER, LearnerState('{"updates": 3}', b"arrays"))
    remove_learner(disk, FOLDER)
    assert read_learner(disk, FOLDER) is None
