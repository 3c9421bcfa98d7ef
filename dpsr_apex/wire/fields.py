"""The fields of messages: how each kind of value is written to frames, and validated while it is read.

The kind follows from the type hint of a field (`field_of`). Anyone who can reach the socket can send data: everything
is validated before it is used, and every violation raises `BadMessage`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from types import NoneType
from typing import Any, ClassVar, NamedTuple, Protocol, get_args, get_origin

import numpy as np
from numpy.typing import NDArray

from dpsr_apex.replay.transitions import (
    PACKED,
    SINGLES_PER_ROW,
    STACKS_PER_ROW,
    Packed,
    PackedTransitions,
    Transitions,
    pack,
    unpack,
)
from dpsr_apex.wire.values import SCALARS, BadValue, Shape, check_count, check_scalar, shape_of

MAX_ROWS = 100_000  # per array, or transitions per message
MAX_PIECES = 40 * MAX_ROWS  # frames and snapshots that the transitions of one message refer to

Frame = bytes | memoryview


class BadMessage(Exception):
    """Raised for frames that are not a valid message, with the reason."""


class Values(Protocol):
    """A frame of numbers and strings, read one by one."""

    @property
    def left(self) -> int:
        """Number of unread bytes."""

    def take(self) -> Any:
        """Return the next number or string, not validated; raise BadValue if there is none."""


class Draft(NamedTuple):
    """The parts of a message that is being written, by destination."""

    header: list[Any]
    columns: list[bytes]
    values: list[Any]
    blobs: list[Frame]


class Reading:
    """A message that is being read. The numbers of its entries and blobs have been validated."""

    def __init__(self, entries: list[Any], columns: bytes, values: Values | None, blobs: Iterator[bytes]) -> None:
        self.entry = iter(entries).__next__
        self.blob = blobs.__next__
        self.columns = columns
        self.place = 0  # byte offset in the columns
        self.values = values

    def value(self) -> Any:
        """Return the next number or string of the records, not validated; raise BadValue if there is none."""
        if self.values is None:
            raise BadValue("is missing")
        return self.values.take()

    def check_end(self, name: str) -> None:
        """Raise BadMessage if not everything was read."""
        if self.place != len(self.columns):
            raise BadMessage(f"the columns of {name} have {self.place} bytes, but {len(self.columns)} were received")
        if self.values and self.values.left:
            raise BadMessage(f"the values of {name} are followed by {self.values.left} extra bytes")

    def column(self, name: str, dtype: np.dtype[Any], count: int, must_be_finite: bool = True) -> NDArray[Any]:
        """Return a view of the next `count` numbers; raise BadMessage if one is not finite but must be."""
        place = self.place
        self.place += count * dtype.itemsize
        if self.place > len(self.columns):
            raise BadMessage(f"the columns end within {name}, which has {count} items")
        array = np.frombuffer(self.columns, dtype, count, place)
        if must_be_finite and dtype.kind == "f" and not (finite := np.isfinite(array)).all():
            row = int(np.argmin(finite))
            raise BadMessage(f"{name}[{row}] is {array[row]}")
        return array


def _count(name: str, entry: Any, most: int) -> int:
    """Return the entry, which must be a valid count of items."""
    try:
        return check_count(entry, most)
    except BadValue as error:
        raise BadMessage(f"{name}{error}") from None


# How a field is encoded, by its type hint, with the numbers of its header entries and of its own frames.


@dataclass(frozen=True)
class Plain:
    """A number or a string."""

    name: str
    kind: type

    entries: ClassVar[int] = 1
    frames: ClassVar[int] = 0

    def write(self, value: Any, draft: Draft) -> None:
        """Add a value to the draft."""
        draft.header.append(SCALARS[self.kind](value))

    def read(self, reading: Reading) -> Any:
        """Return the next value, validated."""
        try:
            return check_scalar(self.kind, reading.entry())
        except BadValue as error:
            raise BadMessage(f"{self.name}{error}") from None


@dataclass(frozen=True)
class Blob:
    """Bytes; if they are optional, an entry states whether they are present."""

    name: str
    may_miss: bool

    frames: ClassVar[int] = 1

    @property
    def entries(self) -> int:
        """Entries in the header."""
        return int(self.may_miss)

    def write(self, value: Any, draft: Draft) -> None:
        """Add a value to the draft."""
        if self.may_miss:
            draft.header.append(value is not None)
        if value is not None:
            draft.blobs.append(value)

    def read(self, reading: Reading) -> bytes | None:
        """Return the next value, validated."""
        is_there = reading.entry() if self.may_miss else True
        if type(is_there) is not bool:
            raise BadMessage(f"{self.name} is of type {type(is_there).__name__}, not bool")
        return reading.blob() if is_there else None


@dataclass(frozen=True)
class Column:
    """An array; its entry is its length, or None."""

    name: str
    may_miss: bool
    dtype: np.dtype[Any]

    entries: ClassVar[int] = 1
    frames: ClassVar[int] = 0

    def write(self, value: Any, draft: Draft) -> None:
        """Add a value to the draft."""
        if value is None:
            draft.header.append(None)
            return
        draft.header.append(len(value))
        draft.columns.append(_raw(value, self.dtype))

    def read(self, reading: Reading) -> NDArray[Any] | None:
        """Return a new array, writable, in the byte order of this machine."""
        entry = reading.entry()
        if entry is None and self.may_miss:
            return None
        count = _count(self.name, entry, MAX_ROWS)
        return reading.column(self.name, self.dtype, count).astype(self.dtype.newbyteorder("="))


@dataclass(frozen=True)
class Rows:
    """Transitions in packed form: the counts of rows, of references and of pieces, the columns, and the pieces.

    Only their form is validated here. Their values are checked where they are stored or trained on, one by one, so that
    a bad transition does not cost the others.
    """

    name: str
    stays_packed: bool = False  # when it is read

    entries: ClassVar[int] = 3
    frames: ClassVar[int] = 1

    def write(self, value: Any, draft: Draft) -> None:
        """Add a value to the draft."""
        arrays = value.arrays if isinstance(value, PackedTransitions) else pack(value)
        draft.header.extend((len(value), len(arrays["references"]), len(arrays["piece_sizes"])))
        draft.columns.extend(_raw(arrays[part.name], part.dtype) for part in PACKED)
        draft.blobs.append(arrays["pieces"].data)  # by far the largest: not copied

    def read(self, reading: Reading) -> Transitions | PackedTransitions:
        """Return the next value, validated."""
        rows = _count(self.name, reading.entry(), MAX_ROWS)
        references = _count(f"{self.name}.references", reading.entry(), MAX_PIECES)
        pieces = _count(f"{self.name}.piece_sizes", reading.entry(), MAX_PIECES)
        counts = {"rows": rows, "stacks": STACKS_PER_ROW * rows, "references": references, "pieces": pieces}
        arrays = {
            part.name: reading.column(f"{self.name}.{part.name}", part.dtype, counts[part.per], must_be_finite=False)
            for part in PACKED
        }
        blob = reading.blob()
        check_packed(self.name, arrays, rows, blob)
        return PackedTransitions(arrays, blob) if self.stays_packed else unpack(arrays, blob)


@dataclass(frozen=True)
class Inner:
    """A record, a list, a dict or a union; its numbers and strings are in the frame of values."""

    name: str
    shape: Shape

    entries: ClassVar[int] = 0
    frames: ClassVar[int] = 0

    def write(self, value: Any, draft: Draft) -> None:
        """Add a value to the draft."""
        self.shape.write(value, draft.values.append)

    def read(self, reading: Reading) -> Any:
        """Return the next value, validated."""
        try:
            return self.shape.read(reading.value)
        except BadValue as error:
            raise BadMessage(f"{self.name}{error}") from None


Field = Plain | Blob | Column | Rows | Inner


def _raw(array: NDArray[Any], dtype: np.dtype[Any]) -> bytes:
    return np.asarray(array, dtype=dtype).tobytes()


def check_packed(name: str, arrays: dict[str, NDArray[Any]], rows: int, blob: bytes) -> None:
    """Validate what `unpack` relies on, and every number against the table of columns."""
    stack_sizes, references, piece_sizes = arrays["stack_sizes"], arrays["references"], arrays["piece_sizes"]
    pieces, singles = len(piece_sizes), stack_sizes[(STACKS_PER_ROW - SINGLES_PER_ROW) * rows :]
    require((singles == 1).all(), f"a transition in {name} does not have exactly one snapshot")
    require(_sum(stack_sizes) == len(references), f"the stacks of {name} do not add up")
    greatest = np.maximum.reduce(references, initial=0)
    require(greatest < max(pieces, 1 - len(references)), f"{name} refers to a piece that does not exist")
    require(pieces <= len(references), f"{name} has pieces that are not referenced")
    require(_sum(piece_sizes) == len(blob), f"the pieces of {name} do not add up")
    for part in PACKED:
        _check_range(name, part, arrays[part.name])


def _check_range(name: str, part: Packed, numbers: NDArray[Any]) -> None:
    if part.least is not None and (found := np.minimum.reduce(numbers, initial=part.least)) < part.least:
        raise BadMessage(f"{name}.{part.name} must be >= {part.least} (got {found})")
    if part.most is not None and (found := np.maximum.reduce(numbers, initial=part.most)) > part.most:
        raise BadMessage(f"{name}.{part.name} must be <= {part.most} (got {found})")


def _sum(sizes: NDArray[Any]) -> int:
    return int(np.add.reduce(sizes, dtype=np.int64))


def require(holds: bool | np.bool_, reason: str) -> None:
    """Raise BadMessage with this reason unless the condition holds."""
    if not holds:
        raise BadMessage(reason)


def field_of(name: str, hint: Any) -> Field:
    """Return how a field with this type hint is encoded."""
    options = get_args(hint)
    may_miss = NoneType in options
    bare = next(option for option in options if option is not NoneType) if may_miss else hint  # X of X | None
    if bare in SCALARS and not may_miss:
        return Plain(name, bare)
    if bare is bytes:
        return Blob(name, may_miss)
    if bare is Transitions and not may_miss:
        return Rows(name)
    if PackedTransitions in options:
        return Rows(name, stays_packed=True)
    if get_origin(bare) is np.ndarray:
        return Column(name, may_miss, np.dtype(get_args(get_args(bare)[1])[0]).newbyteorder("<"))
    return Inner(name, shape_of(hint))
