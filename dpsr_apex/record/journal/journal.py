"""Write a journal: append records, flush them to the disk, begin new segments, and remove those that are not needed.

A record is *written* when another process could read it, and *durable* when it also survives a power cut. Which of the
two is awaited before answers are sent is decided by `run.durability`.
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Mapping
from itertools import pairwise, zip_longest
from pathlib import Path
from typing import Any

from dpsr_apex.record.journal.disk import Bytes, Disk, File
from dpsr_apex.record.journal.segments import (
    Place,
    find_records,
    list_segments,
    pack_header,
    pack_record,
    segment_path,
)

SEGMENT = 64 * 2**20  # bytes, after which a new segment begins

_FULL = (errno.ENOSPC, errno.EDQUOT)


class DiskFull(Exception):
    """Raised for a record that was not written, because the disk is full; it can be written later."""


class Journal:
    """Appends records to the segments in a folder, which must exist, from number `next` on.

    `sync` may be called by another thread. With `awaits_sync`, a record counts as promised only when it is durable.
    """

    def __init__(
        self, disk: Disk, folder: Path, era: int, next_: int, facts: Mapping[str, Any], awaits_sync: bool
    ) -> None:
        self.next = next_  # number of the next record
        self.durable = next_  # all records before this number are durable
        self.written = 0  # bytes
        self._disk = disk
        self.folder = folder
        self._era = era
        self._facts = facts
        self._awaits_sync = awaits_sync
        self._current: _Segment | None = None
        self._unsynced: list[_Segment] = []  # only with `awaits_sync`
        self._failure: OSError | None = None  # of the first sync that failed
        self._lock = threading.Lock()  # of the three attributes above, and of every change of their files

    @property
    def promised(self) -> int:
        """All records before this number are as safe as promised, so that answers that depend on them may be sent."""
        return self.durable if self._awaits_sync else self.next

    def append(self, content: list[Bytes], t: int) -> None:
        """Write one record, after which the clock is `t`; raise DiskFull, with nothing written, if there is no space.

        Any other OSError is raised as it is: the journal must not be used any more.
        """
        place = Place(self._era, self.next, self.promised, t)
        parts = pack_record(place, content)
        segment = self._current or self._begin()
        if segment.size == 0:
            parts = pack_header(place, self._facts) + parts
        self._write(segment, parts)
        self.next += 1
        if segment.size >= SEGMENT:
            self.roll()

    def roll(self) -> None:
        """Let the next record begin a new segment; one in which nothing could be written so far is still new."""
        with self._lock:
            if self._current is None or self._current.size == 0:
                return
            if self._current not in self._unsynced:
                self._current.file.close()
            self._current = None

    def sync(self) -> None:
        """Make all records durable that are written now.

        After an OSError the records that are not durable are removed, and every later call of any method raises it
        again. The system marks what it could not flush as flushed: it can be read without being stored, so that the
        next process would answer for it, and another attempt would succeed without storing it.
        """
        if self._failure is not None:
            raise self._failure
        try:
            self._sync()
        except OSError as error:
            with self._lock:
                self._failure = error
                self._abandon()
            raise

    def _sync(self) -> None:
        with self._lock:
            segments, written = list(self._unsynced), self.next
            sizes = [segment.size for segment in segments]
        if any(segment.synced == 0 for segment in segments):
            self._disk.sync_folder(self.folder)
        for segment, size in zip(segments, sizes, strict=True):
            segment.file.sync()
            segment.synced = size
        with self._lock:
            self._unsynced = [segment for segment in self._unsynced if segment.size > segment.synced]
            for segment in segments:
                if segment is not self._current and segment not in self._unsynced:
                    segment.file.close()
            self.durable = max(self.durable, written)

    def _abandon(self) -> None:
        for segment in reversed(self._unsynced):
            if segment.synced:
                segment.file.truncate(segment.synced)
            else:
                self._disk.remove(segment.path)

    def remove_before(self, sequence: int) -> None:
        """Remove the segments that contain only records before this number, which a durable checkpoint covers."""
        segments = list_segments(self._disk, self.folder)
        for start, end in pairwise([*segments, self.next]):
            path = segments[start]
            if end > sequence or (self._current is not None and path == self._current.path):
                return
            self._disk.remove(path)

    def close(self) -> None:
        """Make all records as safe as promised, and close the files."""
        self.roll()
        if self._awaits_sync:
            self.sync()

    def _begin(self) -> _Segment:
        path = segment_path(self.folder, self.next)
        try:
            segment = _Segment(path, self._disk.create(path))
        except OSError as error:
            raise _as_full(error) from error
        with self._lock:
            self._current = segment
        return segment

    def _write(self, segment: _Segment, parts: list[Bytes]) -> None:
        with self._lock:
            if self._failure is not None:
                raise self._failure
            try:
                segment.file.append(parts)
            except OSError as error:
                segment.file.truncate(segment.size)
                raise _as_full(error) from error
            size = sum(map(len, parts))
            self.written += size
            segment.size += size
            if self._awaits_sync and segment not in self._unsynced:
                self._unsynced.append(segment)


class _Segment:
    """An open segment."""

    def __init__(self, path: Path, file: File) -> None:
        self.path = path
        self.file = file
        self.size = 0  # bytes written
        self.synced = 0  # bytes that are durable


def _as_full(error: OSError) -> Exception:
    """Return the error to raise instead of one that says that the disk is full; the error itself for any other."""
    return DiskFull(error.strerror or str(error)) if error.errno in _FULL else error


def make_durable(disk: Disk, folder: Path) -> None:
    """Make everything durable that the journal contains: an earlier process may not have done so before it ended.

    What it may have tried to flush is written again: after a failed flush, another one succeeds without storing it.
    """
    segments = list_segments(disk, folder)
    flushed = _flushed(disk, segments)
    for path, following in zip_longest(segments.values(), [*segments][1:]):
        if following is not None and following <= flushed:
            _sync(disk, path)
        else:
            disk.rewrite(path)
    if segments:
        disk.sync_folder(folder)


def _flushed(disk: Disk, segments: Mapping[int, Path]) -> int:
    """Return the number before which no record can have been part of a failed flush."""
    newest = list(segments.values())[-1:]
    return max((record.place.promised for path in newest for record in find_records(disk.read(path), 0)), default=0)


def _sync(disk: Disk, path: Path) -> None:
    file = disk.open(path)
    try:
        file.sync()
    finally:
        file.close()


def remove_all(disk: Disk, folder: Path) -> None:
    """Remove a whole journal, the newest segments first, so that what is left after a crash is never a gap."""
    segments = list_segments(disk, folder)
    for path in reversed(segments.values()):
        disk.remove(path)
    if segments:
        disk.sync_folder(folder)
