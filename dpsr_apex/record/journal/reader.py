"""Read a journal: its records from a checkpoint on, its end, and what is wrong with it."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from itertools import count, pairwise
from pathlib import Path
from typing import NamedTuple

from dpsr_apex.errors import UserError
from dpsr_apex.record.journal.disk import Disk
from dpsr_apex.record.journal.segments import DAMAGED, Record, find_records, list_segments, parse


class DamagedJournal(UserError):
    """Raised for a journal that lacks records whose effects were visible: where, and the way out."""

    def __init__(self, path: Path, offset: int, problem: str, t: int, lost: int) -> None:
        after = f"{lost} later records cannot be used without it" if lost else "nothing after it can be used"
        super().__init__(
            f"The journal is damaged at byte {offset} of {path}: {problem}, and {after}. To give up everything after "
            f"t = {t:,}: dpsr-apex resume {path.parent.parent} --until-damage"
        )
        self.path, self.offset, self.t = path, offset, t


class Tail(NamedTuple):
    """An incomplete end of a journal, which no answer depended on."""

    path: Path
    offset: int  # of its first byte in this segment
    size: int  # bytes, later segments included
    later: list[Path]  # segments


class JournalReader:
    """Reads the records from number `since` on, one after the other; a checkpoint of clock `t` covers all before it.

    After `records` has yielded all of them, `next` is the number of the next record, `t` the clock after the last one,
    and `tail` what must be removed before anything is appended.
    """

    def __init__(self, disk: Disk, folder: Path, since: int, t: int) -> None:
        self.next = since
        self.t = t
        self.tail: Tail | None = None
        self._disk = disk
        self._segments = list_segments(disk, folder)
        self._since = since
        self._expected = since  # number of the record that is read next

    def records(self) -> Iterator[Record]:
        """Yield all records in order, after the header of each segment.

        Raise DamagedJournal if promised records are missing or damaged.
        """
        starts = self._needed()
        self._expected = starts[0] if starts else self._since
        for start, following in pairwise([*starts, None]):
            assert start is not None
            data = self._disk.read(self._segments[start])
            end = yield from self._read(start, data)
            is_complete = end == len(data) and self._expected > start
            if not is_complete or following not in (None, self._expected):
                self._stop(start, data, end)
                return

    def _needed(self) -> list[int]:
        """Return the first records of the segments that are to be read."""
        later = [start for start in self._segments if start > self._since]
        first = max((start for start in self._segments if start <= self._since), default=None)
        if first is not None:
            return [first, *later]
        if later:
            problem = f"records {self._since} to {later[0] - 1}, before it, are missing"
            raise DamagedJournal(self._segments[later[0]], 0, problem, self.t, len(later))
        return []

    def _read(self, start: int, data: bytes) -> Generator[Record, None, int]:
        """Yield the records of one segment; return the offset after the last valid one, 0 if there is none."""
        header = parse(data, 0)
        if header is None or not header.is_header or header.place.sequence != start:
            return 0
        yield header
        end = header.end
        while (record := parse(data, end)) is not None:
            if record.is_header or record.place[:2] != (header.place.era, self._expected):
                break
            end, self._expected = record.end, self._expected + 1
            if record.place.sequence >= self._since:
                self.next, self.t = self._expected, record.place.t
                yield record
        return end if self._expected > start else 0

    def _stop(self, start: int, data: bytes, end: int) -> None:
        """Note the tail that begins at `end`; raise DamagedJournal if a later record shows that it was promised."""
        later = {first: self._disk.read(path) for first, path in self._segments.items() if first > start}
        found = [*find_records(data, end), *(record for other in later.values() for record in find_records(other, 0))]
        promised = max((record.place.promised for record in found), default=0)
        if promised > max(self._expected, self._since):
            lost = sum(not record.is_header for record in found)
            raise DamagedJournal(self._segments[start], end, f"record {self._expected} cannot be read", self.t, lost)
        size = len(data) - end + sum(map(len, later.values()))
        self.tail = Tail(self._segments[start], end, size, [self._segments[first] for first in later])


def remove_tail(disk: Disk, tail: Tail) -> None:
    """Remove an incomplete end, so that nothing is ever appended after it."""
    for path in reversed(tail.later):
        disk.remove(path)
    if tail.offset == 0:
        disk.remove(tail.path)
    else:
        file = disk.open(tail.path)
        try:
            file.truncate(tail.offset)
            file.sync()
        finally:
            file.close()
    disk.sync_folder(tail.path.parent)


def set_aside(disk: Disk, damage: DamagedJournal) -> None:
    """Give up everything from a damage on: it is kept in files that the journal does not contain any more."""
    later = [path for path in list_segments(disk, damage.path.parent).values() if path > damage.path]
    for path in reversed(later):
        disk.rename(path, _aside(disk, path))
    aside = _aside(disk, damage.path)
    if damage.offset == 0:
        disk.rename(damage.path, aside)
        disk.sync_folder(aside.parent)
        return
    rest = disk.read(damage.path)[damage.offset :]
    copy = disk.create(aside)
    copy.append([rest])
    copy.sync()
    copy.close()
    remove_tail(disk, Tail(damage.path, damage.offset, len(rest), []))


def _aside(disk: Disk, path: Path) -> Path:
    """Return a free name for a segment that is given up; its number may have been given up before."""
    taken = disk.names(path.parent)
    candidates = (path.with_suffix(f"{f'.{number}' if number else ''}{DAMAGED}") for number in count())
    return next(candidate for candidate in candidates if candidate.name not in taken)
