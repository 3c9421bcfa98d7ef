"""The columns of all slots: one record of numbers per slot, and references to frames and snapshots.

The numbers of a slot are neighbours in memory, so writing or gathering a transition touches two cache lines instead of
one per column. Observations are references to shared immutable bytes, unless every state is one frame of the same
small size: then both states of a transition are in its record. This takes less memory than objects, and a batch of
them is one gather.
"""

from __future__ import annotations

from operator import attrgetter
from typing import Any, Final, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from dpsr_apex.replay.records import EMPTY, SLOT_COLUMNS, Arrivals, Floats, Integers, SlotColumns
from dpsr_apex.replay.transitions import COLUMNS, Stack, Transitions, record_of
from dpsr_apex.replay.trees import Slots

MOST_INLINE: Final = 128  # bytes of a frame: larger ones take less memory as objects that transitions share
STATES: Final = ("s_tm1", "s_t")  # the columns in a record's field of frames, in this order
_FRAMES: Final = "frames"

_NUMBERS: Final = [column for column in COLUMNS if not column.dtype.hasobject]
_REFERENCES: Final = [column for column in COLUMNS if column.dtype.hasobject]
_SLOT_NUMBERS: Final = [column for column in SLOT_COLUMNS if column.name != "identities"]


class _Place(NamedTuple):
    """Where a number is in a record."""

    dtype: np.dtype[Any]
    offset: int


class _Record:
    """The record of a slot: `about` is what the replay stores about the slot, `row` its transition."""

    def __init__(self, frame_bytes: int) -> None:
        frames = [(_FRAMES, np.dtype((np.void, len(STATES) * frame_bytes)))] if frame_bytes else []
        about = np.dtype(record_of(_SLOT_NUMBERS), align=True)
        row = np.dtype([*record_of(_NUMBERS), *frames], align=True)
        self.dtype = np.dtype([("about", about), ("row", row)], align=True)
        self.places = _places(about, 0) | _places(row, _places(self.dtype, 0)["row"].offset)
        self.names = [name for name in row.names or () if name != _FRAMES]
        self.references = [column for column in _REFERENCES if not frame_bytes or column.name not in STATES]


def _places(record: np.dtype[Any], start: int) -> dict[str, _Place]:
    return {name: _Place(dtype, start + offset) for name, (dtype, offset, *_) in (record.fields or {}).items()}


class Rows:
    """Copies of what is stored in some slots."""

    def __init__(self, record: _Record, records: NDArray[np.void], references: dict[str, NDArray[np.object_]]) -> None:
        self._record = record
        self._records = records
        self._references = references

    def numbers(self, name: str) -> NDArray[Any]:
        """Return a column of numbers."""
        return self._records.getfield(*self._record.places[name]).copy()  # contiguous, of its own

    @property
    def frames(self) -> NDArray[np.void] | None:
        """Both frames of each transition, with their checksums, if states are stored in records."""
        return self.numbers(_FRAMES) if _FRAMES in self._record.places else None

    def stacks(self) -> list[list[Stack]]:
        """Return the states s_tm1, and the states s_t."""
        frames = self.frames
        return [self._references[name].tolist() for name in STATES] if frames is None else _stacks_in(frames)

    def transitions(self) -> Transitions:
        """Return the transitions, without their snapshots unless these were read."""
        columns: dict[str, Any] = {column.name: self.numbers(column.name) for column in _NUMBERS}
        for column in self._record.references:
            found = self._references.get(column.name)
            columns[column.name] = [column.blank] * self._records.size if found is None else found.tolist()
        return Transitions(**(columns | dict(zip(STATES, self.stacks(), strict=True))))


class Store:
    """The columns of all slots; those of numbers can be read, and written, as arrays by name."""

    def __init__(self, capacity: int, frame_bytes: int = 0) -> None:
        """`frame_bytes`: the size of every frame if each state is one frame of this size, otherwise 0."""
        frame_bytes = frame_bytes if frame_bytes <= MOST_INLINE else 0
        record = _Record(frame_bytes)
        references = {column.name: column.empty(capacity) for column in record.references}
        identities = np.full(capacity, EMPTY, np.int64)
        raw = np.zeros(capacity, (np.void, record.dtype.itemsize))
        self.__setstate__((frame_bytes, raw, references, identities))
        self._fill_blank(slice(None))

    def __getstate__(self) -> tuple[Any, ...]:
        """Return what a copy needs: without the views, which would become arrays of their own.

        A copy of the records themselves would have any bytes between their fields.
        """
        return self.frame_bytes, self._raw, self._references, self.slots.identities

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.frame_bytes, self._raw, self._references, identities = state
        self._record = _Record(self.frame_bytes)
        self._records = self._raw.view(self._record.dtype)
        self._about, self._rows = self._records["about"], self._records["row"]
        self._columns = {name: array[name] for array in (self._about, self._rows) for name in array.dtype.names or ()}
        self._number_columns = attrgetter(*self._record.names)
        self._reference_columns = [(array, attrgetter(name)) for name, array in self._references.items()]
        self.slots = SlotColumns(identities, *(self._columns[column.name] for column in _SLOT_NUMBERS))

    def __getitem__(self, name: str) -> NDArray[Any]:
        """Return a column of the transitions, or of data about the slots; changes of it change the store."""
        found: NDArray[Any] = self._columns[name] if name in self._columns else self._references[name]
        return found

    @property
    def slot_bytes(self) -> int:
        """The memory of a slot in these arrays."""
        return self._record.dtype.itemsize + 8 * (1 + len(self._references))

    def check_frames(self, transitions: Transitions) -> None:
        """Raise ValueError unless each state is one frame of `frame_bytes`."""
        for stack in (*transitions.s_tm1, *transitions.s_t):
            if len(stack) != 1 or len(stack[0]) != self.frame_bytes:
                sizes = [len(frame) for frame in stack]
                raise ValueError(f"every state must be one frame of {self.frame_bytes} bytes (got {sizes})")

    def write_about(self, slots: Slots, arrivals: Arrivals, replaced: Floats) -> tuple[int, int, float]:
        """Write what is stored about the slots of new transitions, except their identities.

        Return the number of transitions replaced, the sum of their ages, and that of their priorities `replaced`, which
        are infinite where a slot was empty.
        """
        return _write_about(self._about, slots, arrivals.births, replaced, *arrivals.lineage)

    def write(self, slots: Slots, transitions: Transitions) -> None:
        """Write transition i into `slots[i]`; if a slot is repeated, the last one counts."""
        if len(transitions) == 1:  # several times faster
            slot = slots[0]
            numbers = [column[0] for column in self._number_columns(transitions)]
            frames = [transitions.s_tm1[0][0] + transitions.s_t[0][0]] if self.frame_bytes else []
            self._rows[slot] = (*numbers, *frames)
            for references, rows in self._reference_columns:
                references[slot] = rows(transitions)[0]
            return
        for name, column in zip(self._record.names, self._number_columns(transitions), strict=True):
            self._columns[name][slots] = column
        for references, rows in self._reference_columns:
            references[slots] = np.fromiter(rows(transitions), object, len(transitions))
        if self.frame_bytes:
            states = zip(transitions.s_tm1, transitions.s_t, strict=True)
            joined = b"".join(frame for pair in states for stack in pair for frame in stack)
            self._columns[_FRAMES][slots] = np.frombuffer(joined, self._columns[_FRAMES].dtype)

    def gather(self, slots: Slots) -> Rows:
        """Return copies of what is in these slots, in this order, except snapshots."""
        references = {name: array[slots] for name, array in self._references.items() if name != "snapshots"}
        return Rows(self._record, self._raw[slots], references)

    def read(self, slots: Slots) -> Transitions:
        """Return the transitions in these slots, in this order."""
        references = {name: array[slots] for name, array in self._references.items()}
        return Rows(self._record, self._raw[slots], references).transitions()

    def sizes(self, slots: Slots) -> Integers:
        """Return the bytes to which each of these slots refers: a snapshot, and frames that are not in its record."""
        sizes = np.zeros(slots.size, np.int64)
        for name, references in self._references.items():
            stacks = references[slots].tolist() if name in STATES else [(piece,) for piece in references[slots]]
            sizes += np.array([sum(map(len, stack)) for stack in stacks], np.int64)
        return sizes

    def clear(self, slots: Slots) -> None:
        """Make these slots as they were before they were filled for the first time."""
        self.slots.identities[slots] = EMPTY
        self._fill_blank(slots)

    def has_states(self, slots: Slots) -> bool:
        """Whether there is a state in each of these slots."""
        return bool(self.frame_bytes) or all(len(stack) > 0 for stack in self._references["s_tm1"][slots])

    def is_blank(self, slots: Slots) -> bool:
        """Whether these slots are as they were before they were filled for the first time."""
        others = Store(1, self.frame_bytes)
        pairs = [(self._raw[slots], others._raw), (self.slots.identities[slots], others.slots.identities)]
        pairs += [(array[slots], others._references[name]) for name, array in self._references.items()]
        return all(bool((found == blank).all()) for found, blank in pairs)

    def _fill_blank(self, slots: Slots | slice) -> None:
        self._raw[slots] = np.zeros(1, self._raw.dtype)
        for column in (*_SLOT_NUMBERS, *_NUMBERS):
            if column.blank != 0:
                self._columns[column.name][slots] = column.blank
        for column in self._record.references:
            self._references[column.name][slots] = column.empty(1)


def _stacks_in(frames: NDArray[np.void]) -> list[list[Stack]]:
    """Return the states s_tm1, and the states s_t, whose frames are stored together; equal ones are one object."""
    halves = frames.view(np.dtype((np.void, frames.dtype.itemsize // len(STATES)))).tolist()
    shared: dict[bytes, Stack] = {}
    stacks = [shared.setdefault(frame, (frame,)) for frame in halves]
    return [stacks[::2], stacks[1::2]]


@njit(cache=True)
def _write_about(
    about: NDArray[Any],
    slots: Slots,
    births: Integers,
    replaced: Floats,
    depths: Integers,
    recycles: Integers,
    origins: Integers,
) -> tuple[int, int, float]:
    count, ages, priorities = 0, 0, 0.0
    for i in range(slots.size):
        record = about[slots[i]]
        if np.isfinite(replaced[i]):
            count += 1
            ages += births[i] - record.births
            priorities += replaced[i]
        record.births = births[i]
        record.gains = np.nan
        record.depths = depths[i]
        record.recycles = recycles[i]
        record.origins = origins[i]
    return count, ages, priorities
