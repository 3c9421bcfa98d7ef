"""The files of a journal. A segment is a header and records, each with a checksum over its content and its place.

Every record has the sequence number of the record, the era of the process that wrote it (a random number), the clock t
after it, and `promised`: all records before that number had been promised, so that answers to them may have been sent,
when this one was written. From that a reader can tell an interrupted write, which nobody was told of, from damage.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from dpsr_apex.record.journal.disk import Bytes, Disk

SUFFIX = ".journal"
DAMAGED = ".damaged"  # suffix of what was given up because it was damaged
FORMAT = 1

_MAGIC = b"DPJ"  # both magic numbers begin with it
_HEADER, _RECORD = _MAGIC + b"h", _MAGIC + b"r"
_PREFIX = struct.Struct("<4sI")  # magic number, checksum of everything after it
_FIELDS = struct.Struct("<QQQQQ")  # size of the content, era, sequence, promised, t
_OVERHEAD = _PREFIX.size + _FIELDS.size


class Place(NamedTuple):
    """What a record states beside its content."""

    era: int
    sequence: int  # of a header: that of the first record in the segment
    promised: int
    t: int


class Record(NamedTuple):
    """A valid record, or the header of a segment."""

    place: Place
    content: memoryview
    end: int  # offset after it
    is_header: bool


def pack_header(place: Place, facts: Mapping[str, Any]) -> list[Bytes]:
    """Return the header of a segment; `facts` describe the process that writes it."""
    return _pack(_HEADER, place, [json.dumps({"format": FORMAT} | dict(facts)).encode()])


def pack_record(place: Place, content: list[Bytes]) -> list[Bytes]:
    """Return a record."""
    return _pack(_RECORD, place, content)


def _pack(magic: bytes, place: Place, content: list[Bytes]) -> list[Bytes]:
    fields = _FIELDS.pack(sum(map(len, content)), *place)
    checksum = zlib.crc32(fields)
    for part in content:
        checksum = zlib.crc32(part, checksum)
    return [_PREFIX.pack(magic, checksum) + fields, *content]


def read_facts(header: Record) -> dict[str, Any]:
    """Return the facts in a header."""
    facts: dict[str, Any] = json.loads(bytes(header.content))
    return facts


def parse(data: bytes, offset: int, era: int | None = None) -> Record | None:
    """Return the record at an offset, of this era if one is given; None if there is no valid one."""
    if len(data) - offset < _OVERHEAD:
        return None
    magic, checksum = _PREFIX.unpack_from(data, offset)
    size, *fields = _FIELDS.unpack_from(data, offset + _PREFIX.size)
    start = offset + _OVERHEAD
    if magic not in (_HEADER, _RECORD) or size > len(data) - start or era not in (None, fields[0]):
        return None
    checked = memoryview(data)[offset + _PREFIX.size : start + size]
    if zlib.crc32(checked) != checksum:
        return None
    return Record(Place(*fields), checked[_FIELDS.size :], start + size, magic == _HEADER)


def find_records(data: bytes, offset: int) -> Iterator[Record]:
    """Yield every valid record of a segment at or after an offset, whatever lies between them.

    Only records with the era of its header count, if that is intact: what a client has sent may look like a record, but
    it does not know the era.
    """
    header = parse(data, 0)
    era = header.place.era if header else None
    while (place := data.find(_MAGIC, offset)) >= 0:
        record = parse(data, place, era)
        offset = record.end if record else place + 1
        if record:
            yield record


def segment_path(folder: Path, sequence: int) -> Path:
    """Return the path of the segment that begins with this record."""
    return folder / f"{sequence:016d}{SUFFIX}"


def list_segments(disk: Disk, folder: Path) -> dict[int, Path]:
    """Return the segments in a folder by the sequence number of their first record, in order."""
    names = (name for name in disk.names(folder) if name.endswith(SUFFIX))
    return {int(stem): folder / name for name in names if (stem := name.removesuffix(SUFFIX)).isdecimal()}


def newest_t(disk: Disk, folder: Path) -> int:
    """Return the clock after the last record of a journal; 0 if it has none."""
    for path in reversed(list_segments(disk, folder).values()):
        clocks = [record.place.t for record in find_records(disk.read(path), 0) if not record.is_header]
        if clocks:
            return clocks[-1]
    return 0
