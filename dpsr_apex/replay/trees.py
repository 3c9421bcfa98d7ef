"""The four trees over one set of slots: masses to sample and to replace by, least and greatest priority.

Each tree has eight children a node, so a million slots are seven levels deep and the children of a node fill one cache
line. The two trees of masses also keep, beside every child, the mass of its elder siblings: a draw then finds its child
by seven comparisons without adding anything up. Parents are always recomputed from their children, never adjusted by a
difference, so nothing drifts.

Slots and numbers only: what a slot holds, and what its priority means, is not known here.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

FANOUT = 8

# Rows of the node array. Every row has the same layout: all leaves, then level after level up to the root.
SAMPLING = 0  # p ** alpha
REPLACING = 1  # p ** -gamma
LEAST = 2  # p; infinite where nothing is stored
GREATEST = 3  # p; zero where nothing is stored
SAMPLING_BEFORE = 4  # sampling mass of the elder siblings; infinite where no mass follows
REPLACING_BEFORE = 5
ROWS = 6

Nodes = NDArray[np.float64]
Slots = NDArray[np.int64]


def tree_levels(capacity: int) -> NDArray[np.int64]:
    """Where each level begins in a row, the leaves first and the root last."""
    starts = [0]
    width = capacity
    while width > 1 or len(starts) == 1:
        starts.append(starts[-1] + -(-width // FANOUT) * FANOUT)
        width = -(-width // FANOUT)
    return np.array(starts, dtype=np.int64)


def empty_nodes(levels: NDArray[np.int64]) -> Nodes:
    """Trees with nothing stored, laid out so that the children of a node share one cache line."""
    width = int(levels[-1]) + FANOUT
    raw = np.zeros(ROWS * width + FANOUT)
    shift = -(raw.ctypes.data // raw.itemsize) % FANOUT
    nodes = raw[shift : shift + ROWS * width].reshape(ROWS, width)
    nodes[LEAST] = np.inf
    nodes[SAMPLING_BEFORE:] = np.inf
    nodes[SAMPLING_BEFORE:, ::FANOUT] = 0.0
    return nodes


@njit(cache=True)
def _prefix_masses(nodes: Nodes, mass: int, before: int, block: int) -> float:
    """Rewrite the elder siblings' masses of one block of children; their sum is returned."""
    total = 0.0
    for child in range(block, block + FANOUT):
        nodes[before, child] = total
        total += nodes[mass, child]
    # A target that rounding has pushed to the very end must still fall on the last child that has any mass.
    child = block + FANOUT - 1
    while child > block and nodes[mass, child] == 0.0:
        nodes[before, child] = np.inf
        child -= 1
    return total


@njit(cache=True)
def _refresh_parent(nodes: Nodes, block: int, parent: int) -> None:
    least, greatest = np.inf, 0.0
    for child in range(block, block + FANOUT):
        least = min(least, nodes[LEAST, child])
        greatest = max(greatest, nodes[GREATEST, child])
    nodes[LEAST, parent] = least
    nodes[GREATEST, parent] = greatest
    nodes[SAMPLING, parent] = _prefix_masses(nodes, SAMPLING, SAMPLING_BEFORE, block)
    nodes[REPLACING, parent] = _prefix_masses(nodes, REPLACING, REPLACING_BEFORE, block)


@njit(cache=True)
def _refresh_ancestors(nodes: Nodes, levels: NDArray[np.int64], slot: int) -> None:
    node = slot
    for level in range(levels.size - 1):
        node //= FANOUT
        _refresh_parent(nodes, levels[level] + node * FANOUT, levels[level + 1] + node)


@njit(cache=True)
def refresh_all_ancestors(nodes: Nodes, levels: NDArray[np.int64], slots: Slots) -> None:
    """Recompute what lies above many slots, level by level, so that their waits for memory overlap.

    A parent that neighbours in `slots` share is refreshed once.
    """
    touched = slots.copy()
    count = touched.size
    for level in range(levels.size - 1):
        kept = 0
        for i in range(count):
            node = touched[i] // FANOUT
            if kept == 0 or touched[kept - 1] != node:
                _refresh_parent(nodes, levels[level] + node * FANOUT, levels[level + 1] + node)
                touched[kept] = node
                kept += 1
        count = kept


@njit(cache=True)
def write_leaf(nodes: Nodes, slot: int, priority: float, alpha: float, gamma: float) -> None:
    """Give one slot a priority in its leaves alone; its ancestors must be refreshed before anything is drawn."""
    nodes[SAMPLING, slot] = priority**alpha
    nodes[REPLACING, slot] = priority**-gamma
    nodes[LEAST, slot] = priority
    nodes[GREATEST, slot] = priority


@njit(cache=True)
def set_priority(
    nodes: Nodes, levels: NDArray[np.int64], slot: int, priority: float, alpha: float, gamma: float
) -> None:
    """Give one slot a priority, in all trees."""
    write_leaf(nodes, slot, priority, alpha, gamma)
    _refresh_ancestors(nodes, levels, slot)


@njit(cache=True)
def set_priorities(
    nodes: Nodes, levels: NDArray[np.int64], slots: Slots, priorities: NDArray[np.float64], alpha: float, gamma: float
) -> None:
    """Give many slots their priorities; of a slot named twice the last one counts."""
    for i in range(slots.size):
        write_leaf(nodes, slots[i], priorities[i], alpha, gamma)
    refresh_all_ancestors(nodes, levels, slots)


@njit(cache=True)
def rebuild(nodes: Nodes, levels: NDArray[np.int64], size: int, alpha: float, gamma: float) -> None:
    """Make all leaves and nodes anew from the priorities of the first `size` slots, for these exponents."""
    for slot in range(size):
        write_leaf(nodes, slot, nodes[LEAST, slot], alpha, gamma)
    for level in range(levels.size - 1):
        for block in range(levels[level], levels[level + 1], FANOUT):
            _refresh_parent(nodes, block, levels[level + 1] + (block - levels[level]) // FANOUT)


@njit(cache=True)
def set_replacing_mass(nodes: Nodes, levels: NDArray[np.int64], slot: int, mass: float) -> None:
    """Overwrite the replacing mass alone: zero keeps a slot out of further draws until it is put back."""
    nodes[REPLACING, slot] = mass
    _refresh_ancestors(nodes, levels, slot)


@njit(cache=True)
def draw_into(
    slots: Slots, targets: NDArray[np.float64], nodes: Nodes, levels: NDArray[np.int64], mass: int, before: int
) -> None:
    """Stratified draw by mass: `slots` is overwritten with the drawn slots.

    `targets` comes in as uniform numbers in [0, 1), one for each of the equal slices of the total mass, and is used up.
    A target falls on the leaf whose interval [mass of all leaves before it, that + its own mass) holds it.
    All draws go down together, level by level, so that their waits for memory overlap.
    """
    total = nodes[mass, levels[-1]]
    for i in range(slots.size):
        targets[i] = (i + targets[i]) / slots.size * total
        slots[i] = 0
    for level in range(levels.size - 2, -1, -1):
        for i in range(slots.size):
            block = levels[level] + slots[i] * FANOUT
            child = 0
            for sibling in range(1, FANOUT):
                child += nodes[before, block + sibling] <= targets[i]
            targets[i] -= nodes[before, block + child]
            slots[i] = slots[i] * FANOUT + child


@njit(cache=True)
def draw_to_sample(
    nodes: Nodes, levels: NDArray[np.int64], uniforms: NDArray[np.float64], alpha: float, beta: float
) -> tuple[Slots, NDArray[np.float32]]:
    """Slots drawn by p ** alpha, and the weight of each: (N P(i)) ** -beta over the greatest such weight of ALL slots.

    N and the total mass cancel out: what is left is (least mass / mass) ** beta.
    """
    slots = np.empty(uniforms.size, dtype=np.int64)
    weights = np.empty(uniforms.size, dtype=np.float32)
    draw_into(slots, uniforms.copy(), nodes, levels, SAMPLING, SAMPLING_BEFORE)
    least_mass = nodes[LEAST, levels[-1]] ** alpha
    for i in range(slots.size):
        weights[i] = (least_mass / nodes[SAMPLING, slots[i]]) ** beta
    return slots, weights


@njit(cache=True)
def draw_to_replace(nodes: Nodes, levels: NDArray[np.int64], uniforms: NDArray[np.float64]) -> Slots:
    """Slots drawn by p ** -gamma; one may come up more than once."""
    slots = np.empty(uniforms.size, dtype=np.int64)
    draw_into(slots, uniforms.copy(), nodes, levels, REPLACING, REPLACING_BEFORE)
    return slots


def _is_blank(nodes: Nodes) -> bool:
    """Whether nothing is stored at or below these nodes."""
    return bool(np.isposinf(nodes[LEAST]).all() and not nodes[[SAMPLING, REPLACING, GREATEST]].any())


class PriorityTrees:
    """The four trees with the exponents that their leaves were built for."""

    def __init__(self, capacity: int, alpha: float, gamma: float) -> None:
        self.alpha = alpha
        self.gamma = gamma
        self.levels = tree_levels(capacity)
        self.nodes = empty_nodes(self.levels)
        self._capacity = capacity

    @property
    def priorities(self) -> NDArray[np.float64]:
        """The priority of each slot, infinite where nothing is stored; a view, not to be written."""
        return self.nodes[LEAST, : self._capacity]

    @property
    def greatest(self) -> float:
        """The greatest priority stored, 0 when nothing is."""
        return float(self.nodes[GREATEST, self.levels[-1]])

    def set(self, slots: Slots, priorities: NDArray[np.float64]) -> None:
        """Give many slots their priorities; of a slot named twice the last one counts."""
        set_priorities(self.nodes, self.levels, slots, priorities, self.alpha, self.gamma)

    def rebuild(self, size: int, alpha: float, gamma: float) -> None:
        """Make everything anew from the priorities of the first `size` slots, for new exponents."""
        self.alpha, self.gamma = alpha, gamma
        rebuild(self.nodes, self.levels, size, alpha, gamma)

    def load(self, priorities: NDArray[np.float64], alpha: float, gamma: float) -> None:
        """Hold these priorities in the first slots, and nothing else."""
        self.nodes[LEAST, : priorities.size] = priorities
        self.rebuild(priorities.size, alpha, gamma)

    def draw_to_sample(self, uniforms: NDArray[np.float64], beta: float) -> tuple[Slots, NDArray[np.float32]]:
        """Slots drawn by p ** alpha and their importance weights."""
        slots, weights = draw_to_sample(self.nodes, self.levels, uniforms, self.alpha, beta)
        return slots, weights

    def draw_distinct_to_replace(self, count: int, rng: np.random.Generator) -> Slots:
        """`count` different slots by p ** -gamma; all that have mass when there are fewer.

        What is drawn already is kept out of the next draw, which is the same as drawing again whenever a slot comes up
        twice, but cannot go on forever.
        """
        held: dict[int, float] = {}
        while len(held) < count and self.nodes[REPLACING, self.levels[-1]] > 0.0:
            for slot in draw_to_replace(self.nodes, self.levels, rng.random(count - len(held))).tolist():
                held.setdefault(slot, float(self.nodes[REPLACING, slot]))
            for slot in held:
                set_replacing_mass(self.nodes, self.levels, slot, 0.0)
        for slot, mass in held.items():
            set_replacing_mass(self.nodes, self.levels, slot, mass)
        return np.array(list(held), dtype=np.int64)

    def check_valid(self, size: int) -> tuple[bool, str]:
        """Whether every leaf follows from its priority and every node from its children, with what is wrong if not."""
        priorities = self.priorities
        if not (np.isfinite(priorities[:size]).all() and (priorities[:size] > 0).all()):
            return False, "a stored priority is not finite and positive"
        if not _is_blank(self.nodes[:, size : self.levels[1]]):
            return False, "an empty slot has a priority or a mass"
        if not np.array_equal(self.nodes[GREATEST, :size], priorities[:size]):
            return False, "the trees of least and greatest priority have different leaves"
        for row, exponent in ((SAMPLING, self.alpha), (REPLACING, -self.gamma)):
            if not np.allclose(self.nodes[row, :size], priorities[:size] ** exponent, rtol=1e-12, atol=0.0):
                return False, f"a leaf of row {row} is not its priority to the power of {exponent}"
        return self._check_parents()

    def _check_parents(self) -> tuple[bool, str]:
        for below, above in zip(self.levels[:-1], self.levels[1:], strict=True):
            children = self.nodes[:, below:above].reshape(ROWS, -1, FANOUT)
            parents = self.nodes[:, above : above + children.shape[1]]
            width = above + -(-children.shape[1] // FANOUT) * FANOUT
            if not _is_blank(self.nodes[:, above + children.shape[1] : width]):
                return False, "a node without children has a priority or a mass"
            running = np.cumsum(children, axis=2)
            expected = {
                SAMPLING: running[SAMPLING, :, -1],
                REPLACING: running[REPLACING, :, -1],
                LEAST: children[LEAST].min(axis=1),
                GREATEST: children[GREATEST].max(axis=1),
            }
            for row, value in expected.items():
                if not np.array_equal(parents[row], value):
                    return False, f"a parent of row {row} does not follow from its children"
            for row, before in ((SAMPLING, SAMPLING_BEFORE), (REPLACING, REPLACING_BEFORE)):
                elders = np.zeros_like(children[row])
                elders[:, 1:] = running[row, :, :-1]
                no_mass_left = np.cumsum(children[row, :, ::-1], axis=1)[:, ::-1] == 0.0
                no_mass_left[:, 0] = False
                if not np.array_equal(children[before], np.where(no_mass_left, np.inf, elders)):
                    return False, f"row {before} is not the mass of the elder siblings"
        return True, ""
