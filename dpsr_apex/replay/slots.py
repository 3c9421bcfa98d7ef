"""The identity and the priority of every slot, and the compiled functions that write them, one call per chunk.

A slot's identity is the serial number of its transition times the capacity, plus the slot; -1 if the slot is empty. So
identities are never reused, and the lowest one is the oldest.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numba import njit

from dpsr_apex.replay.records import EMPTY, Arrivals, Floats, Integers
from dpsr_apex.replay.trees import (
    GREATEST,
    PRIORITY,
    REPLACING,
    Levels,
    PriorityTrees,
    Slots,
    refresh_all_ancestors,
    sample_into,
    set_priority,
    write_leaf,
)

NO_SLOTS: Final = np.empty(0, np.int64)
GREATEST_TD_ERROR: Final = 1e50  # above this, powers of a priority would overflow
FIRST_PRIORITY = 1.0  # of a transition that enters an empty replay
MAX_PRIORITY = np.nan  # in an array of priorities: use the maximum priority in the replay at that time

MAX_PRIORITIES: Final = np.full(64, MAX_PRIORITY)  # of a small chunk; never modified


class BadPriority(ValueError):
    """Raised for a TD error that cannot become a priority; nothing was changed."""


def priorities_of(td_errors: Floats, floor: float, names: Integers, what: str) -> Floats:
    """Return priorities from absolute TD errors; raise BadPriority, with the name of the first one that is wrong."""
    if td_errors.shape != names.shape:  # compiled code would read past the end
        raise ValueError(f"there are {td_errors.size} TD errors for {names.size} transitions")
    priorities = np.empty(td_errors.size)
    bad = add_floor(priorities, td_errors, floor, GREATEST_TD_ERROR)
    if bad >= 0:
        raise BadPriority(
            f"{what} {names[bad]} has the absolute TD error {td_errors[bad]}; "
            f"it must be a number from 0 to {GREATEST_TD_ERROR:g}"
        )
    return priorities


class SlotIndex:
    """Identities and priorities of all slots, used by samplers and removers."""

    def __init__(self, trees: PriorityTrees, identities: Integers) -> None:
        self.trees = trees
        self.identities = identities
        self.arrays = (*trees.arrays, identities)  # arguments of the compiled functions
        self._lowest_empty = 0  # no slot below it is empty

    @property
    def exponents(self) -> tuple[float, float]:
        """The sampling and replacing exponents of the trees' leaves."""
        return self.trees.alpha, self.trees.gamma

    def write(self, slots: Slots, arrivals: Arrivals) -> Floats:
        """Write arrival i into `slots[i]`, one after the other.

        Return the priorities of the replaced transitions, infinite where a slot was empty.
        """
        return write_slots(*self.arrays, slots, arrivals.serials, arrivals.priorities, *self.exponents)

    def take_empty(self, most: int) -> Slots:
        """Return up to `most` empty slots, the lowest ones; they must be written next."""
        if self._lowest_empty == self.identities.size:
            return NO_SLOTS
        slots = find_empty(self.identities, self._lowest_empty, most)
        if slots.size < most:
            self._lowest_empty = self.identities.size
        elif most > 0:
            self._lowest_empty = int(slots[-1]) + 1
        return slots

    def clear(self, slots: Slots) -> None:
        """Empty these slots, of which there must be at least one."""
        self.identities[slots] = EMPTY
        self.trees.clear(slots)
        self._lowest_empty = min(self._lowest_empty, int(slots.min()))

    def update(self, identities: Integers, priorities: Floats) -> Slots:
        """Set the priorities of stored transitions; those that are no longer stored are skipped.

        Return the slots of those that are stored.
        """
        slots = np.empty(identities.size, dtype=np.int64)
        return slots[: update_stored(slots, *self.arrays, identities, priorities, *self.exponents)]


@njit(cache=True)
def add_floor(priorities: Floats, td_errors: Floats, floor: float, greatest: float) -> int:
    """Overwrite `priorities` with TD error + `floor`; return the first that is not in [0, `greatest`], -1 if none."""
    for i in range(td_errors.size):
        if not 0.0 <= td_errors[i] <= greatest:
            return i
        priorities[i] = td_errors[i] + floor
    return -1


@njit(cache=True)
def find_empty(identities: Integers, first: int, most: int) -> Slots:
    """Return the lowest empty slots from slot `first` on, at most `most`."""
    slots = np.empty(min(most, identities.size - first), dtype=np.int64)
    count = 0
    for slot in range(first, identities.size):
        if count == slots.size:
            break
        if identities[slot] == EMPTY:
            slots[count] = slot
            count += 1
    return slots[:count]


@njit(cache=True, error_model="numpy")
def _write_slot(
    leaves: Floats,
    nodes: Floats,
    levels: Levels,
    identities: Integers,
    slot: int,
    serial: int,
    priority: float,
    alpha: float,
    gamma: float,
) -> float:
    """Write one slot; return the priority of the replaced transition, infinite if the slot was empty."""
    replaced = leaves[PRIORITY, slot]
    if np.isnan(priority):
        greatest = nodes[GREATEST, levels[-1]]
        priority = greatest if greatest > 0.0 else FIRST_PRIORITY
    identities[slot] = serial * identities.size + slot
    set_priority(leaves, nodes, levels, slot, priority, alpha, gamma)
    return float(replaced)


@njit(cache=True, error_model="numpy")
def write_slots(
    leaves: Floats,
    nodes: Floats,
    levels: Levels,
    identities: Integers,
    slots: Slots,
    serials: Integers,
    priorities: Floats,
    alpha: float,
    gamma: float,
) -> Floats:
    """Write a new transition into each slot, one after the other; return the priorities of those replaced."""
    replaced = np.empty(slots.size)
    for i in range(slots.size):
        replaced[i] = _write_slot(leaves, nodes, levels, identities, slots[i], serials[i], priorities[i], alpha, gamma)
    return replaced


@njit(cache=True, error_model="numpy")
def write_ring(
    leaves: Floats,
    nodes: Floats,
    levels: Levels,
    identities: Integers,
    serials: Integers,
    priorities: Floats,
    alpha: float,
    gamma: float,
) -> tuple[Slots, Floats]:
    """Write each new transition into the slot of its serial number, in turn; return the slots and what they had."""
    slots = np.empty(serials.size, dtype=np.int64)
    replaced = np.empty(serials.size)
    for i in range(serials.size):
        slots[i] = serials[i] % identities.size
        replaced[i] = _write_slot(leaves, nodes, levels, identities, slots[i], serials[i], priorities[i], alpha, gamma)
    return slots, replaced


@njit(cache=True, error_model="numpy")
def replace_by_priority(
    leaves: Floats,
    nodes: Floats,
    levels: Levels,
    identities: Integers,
    serials: Integers,
    priorities: Floats,
    uniforms: Floats,
    alpha: float,
    gamma: float,
) -> tuple[Slots, Floats]:
    """Perform common replacements one after the other: of the candidates sampled for each, the oldest is replaced.

    `uniforms` has a row of C_c numbers for each new transition, and is overwritten. Return the slots that were written
    and the priorities of the transitions replaced.
    """
    slots = np.empty(serials.size, dtype=np.int64)
    replaced = np.empty(serials.size)
    candidates = np.empty(uniforms.shape[1], dtype=np.int64)
    for i in range(serials.size):
        sample_into(candidates, uniforms[i], leaves, nodes, levels, REPLACING)
        for place in range(candidates.size):
            candidates[place] = identities[candidates[place]]
        slots[i] = candidates.min() % identities.size
        replaced[i] = _write_slot(leaves, nodes, levels, identities, slots[i], serials[i], priorities[i], alpha, gamma)
    return slots, replaced


@njit(cache=True, error_model="numpy")
def replace_oldest(
    leaves: Floats,
    nodes: Floats,
    levels: Levels,
    identities: Integers,
    serials: Integers,
    priorities: Floats,
    alpha: float,
    gamma: float,
) -> tuple[Slots, Floats]:
    """Replace the oldest transition of a full replay with each new one, found by a search through all slots.

    Return the written slots and the priorities of the transitions replaced.
    """
    slots = np.empty(serials.size, dtype=np.int64)
    replaced = np.empty(serials.size)
    for i in range(serials.size):
        slots[i] = identities.min() % identities.size
        replaced[i] = _write_slot(leaves, nodes, levels, identities, slots[i], serials[i], priorities[i], alpha, gamma)
    return slots, replaced


@njit(cache=True, error_model="numpy")
def update_stored(
    found: Slots,
    leaves: Floats,
    nodes: Floats,
    levels: Levels,
    identities: Integers,
    names: Integers,
    priorities: Floats,
    alpha: float,
    gamma: float,
) -> int:
    """Set the priorities of the transitions with the identities `names`; those no longer stored are skipped.

    `found`, as long as `names`, is overwritten with the slots of those that are stored; return their number.
    """
    for i in range(names.size):  # a separate loop, so that the memory accesses overlap
        slot = names[i] % identities.size
        found[i] = slot if names[i] >= 0 and identities[slot] == names[i] else -1
    count = 0
    for i in range(names.size):
        if found[i] >= 0:
            write_leaf(leaves, found[i], priorities[i], alpha, gamma)
            found[count] = found[i]
            count += 1
    refresh_all_ancestors(leaves, nodes, levels, found[:count])
    return count
