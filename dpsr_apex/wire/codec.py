"""Messages as frames, and frames as messages. The one module that knows msgpack.

Frame 0 is a small msgpack array: the version of the protocol, the number of the message, then its fields in their
order: a number or a text is there itself, an array by its count of items, transitions by three counts, and of bytes
that may be None whether they are there. In a message with arrays or transitions frame 1 holds all their numbers, one
column after the other, little-endian. Then follows one frame for each field of bytes, and one for the pieces of
transitions: a few large frames cost the least. All this is derived from the type hints of the messages: a new one needs
no code here.

Frames come from anyone who can reach the socket. Nothing is believed before it was checked, nothing is allocated that
is only announced, and whatever is wrong ends in `BadMessage`.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from types import NoneType
from typing import Any, ClassVar, NamedTuple, cast, get_args, get_origin, get_type_hints

import msgpack
import numpy as np
from numpy.typing import NDArray

from dpsr_apex.replay.transitions import Transitions, pack, unpack
from dpsr_apex.wire.messages import Message, Refused

PROTOCOL = 2
MAX_FRAME = 256 * 2**20  # bytes in any one frame
MAX_HEADER = 2**20  # bytes in frame 0, which holds all texts
MAX_ENTRIES = 64  # in frame 0; some more than needed, so that other versions are known for what they are
MAX_PARTS = 16  # frames of one message; for the same reason some more
MAX_ROWS = 100_000  # in any one array, or transitions in any one message
MAX_PIECES = 40 * MAX_ROWS  # frames and snapshots that the transitions of one message name

Frame = bytes | memoryview


class BadMessage(Exception):
    """These frames are no message, and why."""


class WrongProtocol(BadMessage):
    """These frames are of another version of the protocol, `theirs`."""

    def __init__(self, theirs: int) -> None:
        super().__init__(f"the other side speaks version {theirs} of the protocol, this one speaks version {PROTOCOL}")
        self.theirs = theirs


def encode(message: Message) -> list[Frame]:
    """The message as a few frames, which nothing can change any more."""
    plan = _PLAN_OF[type(message)]
    draft = _Draft([PROTOCOL, plan.number], [], [])
    for field, value in zip(plan.fields, message, strict=True):
        field.write(value, draft)
    # A reason or a path may hold half a character, and is to arrive nevertheless.
    header = msgpack.packb(draft.header, unicode_errors="replace")
    return [header, b"".join(draft.columns), *draft.blobs] if plan.has_columns else [header, *draft.blobs]


def decode(frames: Sequence[Frame]) -> Message:
    """The message that was encoded; its bytes and arrays are its own. Raises `BadMessage`.

    `Refused` is understood in every version of the protocol, so that a refused stranger can say why.
    """
    parts = [bytes(frame) for frame in frames]  # no copy where they are bytes already
    plan, entries = _open(parts)
    name = plan.cls.__name__
    if len(entries) != plan.entries:
        raise BadMessage(f"{name} has {plan.entries} entries in its header, but {len(entries)} came")
    expected = plan.frames - sum(entries[place] is False for place in plan.flags)
    if len(parts) != expected:
        raise BadMessage(f"{name} has {expected} frames, but {len(parts)} came")
    reading = _Reading(entries, parts[1] if plan.has_columns else b"", parts[1 + plan.has_columns :])
    values: list[Any] = [field.read(reading) for field in plan.fields]
    if reading.place != len(reading.columns):
        raise BadMessage(f"the columns of {name} have {reading.place} bytes, but {len(reading.columns)} came")
    for places in plan.together:
        _check_rows({plan.fields[place].name: len(values[place]) for place in places if values[place] is not None})
    return cast(Message, plan.cls(*values))


# Messages half way: being written, and being read.


class _Draft(NamedTuple):
    """What is written so far, by where it goes."""

    header: list[Any]
    columns: list[bytes]
    blobs: list[Frame]


class _Reading:
    """What came, and how far it was read. There are as many entries and blobs as the plan of the message says."""

    def __init__(self, entries: list[Any], columns: bytes, blobs: list[bytes]) -> None:
        self.entry = iter(entries).__next__
        self.blob = iter(blobs).__next__
        self.columns = columns
        self.place = 0  # in the columns

    def column(self, name: str, dtype: np.dtype[Any], count: int) -> NDArray[Any]:
        """A view of the next `count` numbers, all of them finite."""
        place = self.place
        self.place += count * dtype.itemsize
        if self.place > len(self.columns):
            raise BadMessage(f"the columns end within {name}, which has {count} items")
        array = np.frombuffer(self.columns, dtype, count, place)
        if dtype.kind == "f" and not (finite := np.isfinite(array)).all():
            row = int(np.argmin(finite))
            raise BadMessage(f"{name}[{row}] is {array[row]}")
        return array


def _count(name: str, entry: Any, most: int) -> int:
    """The entry, which says how many items there are."""
    if type(entry) is not int:  # a bool is no int here
        raise BadMessage(f"{name} is of type {type(entry).__name__}, not a count")
    if entry > most:
        raise BadMessage(f"{name} has {entry} items, more than {most}")
    if entry < 0:
        raise BadMessage(f"{name} has {entry} items")
    return entry


# How a field travels, by its type hint. Each knows how many entries it has in the header, and how many frames behind.


@dataclass(frozen=True)
class _Plain:
    """A number or a text."""

    name: str
    kind: type

    entries: ClassVar[int] = 1
    frames: ClassVar[int] = 0

    def write(self, value: Any, draft: _Draft) -> None:
        draft.header.append(_AS_PYTHON[self.kind](value))

    def read(self, reading: _Reading) -> Any:
        entry, kind = reading.entry(), self.kind
        found = type(entry)
        if found is not kind:  # a bool is no int here
            raise BadMessage(f"{self.name} is of type {found.__name__}, not {kind.__name__}")
        if kind is int and not -(2**63) <= entry < 2**63:
            raise BadMessage(f"{self.name} is {entry}, which is more than 64 bits")
        if kind is float and not math.isfinite(entry):
            raise BadMessage(f"{self.name} is {entry}")
        return entry


@dataclass(frozen=True)
class _Blob:
    """Bytes; where they may be None, an entry says whether they are there."""

    name: str
    may_miss: bool

    frames: ClassVar[int] = 1

    @property
    def entries(self) -> int:
        return int(self.may_miss)

    def write(self, value: Any, draft: _Draft) -> None:
        if self.may_miss:
            draft.header.append(value is not None)
        if value is not None:
            draft.blobs.append(value)

    def read(self, reading: _Reading) -> bytes | None:
        is_there = reading.entry() if self.may_miss else True
        if type(is_there) is not bool:
            raise BadMessage(f"{self.name} is of type {type(is_there).__name__}, not bool")
        return reading.blob() if is_there else None


@dataclass(frozen=True)
class _Column:
    """An array; its entry is its count of items, or None."""

    name: str
    may_miss: bool
    dtype: np.dtype[Any]

    entries: ClassVar[int] = 1
    frames: ClassVar[int] = 0

    def write(self, value: Any, draft: _Draft) -> None:
        if value is None:
            draft.header.append(None)
            return
        draft.header.append(len(value))
        draft.columns.append(_raw(value, self.dtype))

    def read(self, reading: _Reading) -> NDArray[Any] | None:
        """An array of its own, writable, in the byte order of this machine."""
        entry = reading.entry()
        if entry is None and self.may_miss:
            return None
        count = _count(self.name, entry, MAX_ROWS)
        return reading.column(self.name, self.dtype, count).astype(self.dtype.newbyteorder("="))


@dataclass(frozen=True)
class _Rows:
    """Transitions, as they are packed: the counts of rows, of references and of pieces, columns, and the pieces."""

    name: str

    entries: ClassVar[int] = 3
    frames: ClassVar[int] = 1

    def write(self, value: Any, draft: _Draft) -> None:
        arrays = pack(value)
        draft.header.extend(len(arrays[part]) for part in ("a_tm1", "references", "piece_sizes"))
        draft.columns.extend(_raw(arrays[part], dtype) for part, (dtype, _) in _PACKED.items())
        draft.blobs.append(arrays["pieces"].data)  # by far the largest: not copied

    def read(self, reading: _Reading) -> Transitions:
        rows = _count(self.name, reading.entry(), MAX_ROWS)
        references = _count(f"{self.name}.references", reading.entry(), MAX_PIECES)
        pieces = _count(f"{self.name}.piece_sizes", reading.entry(), MAX_PIECES)
        counts = {"rows": rows, "stacks": 3 * rows, "references": references, "pieces": pieces}
        names = {part: f"{self.name}.{part}" for part in _PACKED}
        arrays = {part: reading.column(names[part], dtype, counts[of]) for part, (dtype, of) in _PACKED.items()}
        blob = reading.blob()
        _check_packed(self.name, arrays, rows, blob)
        return unpack(arrays, blob)


_Field = _Plain | _Blob | _Column | _Rows

_AS_PYTHON: dict[type, Callable[[Any], Any]] = {int: operator.index, float: float, str: str, bool: bool}

_PACKED: dict[str, tuple[np.dtype[Any], str]] = {  # type, and of what there is one each
    "a_tm1": (np.dtype("<i8"), "rows"),
    "r_t": (np.dtype("<f4"), "rows"),
    "references": (np.dtype("<u4"), "references"),
    "piece_sizes": (np.dtype("<u4"), "pieces"),
    "terminal": (np.dtype("u1"), "rows"),
    "n_steps": (np.dtype("u1"), "rows"),
    "stack_sizes": (np.dtype("u1"), "stacks"),
}


def _raw(array: NDArray[Any], dtype: np.dtype[Any]) -> bytes:
    return np.asarray(array, dtype=dtype).tobytes()


def _check_packed(name: str, arrays: dict[str, NDArray[Any]], rows: int, blob: bytes) -> None:
    """`unpack` would cut and index by these numbers without asking."""
    stack_sizes, references, piece_sizes = arrays["stack_sizes"], arrays["references"], arrays["piece_sizes"]
    pieces = len(piece_sizes)
    least, most = np.minimum.reduce, np.maximum.reduce
    _require((stack_sizes[2 * rows :] == 1).all(), f"a transition in {name} has not exactly one snapshot")
    _require(_sum(stack_sizes) == len(references), f"the stacks of {name} do not add up")
    _require(most(references, initial=0) < max(pieces, 1 - len(references)), f"{name} names a piece that is not there")
    _require(pieces <= len(references), f"{name} has pieces that nobody names")
    _require(_sum(piece_sizes) == len(blob), f"the pieces of {name} do not add up")
    _require(least(arrays["a_tm1"], initial=0) >= 0, f"an action in {name} is negative")
    _require(most(arrays["terminal"], initial=0) <= 1, f"a terminal in {name} is neither 0 nor 1")
    _require(least(arrays["n_steps"], initial=1) >= 1, f"a transition in {name} takes 0 steps")


def _sum(sizes: NDArray[Any]) -> int:
    return int(np.add.reduce(sizes, dtype=np.int64))


def _check_rows(counts: dict[str, int]) -> None:
    if len(set(counts.values())) > 1:
        told = ", ".join(f"{name} {count}" for name, count in counts.items())
        raise BadMessage(f"these should have the same number of rows: {told}")


# The header.


def _open(parts: list[bytes]) -> tuple[_Plan, list[Any]]:
    """What kind of message this is, and the rest of its header, still unchecked."""
    _require(parts != [], "there are no frames")
    _require(len(parts[0]) <= MAX_HEADER, f"its header has {len(parts[0])} bytes, more than {MAX_HEADER}")
    try:
        header = msgpack.unpackb(parts[0], max_array_len=MAX_ENTRIES, max_map_len=0, max_ext_len=0, max_bin_len=0)
    except (ValueError, msgpack.UnpackException) as error:
        raise BadMessage(f"its header is not msgpack as it should be: {type(error).__name__}") from None
    _require(type(header) is list and len(header) >= 2, "its header is no list of version, number and fields")
    protocol, number, *entries = header
    _require(type(protocol) is int and type(number) is int, "the version or the number in its header is no integer")
    if protocol != PROTOCOL and number != _PLAN_OF[Refused].number:
        raise WrongProtocol(protocol)
    _require(0 <= number < len(_PLANS), f"there is no message number {number}")
    return _PLANS[number], entries


def _require(holds: bool | np.bool_, reason: str) -> None:
    if not holds:
        raise BadMessage(reason)


# The plans of all messages.


class _Plan(NamedTuple):
    number: int
    cls: Callable[..., Any]
    fields: list[_Field]
    entries: int  # in the header, behind version and number
    flags: list[int]  # those of them that say whether a frame is there
    has_columns: bool
    frames: int  # in all, if none is missing
    together: list[list[int]]  # places of fields that must have the same number of rows


_ROWS_APART = {"failed", "scores", "lengths"}  # these are not about the transitions beside them


def _plan(number: int, cls: type) -> _Plan:
    fields = [_field(name, hint) for name, hint in get_type_hints(cls).items()]
    tall = [place for place, field in enumerate(fields) if isinstance(field, _Column | _Rows)]
    together = [[place for place in tall if (fields[place].name in _ROWS_APART) is apart] for apart in (False, True)]
    starts = accumulate((field.entries for field in fields), initial=0)
    flags = [start for start, field in zip(starts, fields, strict=False) if isinstance(field, _Blob) and field.may_miss]
    return _Plan(
        number,
        cls,
        fields,
        entries=sum(field.entries for field in fields),
        flags=flags,
        has_columns=bool(tall),
        frames=1 + bool(tall) + sum(field.frames for field in fields),
        together=[places for places in together if len(places) > 1],
    )


def _field(name: str, hint: Any) -> _Field:
    options = get_args(hint)
    may_miss = NoneType in options
    bare = next(option for option in options if option is not NoneType) if may_miss else hint  # X of X | None
    if bare in _AS_PYTHON and not may_miss:
        return _Plain(name, bare)
    if bare is bytes:
        return _Blob(name, may_miss)
    if bare is Transitions and not may_miss:
        return _Rows(name)
    if get_origin(bare) is np.ndarray:
        return _Column(name, may_miss, np.dtype(get_args(get_args(bare)[1])[0]).newbyteorder("<"))
    raise TypeError(f"{hint} cannot travel")


_PLANS = [_plan(number, cls) for number, cls in enumerate(get_args(Message))]
_PLAN_OF = {plan.cls: plan for plan in _PLANS}
