"""The identity and the priority of every slot, and the compiled functions that write them, one call per chunk.

A slot's identity is the serial number of its transition times the capacity, plus the slot; -1 if the slot is empty. So
identities are never reused, and the lowest one is the oldest.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from dpsr_apex.replay.records import Arrivals, Floats, Integers
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

FIRST_PRIORITY = 1.0  # of a transition that enters an empty replay
MAX_PRIORITY = np.nan  # in an array of priorities: use the maximum priority in the replay at that time


class SlotIndex:
    """Identities and priorities of all slots, used by samplers and removers."""

    def __init__(self, trees: PriorityTrees, identities: Integers) -> None:
        self.trees = trees
        self.identities = identities
        self.arrays = (*trees.arrays, identities)  # arguments of the compiled functions

    @property
    def exponents(self) -> tuple[float, float]:
        """The sampling and replacing exponents of the trees' leaves."""
        return self.trees.alpha, self.trees.gamma

    def write(self, slots: Slots, arrivals: Arrivals) -> Floats:
        """Write arrival i into `slots[i]`, one after the other.

        Return the priorities of the replaced transitions, infinite where a slot was empty.
        """
        return write_slots(*self.arrays, slots, arrivals.serials, arrivals.priorities, *self.exponents)

    def update(self, identities: Integers, priorities: Floats) -> Slots:
        """Set the priorities of stored transitions; those that are no longer stored are skipped.

        Return the slots of those that are stored.
        """
        slots = np.empty(identities.size, dtype=np.int64)
        return slots[: update_stored(slots, *self.arrays, identities, priorities, *self.exponents)]


@njit(cache=True)
def first_not_within(numbers: Floats, least: float, greatest: float) -> int:
    """Return the index of the first number outside [`least`, `greatest`], or NaN; -1 if there is none."""
    for i in range(numbers.size):
        if not least <= numbers[i] <= greatest:
            return i
    return -1


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


@njit(cache=True)
def swap_in(column: Integers, slots: Slots, arrivals: Integers) -> Integers:
    """Write `arrivals[i]` into `column[slots[i]]`, one after the other; return the overwritten values."""
    found = np.empty_like(arrivals)
    for i in range(slots.size):
        found[i] = column[slots[i]]
        column[slots[i]] = arrivals[i]
    return found


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
