"""Transitions, several at a time, column by column: in the replay's slots, on the wire and in checkpoints.

The type hints of `Transitions` are the only table of a transition's columns: storing, gathering, slicing,
concatenating, packing and checking iterate over it. A new column is one line there, plus the code that fills and reads
it.

Observations and snapshots are opaque bytes here; only `dpsr_apex.envs.compression` decompresses them. Consecutive
transitions share their frames (s_t of one is s_tm1 of the next), so a stack is a tuple of references to immutable
bytes, and a frame is freed when the last transition that refers to it is replaced.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass
from itertools import chain
from operator import attrgetter, itemgetter
from typing import Annotated, Any, Final, NamedTuple, TypeVar, get_args, get_origin, get_type_hints

import numpy as np
from numpy.typing import NDArray

Stack = tuple[bytes, ...]
"""One compressed observation: its frames, the oldest first."""

_Whole = TypeVar("_Whole", bytes, Stack)


class Numbers(NamedTuple):
    """Properties of a column of numbers that its type does not define."""

    least: int | None = None  # checked when transitions are received
    blank: float = 0  # value in an empty slot


@dataclass(slots=True)  # not frozen: construction would take six times as long
class Transitions:
    """Row i of every column is one transition (s_tm1, a_tm1, r_t, s_t); these hints are the table of columns."""

    s_tm1: list[Stack]
    a_tm1: Annotated[NDArray[np.int64], Numbers(least=0)]
    r_t: NDArray[np.float32]  # for an n-step transition: the discounted sum of its n rewards
    s_t: list[Stack]
    terminal: NDArray[np.bool_]  # False for a time limit: the value of s_t is bootstrapped
    n_steps: Annotated[NDArray[np.uint8], Numbers(least=1)]  # environment steps between s_tm1 and s_t
    snapshots: list[bytes]  # the environment's state at s_tm1, compressed; empty where it cannot be re-entered
    # Labels of s_tm1. The first two are 0 where `replay.recycle_choice` does not need them.
    state_keys: NDArray[np.uint64]  # equal for states that count as the same
    episodes: NDArray[np.uint64]  # random number of the episode, or of the chain of recycled steps
    episode_steps: NDArray[np.uint32]  # environment steps since the start of the episode, recycled ones included
    snapshot_tags: NDArray[np.uint64]  # authenticate the snapshots (`roles.authentication`); 0 in a single process

    def __len__(self) -> int:
        return len(self.s_tm1)

    def rows(self, start: int, stop: int) -> Transitions:
        """Return rows `start` to `stop` (exclusive)."""
        part = slice(start, stop)
        return Transitions(*[column[part] for column in _columns_in(self)])

    def pick(self, rows: NDArray[np.int64]) -> Transitions:
        """Return these rows, in this order."""
        numbers: list[int] = rows.tolist()
        columns: list[Any] = [
            [column[row] for row in numbers] if isinstance(column, list) else column[rows]
            for column in _columns_in(self)
        ]
        return Transitions(*columns)


class Column(NamedTuple):
    """One column, as its type hint describes it."""

    name: str
    dtype: np.dtype[Any]  # of one row; object for references to bytes
    blank: Any  # one row of an empty slot: a number, an empty stack or no bytes
    least: int | None  # of the numbers

    def empty(self, count: int) -> NDArray[Any]:
        """Return the column for `count` empty slots."""
        return _as_array([self.blank] * count) if self.dtype.hasobject else np.full(count, self.blank, self.dtype)

    def collect(self, rows: Sequence[Any] | NDArray[Any]) -> Any:
        """Return the column with these rows, as stored in `Transitions`."""
        return list(rows) if self.dtype.hasobject else np.array(rows, dtype=self.dtype)


def columns_of(table: type) -> tuple[Column, ...]:
    """Return the columns declared by the type hints of a dataclass, in order."""
    hints = get_type_hints(table, include_extras=True)
    return tuple(_column(name, hint) for name, hint in hints.items())


def _column(name: str, hint: Any) -> Column:
    kind, *notes = get_args(hint) if get_origin(hint) is Annotated else [hint]
    if get_origin(kind) is list:
        return Column(name, np.dtype(object), () if get_args(kind) == (Stack,) else b"", None)
    numbers = notes[0] if notes else Numbers()
    return Column(name, np.dtype(get_args(get_args(kind)[1])[0]), numbers.blank, numbers.least)


COLUMNS: Final = columns_of(Transitions)
_NUMBERS: Final = [place for place, column in enumerate(COLUMNS) if not column.dtype.hasobject]
_STACKS: Final = [place for place, column in enumerate(COLUMNS) if column.blank == ()]
_SINGLES: Final = [place for place, column in enumerate(COLUMNS) if column.blank == b""]  # one bytes object per row
_REFERRING: Final = [*_STACKS, *_SINGLES]
_PLACE_OF: Final = {column.name: place for place, column in enumerate(COLUMNS)}
_STATES: Final = [_STACKS.index(_PLACE_OF[name]) for name in ("s_tm1", "s_t")]
_columns_in = attrgetter(*(column.name for column in COLUMNS))


def record_of(columns: Iterable[Column]) -> list[tuple[str, np.dtype[Any]]]:
    """Return the fields of a record with these columns, the widest first, so that all are aligned."""
    by_size = sorted(columns, key=lambda column: -column.dtype.itemsize)
    return [(column.name, column.dtype) for column in by_size]


_RECORD: Final = np.dtype(record_of(COLUMNS[place] for place in _NUMBERS), align=True)
_ORDER: Final = [*(_RECORD.names or ()), *(COLUMNS[place].name for place in _REFERRING)]  # as `from_rows` makes columns
_PLACES: Final = [_PLACE_OF[name] for name in _ORDER]
_numbers_of_row = itemgetter(*_PLACES[: len(_NUMBERS)])
_references_of_row = itemgetter(*_PLACES[len(_NUMBERS) :])
_fields_of = itemgetter(*(_RECORD.names or ()))
_in_order = itemgetter(*(_ORDER.index(column.name) for column in COLUMNS))


def from_lists(**lists: Sequence[Any] | NDArray[Any]) -> Transitions:
    """Create transitions from the rows of each column, by name; missing columns are blank."""
    count = len(next(iter(lists.values())))
    blanks = {column.name: [column.blank] * count for column in COLUMNS if column.name not in lists}
    collect = {column.name: column.collect for column in COLUMNS}
    return Transitions(**{name: collect[name](rows) for name, rows in (lists | blanks).items()})


def from_rows(rows: Sequence[tuple[Any, ...]]) -> Transitions:
    """Create transitions from at least one row, each with its values in the order of the columns."""
    records = np.empty(len(rows), _RECORD)  # faster than an array for each column
    if len(rows) == 1:
        records[0] = _numbers_of_row(rows[0])
    else:
        records[:] = list(map(_numbers_of_row, rows))
    references = map(list, zip(*map(_references_of_row, rows), strict=True))
    return Transitions(*_in_order((*_fields_of(records), *references)))


def to_lists(transitions: Transitions) -> dict[str, list[Any]]:
    """Return the rows of each column as plain Python values, by name."""
    columns = zip(COLUMNS, _columns_in(transitions), strict=True)
    return {column.name: rows if isinstance(rows, list) else rows.tolist() for column, rows in columns}


def _as_array(references: Sequence[Any]) -> NDArray[np.object_]:
    """Return an object array with one element per reference, also for tuples."""
    return np.fromiter(references, dtype=object, count=len(references))


def contents(transitions: Transitions) -> Iterator[bytes]:
    """Yield the content of every column as bytes: equal for equal transitions, however they share their frames."""
    for column, rows in zip(COLUMNS, _columns_in(transitions), strict=True):
        if column.dtype.hasobject:
            stacks = rows if column.blank == () else [(row,) for row in rows]
            pieces = list(chain.from_iterable(stacks))
            yield _sizes(stacks, np.uint32).tobytes() + _sizes(pieces, np.uint32).tobytes()
            yield b"".join(pieces)
        else:
            yield rows.tobytes()


def concatenate(parts: Sequence[Transitions]) -> Transitions:
    """Concatenate the transitions of all parts; there must be at least one part."""
    columns: list[Any] = [
        list(chain.from_iterable(columns)) if isinstance(columns[0], list) else np.concatenate(columns)
        for columns in zip(*map(_columns_in, parts), strict=True)
    ]
    return Transitions(*columns)


def share_frames(transitions: Transitions, earlier: Stack) -> None:
    """Let the first transitions, in place, refer to the frames of `earlier`, the state before them, not to copies."""
    known = {frame: frame for frame in earlier}
    for states in (transitions.s_tm1, transitions.s_t):
        for row, stack in enumerate(states[: len(earlier)]):
            states[row] = tuple([known.get(frame, frame) for frame in stack])


# Packed form: a few plain arrays, in which each shared bytes object (a piece) is stored once.


class Packed(NamedTuple):
    """One array of the packed form, other than the pieces themselves."""

    name: str
    dtype: np.dtype[Any]  # on the wire, little-endian
    per: str  # what its items belong to: "rows", "stacks", "references" or "pieces"
    least: int | None = None
    most: int | None = None


def _packed(column: Column) -> Packed:
    is_bool = column.dtype.kind == "b"
    dtype = np.dtype(np.uint8) if is_bool else column.dtype.newbyteorder("<")
    return Packed(column.name, dtype, "rows", column.least, 1 if is_bool else None)


STACKS_PER_ROW: Final = len(_STACKS) + len(_SINGLES)  # a single piece counts as a stack of one
SINGLES_PER_ROW: Final = len(_SINGLES)
PACKED: Final = sorted(  # the widest numbers first, so that all are aligned
    (
        *(_packed(COLUMNS[place]) for place in _NUMBERS),
        Packed("references", np.dtype("<u4"), "references"),  # to pieces, by number
        Packed("piece_sizes", np.dtype("<u4"), "pieces"),
        Packed("stack_sizes", np.dtype(np.uint8), "stacks"),
    ),
    key=lambda packed: -packed.dtype.itemsize,
)


def pack(transitions: Transitions) -> dict[str, NDArray[Any]]:
    """Return the transitions as plain arrays: those of `PACKED`, and "pieces" with all bytes concatenated."""
    columns = _columns_in(transitions)
    stacks = list(chain.from_iterable(columns[place] for place in _STACKS))
    singles = chain.from_iterable(columns[place] for place in _SINGLES)
    mentions = _as_array([*chain.from_iterable(stacks), *singles])
    references, is_first = _number_by_first_mention(np.frombuffer(mentions, dtype=np.intp))  # their addresses
    pieces = mentions[is_first].tolist()
    stack_sizes = np.ones(STACKS_PER_ROW * len(transitions), dtype=np.uint8)
    stack_sizes[: len(stacks)] = _sizes(stacks, np.uint8)
    numbers = {COLUMNS[place].name: np.ascontiguousarray(columns[place]) for place in _NUMBERS}
    return numbers | {
        "stack_sizes": stack_sizes,
        "references": references,
        "piece_sizes": _sizes(pieces, np.uint32),
        "pieces": np.frombuffer(b"".join(pieces), dtype=np.uint8),
    }


def unpack(arrays: Mapping[str, NDArray[Any]], pieces: bytes | None = None) -> Transitions:
    """Return the transitions passed to `pack`, with shared pieces; `pieces` is that array if it is given as bytes."""
    whole = arrays["pieces"].tobytes() if pieces is None else pieces
    # Every piece is copied: a view would keep the whole buffer in memory.
    shared = _as_array(_cut(whole, arrays["piece_sizes"]))
    mentions = shared[arrays["references"]].tolist()
    stack_sizes = arrays["stack_sizes"]
    count = len(stack_sizes) // STACKS_PER_ROW
    first_single = len(mentions) - SINGLES_PER_ROW * count
    rows = [*_stacks(mentions[:first_single], stack_sizes[: len(_STACKS) * count]), *mentions[first_single:]]
    columns: list[Any] = [None] * len(COLUMNS)
    for place in _NUMBERS:
        columns[place] = arrays[COLUMNS[place].name].astype(COLUMNS[place].dtype)
    for number, place in enumerate(_REFERRING):
        columns[place] = rows[number * count : (number + 1) * count]
    return Transitions(*columns)


class PackedStates(NamedTuple):
    """The states of packed transitions, first every s_tm1, then every s_t, without an object for each frame."""

    frames: NDArray[np.int64]  # (states, depth): those of each state, by number
    pieces: bytes  # all frames, concatenated
    ends: NDArray[np.int64]  # where each frame ends in `pieces`


class PackedTransitions:
    """Transitions in packed form as they were received; most readers need their numbers and the frames only."""

    def __init__(self, arrays: Mapping[str, NDArray[Any]], pieces: bytes) -> None:
        """`arrays`: those of `PACKED`; `pieces`: all pieces, concatenated."""
        self.arrays = {**arrays, "pieces": np.frombuffer(pieces, np.uint8)}  # as `pack` returns them
        self._pieces = pieces

    def __len__(self) -> int:
        return len(self.arrays["stack_sizes"]) // STACKS_PER_ROW

    def unpack(self) -> Transitions:
        """Return the transitions."""
        return unpack(self.arrays, self._pieces)

    def numbers(self, name: str) -> NDArray[Any]:
        """Return a new array with a column of numbers."""
        return self.arrays[name].astype(COLUMNS[_PLACE_OF[name]].dtype)

    def states(self) -> PackedStates | None:
        """Return all states; None if there are none, or if they have different numbers of frames."""
        sizes = self.arrays["stack_sizes"][: len(_STACKS) * len(self)]
        depth = int(sizes[0]) if sizes.size else 0
        if depth == 0 or (sizes != depth).any():
            return None
        mentioned = self.arrays["references"][: sizes.size * depth].reshape(len(_STACKS), len(self) * depth)
        index = mentioned[_STATES].astype(np.int64).reshape(-1, depth)
        frames = int(index.max()) + 1  # pieces are numbered by first mention, and those of states come first
        return PackedStates(index, self._pieces, np.cumsum(self.arrays["piece_sizes"][:frames], dtype=np.int64))


def unpacked(transitions: Transitions | PackedTransitions) -> Transitions:
    """Return these transitions, not packed."""
    return transitions.unpack() if isinstance(transitions, PackedTransitions) else transitions


class PackedRows:
    """Reads single transitions in packed form, whose pieces may be larger than the memory: only theirs are read.

    `pieces` returns the bytes from one offset to another of all pieces.
    """

    def __init__(self, arrays: Mapping[str, NDArray[Any]], pieces: Callable[[int, int], bytes]) -> None:
        self._numbers = [arrays[COLUMNS[place].name] for place in _NUMBERS]
        self._references = arrays["references"]
        self._stack_ends = np.add.accumulate(arrays["stack_sizes"], dtype=np.int64)
        self._piece_ends = np.add.accumulate(arrays["piece_sizes"], dtype=np.int64)
        self._pieces = pieces
        self._count = len(arrays["stack_sizes"]) // STACKS_PER_ROW

    def read(self, rows: Sequence[int]) -> Transitions:
        """Return these transitions, in this order; pieces that they share are read once."""
        columns: list[Any] = [None] * len(COLUMNS)
        for place, numbers in zip(_NUMBERS, self._numbers, strict=True):
            columns[place] = numbers[list(rows)].astype(COLUMNS[place].dtype)
        shared: dict[int, bytes] = {}
        for number, place in enumerate(_REFERRING):
            stacks = [self._stack(number * self._count + row, shared) for row in rows]
            columns[place] = stacks if place in _STACKS else [stack[0] for stack in stacks]
        return Transitions(*columns)

    def _stack(self, number: int, shared: dict[int, bytes]) -> Stack:
        start, end = _span(self._stack_ends, number)
        for piece in (numbers := self._references[start:end].tolist()):
            if piece not in shared:
                shared[piece] = self._pieces(*_span(self._piece_ends, piece))
        return tuple(shared[piece] for piece in numbers)


def _span(ends: NDArray[np.int64], number: int) -> tuple[int, int]:
    """Return where consecutive parts that end there begin and end."""
    return int(ends[number - 1]) if number else 0, int(ends[number])


def _number_by_first_mention(names: NDArray[np.intp]) -> tuple[NDArray[np.uint32], NDArray[np.bool_]]:
    """Number names from 0 in order of first occurrence; return the number of each, and which are first occurrences.

    `np.unique` would need a second sort.
    """
    order = names.argsort()
    ranked = names[order]
    begins = np.ones(names.size, dtype=np.bool_)  # where a new name begins, in sorted order
    np.not_equal(ranked[1:], ranked[:-1], out=begins[1:])
    first = np.minimum.reduceat(order, begins.nonzero()[0]) if names.size else order
    leader = np.empty_like(order)  # for each mention, the first one of the same name
    leader[order] = first[np.add.accumulate(begins, dtype=np.intp) - 1]
    is_first = np.zeros(names.size, dtype=np.bool_)
    is_first[first] = True
    numbers = np.add.accumulate(is_first, dtype=np.uint32) - np.uint32(1)
    return numbers[leader], is_first


def _sizes(things: Collection[Sized], dtype: type[np.unsignedinteger[Any]]) -> NDArray[Any]:
    return np.fromiter(map(len, things), dtype=dtype, count=len(things))


def _stacks(pieces: list[bytes], sizes: NDArray[Any]) -> list[Stack]:
    """Split the pieces into consecutive stacks of these sizes."""
    depth = int(sizes[0]) if sizes.size else 0
    if depth and (sizes == depth).all():  # the usual case, several times faster
        return list(zip(*[iter(pieces)] * depth, strict=True))
    return _cut(tuple(pieces), sizes)


def _cut(whole: _Whole, sizes: NDArray[Any]) -> list[_Whole]:
    """Split into consecutive parts of these sizes."""
    ends: list[int] = np.add.accumulate(sizes, dtype=np.int64).tolist()
    return [whole[start:end] for start, end in zip([0, *ends], ends, strict=False)]
