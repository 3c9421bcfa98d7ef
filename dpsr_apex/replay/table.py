"""The table of stored transitions: their slots and priorities, and how the method samples and replaces them.

A transition is named by its identity, a number that is never reused: its serial number times the capacity, plus its
slot. So the slot follows by arithmetic, a stale identity is found by one comparison, and the oldest transition has the
lowest identity.

The table has no clock: the clock t is passed in, and every transition arrives with its birth.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpsr_apex.config import ReplayConfig
from dpsr_apex.replay.records import (
    EMPTY,
    SLOT_COLUMNS,
    Arrivals,
    Counters,
    Floats,
    Integers,
    SlotColumns,
    StoredRows,
)
from dpsr_apex.replay.removers import REMOVERS
from dpsr_apex.replay.samplers import SAMPLERS
from dpsr_apex.replay.slots import NO_SLOTS, SlotIndex
from dpsr_apex.replay.store import Store
from dpsr_apex.replay.survey import Survey, survey_of
from dpsr_apex.replay.transitions import Transitions
from dpsr_apex.replay.trees import PriorityTrees, Slots


class Table:
    """Stored transitions with the sampler and the remover of a method."""

    def __init__(self, config: ReplayConfig, counters: Counters, frame_bytes: int) -> None:
        """Create an empty table that counts in `counters`; `frame_bytes` as for `Store`."""
        self.size = 0
        self.next_serial = 0
        self.counters = counters
        self.store = Store(config.capacity, frame_bytes)
        self._config = config
        self._depth = 0  # frames per state; 0 before the first transition
        sampler = SAMPLERS[config.parts.sampler]
        self._samples_by_priority = sampler.by_priority
        self._has_final_exponents = False  # whether the trees have those that never change
        self.trees = PriorityTrees(config.capacity, *self.exponents(0, 1))
        self.index = SlotIndex(self.trees, self.slots.identities)
        self.sampler = sampler(self.trees)
        self._remover = REMOVERS[config.parts.remover](config, self.index)

    @property
    def slots(self) -> SlotColumns:
        """What is stored about each slot."""
        return self.store.slots

    @property
    def filled_slots(self) -> Slots:
        """The slots that hold a transition, in order."""
        return np.flatnonzero(self.slots.identities != EMPTY)

    @property
    def filled(self) -> slice | Slots:
        """These slots as an index: a slice, which is faster, unless transitions were evicted and not replaced yet."""
        is_packed = self.size == self._config.capacity or self.slots.identities[: self.size].min(initial=0) != EMPTY
        return slice(0, self.size) if is_packed else self.filled_slots

    # Sampling.

    def exponents(self, t: int, total_steps: int) -> tuple[float, float]:
        """Return the sampling exponent alpha(t), as the method uses it, and the replacing exponent gamma(t)."""
        alpha = self._config.sampling_exponent.at(t, total_steps) if self._samples_by_priority else 0.0
        return alpha, self._config.replacing_exponent.at(t, total_steps)

    def follow_schedules(self, t: int, total_steps: int) -> None:
        """Rebuild the trees if alpha(t) or gamma(t) differs too much from the exponents of their leaves."""
        if self._has_final_exponents:
            return
        alpha, gamma = self.exponents(t, total_steps)
        moved = max(abs(alpha - self.trees.alpha), abs(gamma - self.trees.gamma))
        if moved > self._config.exponent_tolerance:
            self.trees.rebuild(alpha, gamma)
            self.sampler.rebuild()
        schedules = self._config.sampling_exponent, self._config.replacing_exponent
        self._has_final_exponents = all(schedule.is_constant for schedule in schedules)

    def sample(self, uniforms: Floats, beta: float) -> tuple[Slots, NDArray[np.float32]]:
        """Sample one slot for each uniform number; return the slots and their importance weights."""
        slots, weights = self.sampler.sample(uniforms, beta)
        self.counters.sampled += uniforms.size
        if self.counters.chains:  # otherwise nothing that is stored was recycled
            self.counters.sampled_recycled += int(np.count_nonzero(self.slots.depths[slots]))
        return slots, weights

    def update_priorities(self, identities: Integers, priorities: Floats) -> None:
        """Set the priorities of these transitions; those that have been replaced are counted as stale."""
        slots = self.index.update(identities, priorities)
        self.sampler.update(slots)
        self.counters.priorities_updated += slots.size
        self.counters.priorities_stale += identities.size - slots.size

    # Reading.

    def slots_of(self, identities: Integers) -> Slots:
        """Return the slots that these transitions have, or had."""
        slots: Slots = identities % self._config.capacity
        return slots

    def stored(self, identities: Integers) -> Integers:
        """Return those of these identities whose transitions are stored, in their order."""
        is_stored = self.slots.identities[self.slots_of(identities)] == identities
        stored: Integers = identities[is_stored & (identities >= 0)]
        return stored

    def rows_of(self, identities: Integers) -> StoredRows:
        """Return everything about those of these transitions that are stored, in their order; copies."""
        slots = self.slots_of(self.stored(identities))
        columns = SlotColumns(*(getattr(self.slots, column.name)[slots] for column in SLOT_COLUMNS))
        return StoredRows(columns, self.trees.priorities[slots], self.store.read(slots))

    def largest(self, size: int, least: int) -> Integers:
        """Return the identities of the largest stored transitions, of `size` bytes together: all if there are fewer.

        Those of fewer than `least` bytes are left out. A frame counts in every transition that has it.
        """
        slots = self.filled_slots
        sizes = self.store.sizes(slots)
        order = np.argsort(-sizes, kind="stable")[: np.count_nonzero(sizes >= least)]
        count = np.searchsorted(np.add.accumulate(sizes[order]), size) + 1
        largest: Integers = self.slots.identities[slots[order[:count]]]
        return largest

    def survey(self, t: int, most: int) -> Survey:
        """Return the numbers of all stored transitions, or of `most` of them spread over the slots, as copies."""
        slots = {column.name: getattr(self.slots, column.name) for column in SLOT_COLUMNS}
        names = ("a_tm1", "r_t", "terminal", "episode_steps")
        columns = slots | {name: self.store[name] for name in names} | {"priorities": self.trees.priorities}
        return survey_of(t, self._config.capacity, self.filled_slots, columns, most)

    # Writing.

    def admit(self, transitions: Transitions) -> None:
        """Raise ValueError if a state has another number of frames than those before.

        Such states could be stored, but not trained on in one batch.
        """
        if self.store.frame_bytes:
            self.store.check_frames(transitions)
            return
        stacks = [*transitions.s_tm1, *transitions.s_t]
        depth = self._depth or (len(stacks[0]) if stacks else 0)
        if set(map(len, stacks)) - {depth} or (stacks and depth == 0):
            raise ValueError(f"every state must have the same number of frames, {depth or 'at least 1'}")
        self._depth = depth

    def take_serials(self, count: int) -> Integers:
        """Return the serial numbers of the next `count` transitions."""
        self.next_serial += count
        return np.arange(self.next_serial - count, self.next_serial)

    def place(self, arrivals: Arrivals, rng: np.random.Generator) -> None:
        """Fill empty slots, then replace: the method's remover chooses the slots."""
        count = len(arrivals.transitions)
        empty = NO_SLOTS if self._remover.is_ring else self.index.take_empty(count)
        if empty.size:
            self.write(empty, arrivals.rows(0, empty.size))
        if empty.size < count:
            rest = arrivals.rows(empty.size, count)
            slots, replaced = self._remover.replace(rest, rng)
            self._complete(slots, rest, replaced)

    def write(self, slots: Slots, arrivals: Arrivals) -> None:
        """Write arrival i into `slots[i]`."""
        self._complete(slots, arrivals, self.index.write(slots, arrivals))

    def evict(self, identities: Integers) -> StoredRows:
        """Empty the slots of those of these transitions that are stored, and count them; return what was stored."""
        stored = self.stored(np.unique(identities))
        evicted = self.rows_of(stored)
        if stored.size:
            slots = self.slots_of(stored)
            self.index.clear(slots)
            self.store.clear(slots)
            self.sampler.update(slots)
            self.size -= slots.size
            self.counters.quarantined += slots.size
        return evicted

    def _complete(self, slots: Slots, arrivals: Arrivals, replaced: Floats) -> None:
        """Write the data that is not in the index, and count the replaced transitions; priority inf: slot was empty."""
        count, ages, priorities = self.store.write_about(slots, arrivals, replaced)
        self.size += slots.size - count
        self.counters.replaced += count
        self.counters.replaced_age += ages
        self.counters.replaced_priority += priorities
        self.store.write(slots, arrivals.transitions)
        self.sampler.update(slots)

    # Saving.

    def columns(self) -> dict[str, NDArray[Any]]:
        """Return all numbers about the filled slots, by column; copies."""
        filled = self.filled
        about = {column.name: getattr(self.slots, column.name)[filled].copy() for column in SLOT_COLUMNS}
        return about | {"priorities": self.trees.priorities[filled].copy()}

    def transitions(self) -> Transitions:
        """Return all stored transitions, in the order of their slots."""
        return self.store.read(self.filled_slots)

    def load(
        self, columns: Mapping[str, NDArray[Any]], transitions: Transitions, exponents: tuple[float, float]
    ) -> None:
        """Fill an empty table with what `columns` and `transitions` returned."""
        slots = self.slots_of(columns["identities"])
        for column in SLOT_COLUMNS:
            if column.name in columns:  # checkpoints of earlier versions lack the newest columns
                getattr(self.slots, column.name)[slots] = columns[column.name]
        self.admit(transitions)
        self.store.write(slots, transitions)
        self.trees.load(slots, columns["priorities"], *exponents)
        self._has_final_exponents = False
        self.sampler.rebuild()
        self.size = slots.size

    def check_valid(self, t: int) -> tuple[bool, str]:
        """Return whether every invariant holds, and the first that does not."""
        size, slots = self.size, self.filled_slots
        about = self.slots
        names, births = about.identities[slots], about.births[slots]
        is_recycled = np.isfinite(about.gains)
        for holds, reason in (
            (0 <= size <= self._config.capacity, "more transitions are stored than the capacity"),
            (slots.size == size, "another number of slots has an identity than is stored"),
            ((self.slots_of(names) == slots).all(), "an identity does not belong to its slot"),
            ((names >= 0).all(), "an identity is negative"),
            ((names // self._config.capacity < self.next_serial).all(), "an identity is from the future"),
            ((np.diff(births[np.argsort(names)]) >= 0).all(), "the order of identities is not the order of births"),
            ((births <= t).all() and (births > 0).all(), "a birth is not between 1 and t"),
            (not (is_recycled & (about.depths < 1)).any(), "a recycled transition has no depth"),
            (_is_consistent(about), "only a part of the lineage of a transition is recorded"),
            (self.store.has_states(slots), "a stored transition has no state"),
            (self.store.is_blank(np.delete(np.arange(self._config.capacity), slots)), "an empty slot has data"),
        ):
            if not holds:
                return False, reason
        valid, reason = self.trees.check_valid(slots)
        return self.sampler.check_valid() if valid else (valid, reason)


def _is_consistent(slots: SlotColumns) -> bool:
    """Whether each transition is either played or has a recycled state; a checkpoint may lack what recycled it."""
    recycled = slots.recycles > 0
    return bool((recycled == (slots.origins >= 0)).all() and (slots.depths[recycled] > 0).all())
