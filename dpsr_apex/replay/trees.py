"""The four trees over one set of slots: sums of sampling and replacing masses, minimum and maximum priority.

Each node has eight children, so a million slots are seven levels deep, and the children of a node, a block, fill one
cache line. Above the leaves, the two sum trees also store the mass of the siblings before each child, so that the child
that a target falls on is found by one vector comparison. The leaves, seven times as many as all other nodes, are kept
small instead to reduce cache misses: sampling adds up the one block of masses that it reaches, and one row of
priorities serves as the leaves of both minimum and maximum. Parents are always recomputed from their children, never
adjusted by a difference, so rounding errors do not accumulate.

This module handles slots and numbers only, not the transitions in the slots.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from dpsr_apex.replay.siblings import FANOUT, fetch_ahead, step_down, step_to_leaf

SHIFT = 3  # a child's index shifted right by this is its parent's: a division would have to handle the sign
SECOND, CHILDREN = np.uint64(1), np.uint64(FANOUT)  # unsigned, because numba handles wraparound of signed indices

# Rows of leaves and of nodes.
SAMPLING = 0  # p ** alpha
REPLACING = 1  # p ** -gamma

# Rows of leaves.
PRIORITY = 2  # p; infinite if nothing is stored
LEAF_ROWS = 3

# Rows of nodes. Each has the same layout: the parents of leaves, then level after level up to the root.
LEAST = 2  # p; infinite if nothing is stored
GREATEST = 3  # p; zero if nothing is stored
BEFORE = 4  # plus SAMPLING or REPLACING: mass of the siblings before it; infinite if that is the whole mass
NODE_ROWS = 6

Slots = NDArray[np.int64]
Floats = NDArray[np.float64]
Levels = NDArray[np.int64]


class Arrays(NamedTuple):
    """The arguments `leaves, nodes, levels` of compiled functions; passed separately, because a tuple is slow."""

    leaves: Floats  # LEAF_ROWS x slots, padded to whole blocks
    nodes: Floats  # NODE_ROWS x nodes
    levels: Levels  # where each level of nodes begins in a row; the last is the root


def tree_levels(capacity: int) -> Levels:
    """Return where each level of nodes begins in a row, the parents of leaves first and the root last."""
    starts = [0]
    width = _blocks_of(capacity)
    while width > 1:
        width = _blocks_of(width)
        starts.append(starts[-1] + width * FANOUT)
    return np.array(starts, dtype=np.int64)


def _blocks_of(children: int) -> int:
    """Return the number of blocks for this number of children; the last block may be partly filled."""
    return -(-children // FANOUT)


def empty_trees(capacity: int) -> Arrays:
    """Return empty trees."""
    levels = tree_levels(capacity)
    leaves = _aligned_zeros(LEAF_ROWS, _blocks_of(capacity) * FANOUT)
    leaves[PRIORITY] = np.inf
    nodes = _aligned_zeros(NODE_ROWS, int(levels[-1]) + FANOUT)
    nodes[LEAST] = np.inf
    nodes[BEFORE:] = np.inf
    nodes[BEFORE:, ::FANOUT] = 0.0
    return Arrays(leaves, nodes, levels)


def _aligned_zeros(rows: int, width: int) -> Floats:
    """Return rows of zeros in which each block is aligned to a cache line."""
    raw = np.zeros(rows * width + FANOUT)
    shift = -(raw.ctypes.data // raw.itemsize) % FANOUT
    return raw[shift : shift + rows * width].reshape(rows, width)


@njit(cache=True, error_model="numpy", forceinline=True)
def _refresh_above_leaves(leaves: Floats, nodes: Floats, block: int) -> None:
    """Recompute the parent of one block of leaves."""
    parent, first = np.uint64(block), np.uint64(block) * CHILDREN
    sampling, replacing, least, greatest = 0.0, 0.0, np.inf, 0.0
    for child in range(CHILDREN):
        sampling += leaves[SAMPLING, first + child]
        replacing += leaves[REPLACING, first + child]
        priority = leaves[PRIORITY, first + child]
        least = priority if priority < least else least
        stored = priority if priority < np.inf else 0.0
        greatest = stored if stored > greatest else greatest
    nodes[SAMPLING, parent] = sampling
    nodes[REPLACING, parent] = replacing
    nodes[LEAST, parent] = least
    nodes[GREATEST, parent] = greatest


@njit(cache=True, error_model="numpy", forceinline=True)
def _refresh_above_nodes(nodes: Floats, block: int, above: int) -> None:
    """Recompute the parent (the node `above`) of one block of nodes."""
    parent, first = np.uint64(above), np.uint64(block) * CHILDREN
    least, greatest = np.inf, 0.0
    for child in range(CHILDREN):
        lesser, greater = nodes[LEAST, first + child], nodes[GREATEST, first + child]
        least = lesser if lesser < least else least
        greatest = greater if greater > greatest else greatest
    nodes[LEAST, parent] = least
    nodes[GREATEST, parent] = greatest
    nodes[SAMPLING, parent] = _add_up(nodes, SAMPLING, first)
    nodes[REPLACING, parent] = _add_up(nodes, REPLACING, first)


@njit(cache=True, error_model="numpy", forceinline=True)
def _add_up(nodes: Floats, mass: int, first: np.uint64) -> float:
    """Recompute the mass before each sibling in the block that begins with node `first`; return the whole mass."""
    total = 0.0
    for child in range(CHILDREN):
        total += nodes[mass, first + child]
    before = nodes[mass, first]
    for child in range(SECOND, CHILDREN):
        # A target that rounding has moved to the very end must still fall on the last child with mass.
        nodes[BEFORE + mass, first + child] = before if before < total else np.inf
        before += nodes[mass, first + child]
    return total


@njit(cache=True, error_model="numpy")
def _refresh_ancestors(leaves: Floats, nodes: Floats, levels: Levels, slot: int) -> None:
    place = slot >> SHIFT
    _refresh_above_leaves(leaves, nodes, place)
    for level in range(1, levels.size):
        place >>= SHIFT
        _refresh_above_nodes(nodes, (levels[level - 1] >> SHIFT) + place, levels[level] + place)


@njit(cache=True, error_model="numpy")
def refresh_all_ancestors(leaves: Floats, nodes: Floats, levels: Levels, slots: Slots) -> None:
    """Recompute the ancestors of many slots, level by level, so that memory accesses overlap.

    A parent shared by neighbours in `slots` is recomputed once.
    """
    places = np.empty(slots.size, dtype=np.int64)
    count = _parents_of(places, slots)
    for i in range(count):
        _refresh_above_leaves(leaves, nodes, places[i])
    for level in range(1, levels.size):
        count = _parents_of(places, places[:count])
        for i in range(count):
            _refresh_above_nodes(nodes, (levels[level - 1] >> SHIFT) + places[i], levels[level] + places[i])


@njit(cache=True, error_model="numpy")
def _parents_of(parents: Slots, places: Slots) -> int:
    """Write the parents of `places`, without adjacent duplicates, to `parents` (may be `places`); return how many."""
    count = 0
    for i in range(places.size):
        parent = places[i] >> SHIFT
        if count == 0 or parents[count - 1] != parent:
            parents[count] = parent
            count += 1
    return count


@njit(cache=True, error_model="numpy", forceinline=True)
def write_leaf(leaves: Floats, slot: int, priority: float, alpha: float, gamma: float) -> None:
    """Set the priority of one slot in the leaves only; its ancestors must be recomputed before the next sampling."""
    leaves[SAMPLING, slot] = priority**alpha
    leaves[REPLACING, slot] = priority**-gamma
    leaves[PRIORITY, slot] = priority


@njit(cache=True, error_model="numpy")
def set_priority(
    leaves: Floats, nodes: Floats, levels: Levels, slot: int, priority: float, alpha: float, gamma: float
) -> None:
    """Set the priority of one slot in all trees."""
    write_leaf(leaves, slot, priority, alpha, gamma)
    _refresh_ancestors(leaves, nodes, levels, slot)


@njit(cache=True, error_model="numpy")
def set_priorities(
    leaves: Floats, nodes: Floats, levels: Levels, slots: Slots, priorities: Floats, alpha: float, gamma: float
) -> None:
    """Set the priorities of many slots; if a slot is repeated, the last value counts."""
    for i in range(slots.size):
        write_leaf(leaves, slots[i], priorities[i], alpha, gamma)
    refresh_all_ancestors(leaves, nodes, levels, slots)


@njit(cache=True, error_model="numpy")
def rebuild(leaves: Floats, nodes: Floats, levels: Levels, alpha: float, gamma: float) -> None:
    """Recompute all leaves and nodes from the priorities, for these exponents."""
    for slot in range(leaves.shape[1]):
        if leaves[PRIORITY, slot] < np.inf:
            write_leaf(leaves, slot, leaves[PRIORITY, slot], alpha, gamma)
    for block in range(leaves.shape[1] >> SHIFT):
        _refresh_above_leaves(leaves, nodes, block)
    for level in range(1, levels.size):
        for place in range((levels[level] - levels[level - 1]) >> SHIFT):
            _refresh_above_nodes(nodes, (levels[level - 1] >> SHIFT) + place, levels[level] + place)


@njit(cache=True, error_model="numpy")
def set_replacing_mass(leaves: Floats, nodes: Floats, levels: Levels, slot: int, mass: float) -> None:
    """Overwrite only the replacing mass: a slot of mass zero is not sampled until its mass is restored."""
    leaves[REPLACING, slot] = mass
    _refresh_ancestors(leaves, nodes, levels, slot)


@njit(cache=True, error_model="numpy")
def sample_into(slots: Slots, targets: Floats, leaves: Floats, nodes: Floats, levels: Levels, mass: int) -> None:
    """Sample slots by mass, SAMPLING or REPLACING, one from each of as many equal slices; `slots` is overwritten.

    `targets` contains uniform numbers in [0, 1), one per slice of the total mass, and is overwritten. A target falls on
    the leaf whose interval [mass of all leaves before it, that + its own mass) contains it. All targets descend
    together, level by level, so that memory accesses overlap.
    """
    before, masses = nodes[BEFORE + mass], leaves[mass]
    total = nodes[mass, levels[-1]]
    for i in range(slots.size):
        targets[i] = (i + targets[i]) / slots.size * total
        slots[i] = 0
    for level in range(levels.size - 2, -1, -1):
        first = levels[level] >> SHIFT
        for i in range(slots.size):
            child, targets[i] = step_down(before, first + slots[i], targets[i])
            slots[i] = slots[i] * FANOUT + child
    for i in range(slots.size):
        fetch_ahead(masses, slots[i])
    for i in range(slots.size):
        slots[i] = slots[i] * FANOUT + step_to_leaf(masses, slots[i], targets[i])


@njit(cache=True, error_model="numpy")
def sample_with_weights(
    slots: Slots,
    weights: NDArray[np.float32],
    uniforms: Floats,
    leaves: Floats,
    nodes: Floats,
    levels: Levels,
    alpha: float,
    beta: float,
) -> None:
    """Sample slots by p ** alpha, with weights (N P(i)) ** -beta divided by the maximum such weight over ALL slots.

    N and the total mass cancel out, which leaves (minimum mass / mass) ** beta. `slots` and `weights` are overwritten,
    because filling given arrays is faster than allocating them in compiled code.
    """
    sample_into(slots, uniforms.copy(), leaves, nodes, levels, SAMPLING)
    least_mass = nodes[LEAST, levels[-1]] ** alpha
    for i in range(slots.size):
        weights[i] = (least_mass / leaves[SAMPLING, slots[i]]) ** beta


@njit(cache=True, error_model="numpy")
def sample_to_replace(leaves: Floats, nodes: Floats, levels: Levels, uniforms: Floats) -> Slots:
    """Sample slots by p ** -gamma, with possible repetitions."""
    slots = np.empty(uniforms.size, dtype=np.int64)
    sample_into(slots, uniforms.copy(), leaves, nodes, levels, REPLACING)
    return slots


def _is_blank(numbers: Floats, least: int) -> bool:
    """Whether these leaves or nodes are empty: row `least` is infinite, all others are zero."""
    return bool(np.isposinf(numbers[least]).all() and not np.delete(numbers, least, axis=0).any())


class PriorityTrees:
    """The four trees with the exponents that their leaves were built for."""

    def __init__(self, capacity: int, alpha: float, gamma: float) -> None:
        self.alpha = alpha
        self.gamma = gamma
        self.capacity = capacity
        self.arrays = empty_trees(capacity)

    @property
    def priorities(self) -> Floats:
        """Priority of each slot, infinite if nothing is stored; a view that must not be modified."""
        return self.arrays.leaves[PRIORITY, : self.capacity]

    @property
    def greatest(self) -> float:
        """The maximum stored priority; 0 if nothing is stored."""
        return float(self.arrays.nodes[GREATEST, self.arrays.levels[-1]])

    def set(self, slots: Slots, priorities: Floats) -> None:
        """Set the priorities of many slots; if a slot is repeated, the last value counts."""
        set_priorities(*self.arrays, slots, priorities, self.alpha, self.gamma)

    def clear(self, slots: Slots) -> None:
        """Empty these slots: they are not sampled, and count neither as least nor as greatest priority."""
        leaves = self.arrays.leaves
        leaves[SAMPLING, slots] = leaves[REPLACING, slots] = 0.0
        leaves[PRIORITY, slots] = np.inf
        refresh_all_ancestors(*self.arrays, slots)

    def rebuild(self, alpha: float, gamma: float) -> None:
        """Recompute everything from the priorities, for new exponents."""
        self.alpha, self.gamma = alpha, gamma
        rebuild(*self.arrays, alpha, gamma)

    def load(self, slots: Slots, priorities: Floats, alpha: float, gamma: float) -> None:
        """Fill empty trees with these priorities."""
        self.arrays.leaves[PRIORITY, slots] = priorities
        self.rebuild(alpha, gamma)

    def sample(self, uniforms: Floats, beta: float) -> tuple[Slots, NDArray[np.float32]]:
        """Sample slots by p ** alpha, one per uniform number; return them and their importance weights."""
        slots = np.empty(uniforms.size, dtype=np.int64)
        weights = np.empty(uniforms.size, dtype=np.float32)
        sample_with_weights(slots, weights, uniforms, *self.arrays, self.alpha, beta)
        return slots, weights

    def sample_distinct_to_replace(self, count: int, rng: np.random.Generator) -> Slots:
        """Sample `count` distinct slots by p ** -gamma; all slots with mass if there are fewer.

        Slots already sampled get mass zero for the next attempt: this is equivalent to rejecting repeated slots, but
        always terminates.
        """
        leaves, nodes, levels = self.arrays
        held: dict[int, float] = {}
        while len(held) < count and nodes[REPLACING, levels[-1]] > 0.0:
            for slot in sample_to_replace(leaves, nodes, levels, rng.random(count - len(held))).tolist():
                held.setdefault(slot, float(leaves[REPLACING, slot]))
            for slot in held:
                set_replacing_mass(leaves, nodes, levels, slot, 0.0)
        for slot, mass in held.items():
            set_replacing_mass(leaves, nodes, levels, slot, mass)
        return np.array(list(held), dtype=np.int64)

    def check_valid(self, stored: Slots) -> tuple[bool, str]:
        """Return whether leaves match their priorities and nodes their children, and what is wrong if not.

        `stored` are the filled slots; all others must be empty.
        """
        leaves = self.arrays.leaves
        priorities = self.priorities[stored]
        if not (np.isfinite(priorities).all() and (priorities > 0).all()):
            return False, "a stored priority is not finite and positive"
        if not _is_blank(np.delete(leaves, stored, axis=1), PRIORITY):
            return False, "an empty slot has a priority or a mass"
        for row, exponent in ((SAMPLING, self.alpha), (REPLACING, -self.gamma)):
            if not np.allclose(leaves[row, stored], priorities**exponent, rtol=1e-12, atol=0.0):
                return False, f"a leaf of row {row} is not its priority to the power of {exponent}"
        return self._check_nodes()

    def _check_nodes(self) -> tuple[bool, str]:
        leaves, nodes, levels = self.arrays
        stored = np.where(np.isinf(leaves[PRIORITY]), 0.0, leaves[PRIORITY])
        children = np.stack((leaves[SAMPLING], leaves[REPLACING], leaves[PRIORITY], stored))
        for start, end in zip(levels, [*levels[1:], nodes.shape[1]], strict=True):
            level = nodes[:, start:end]
            valid, reason = _check_level(level, children.reshape(BEFORE, -1, FANOUT))
            if not valid:
                return False, reason
            children = level[:BEFORE]
        return True, ""


def _check_level(level: Floats, children: Floats) -> tuple[bool, str]:
    """Return whether the nodes of a level match the blocks of children below, and what is wrong if not."""
    parents, padding = np.split(level, [children.shape[1]], axis=1)
    if not _is_blank(padding[:BEFORE], LEAST):
        return False, "a node without children has a priority or a mass"
    expected = {
        SAMPLING: np.cumsum(children[SAMPLING], axis=1)[:, -1],
        REPLACING: np.cumsum(children[REPLACING], axis=1)[:, -1],
        LEAST: children[LEAST].min(axis=1),
        GREATEST: children[GREATEST].max(axis=1),
    }
    for row, value in expected.items():
        if not np.array_equal(parents[row], value):
            return False, f"a parent of row {row} does not follow from its children"
    for row in (SAMPLING, REPLACING):
        running = np.cumsum(level[row].reshape(-1, FANOUT), axis=1)
        before = np.where(running < running[:, -1:], running, np.inf)[:, :-1]
        found = level[BEFORE + row].reshape(-1, FANOUT)
        if found[:, 0].any() or not np.array_equal(found[:, 1:], before):
            return False, f"row {BEFORE + row} is not the mass of the siblings before"
    return True, ""
