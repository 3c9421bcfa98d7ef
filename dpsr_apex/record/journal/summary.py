"""What a journal contains, for people: read from its files, also while a run appends to them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import NamedTuple

from dpsr_apex.protocol.learner_record import updates_in
from dpsr_apex.record.journal.disk import Disk
from dpsr_apex.record.journal.learner import read_learner
from dpsr_apex.record.journal.reader import DamagedJournal, JournalReader, Tail
from dpsr_apex.record.journal.recover import events_of
from dpsr_apex.record.journal.segments import DAMAGED, find_records, list_segments
from dpsr_apex.wire.messages import Chunk


class Segment(NamedTuple):
    """One file of a journal."""

    path: Path
    size: int  # bytes
    first: int  # number of its first record
    records: int
    t: tuple[int, int]  # clock after its first and its last record


class Summary(NamedTuple):
    """A journal, and what a recovery would do with it."""

    segments: list[Segment]
    applied: int  # records after the checkpoint
    t: int  # clock after them
    events: Counter[str]  # in these records, by kind
    transitions: int  # in these records
    tail: Tail | None  # an incomplete end
    damage: DamagedJournal | None
    learner_updates: int | None  # in the newest state of the learner; None if there is none
    set_aside: list[Path]  # files that were given up because of damage


def summarize(disk: Disk, folder: Path, since: int, t: int) -> Summary:
    """Return what a journal contains; a checkpoint of clock `t` covers all records before number `since`."""
    reader = JournalReader(disk, folder, since, t)
    events: Counter[str] = Counter()
    applied = transitions = 0
    damage = None
    try:
        for record in reader.records():
            applied += not record.is_header
            for event in () if record.is_header else events_of(record, folder):
                events[type(event).__name__] += 1
                transitions += len(event.transitions) if isinstance(event, Chunk) else 0
    except DamagedJournal as error:
        damage = error
    learner = read_learner(disk, folder)
    return Summary(
        segments=[_segment(disk, path) for path in list_segments(disk, folder).values()],
        applied=applied,
        t=reader.t,
        events=events,
        transitions=transitions,
        tail=reader.tail,
        damage=damage,
        learner_updates=updates_in(learner) if learner else None,
        set_aside=[folder / name for name in disk.names(folder) if name.endswith(DAMAGED)],
    )


def _segment(disk: Disk, path: Path) -> Segment:
    data = disk.read(path)
    records = [record for record in find_records(data, 0) if not record.is_header]
    clocks = [record.place.t for record in records] or [0]
    first = int(path.stem)
    return Segment(path, len(data), first, len(records), (clocks[0], clocks[-1]))
