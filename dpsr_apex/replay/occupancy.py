"""Compiled steps in which slots change their tenants: one call for a whole chunk.

`identities` holds the identity of each slot's tenant, its serial number times the capacity plus the slot, and -1 where
there is none. The least identity is the oldest.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from dpsr_apex.replay.trees import (
    GREATEST,
    PRIORITY,
    REPLACING,
    Floats,
    Levels,
    Slots,
    draw_into,
    refresh_all_ancestors,
    set_priority,
    write_leaf,
)

FIRST_PRIORITY = 1.0  # of a transition that enters an empty replay
GREATEST_NOW = np.nan  # in an array of priorities: the greatest in the replay at the moment of entering

Integers = NDArray[np.int64]


@njit(cache=True)
def first_not_within(numbers: Floats, least: float, greatest: float) -> int:
    """The place of the first number that is not from `least` to `greatest`, a NaN for instance; -1 if all are."""
    for i in range(numbers.size):
        if not least <= numbers[i] <= greatest:
            return i
    return -1


@njit(cache=True, error_model="numpy")
def _occupy_slot(
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
    """The former tenant's priority is returned, infinite where there was none."""
    former = leaves[PRIORITY, slot]
    if np.isnan(priority):
        greatest = nodes[GREATEST, levels[-1]]
        priority = greatest if greatest > 0.0 else FIRST_PRIORITY
    identities[slot] = serial * identities.size + slot
    set_priority(leaves, nodes, levels, slot, priority, alpha, gamma)
    return float(former)


@njit(cache=True, error_model="numpy")
def occupy(
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
    """Give each slot a new tenant, one after the other; the priorities of their former tenants are returned."""
    former = np.empty(slots.size)
    for i in range(slots.size):
        former[i] = _occupy_slot(leaves, nodes, levels, identities, slots[i], serials[i], priorities[i], alpha, gamma)
    return former


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
    """Common replacements, one after the other: of the candidates drawn for each, the one born first makes room.

    `uniforms` has a row of C_c numbers for each new tenant, and is used up. The slots they took are returned, with the
    priorities of the former tenants.
    """
    taken = np.empty(serials.size, dtype=np.int64)
    former = np.empty(serials.size)
    candidates = np.empty(uniforms.shape[1], dtype=np.int64)
    for i in range(serials.size):
        draw_into(candidates, uniforms[i], leaves, nodes, levels, REPLACING)
        for place in range(candidates.size):
            candidates[place] = identities[candidates[place]]
        taken[i] = candidates.min() % identities.size
        former[i] = _occupy_slot(leaves, nodes, levels, identities, taken[i], serials[i], priorities[i], alpha, gamma)
    return taken, former


@njit(cache=True)
def swap_in(column: Integers, slots: Slots, arrivals: Integers) -> Integers:
    """Put `arrivals[i]` where `slots[i]` points, one after the other; what each found there is returned."""
    found = np.empty_like(arrivals)
    for i in range(slots.size):
        found[i] = column[slots[i]]
        column[slots[i]] = arrivals[i]
    return found


@njit(cache=True, error_model="numpy")
def update_current(
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
    """Give the tenants of these names new priorities; names of former tenants are passed over.

    `found`, as long as `names`, is overwritten with the slots of those found; how many they are is returned.
    """
    for i in range(names.size):  # in a loop of their own, so that the waits for identities overlap
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
