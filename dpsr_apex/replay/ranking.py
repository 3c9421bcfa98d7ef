"""Rank-based sampling: all slots are always kept exactly sorted by priority.

P(i) is proportional to (1 / rank(i)) ** alpha, so the mass of a rank never changes, only the slot that has it. When a
priority changes, its slot is moved to its new position by shifting the slots in between.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray


@njit(cache=True)
def _place(order: NDArray[np.int64], size: int, priorities: NDArray[np.float64], slot: int, priority: float) -> int:
    """Return the position of (priority, slot) among the first `size`: higher priorities first, then lower slots."""
    low, high = 0, size
    while low < high:
        middle = (low + high) // 2
        other = order[middle]
        if priorities[other] > priority or (priorities[other] == priority and other < slot):
            low = middle + 1
        else:
            high = middle
    return low


@njit(cache=True)
def _set_ranked(
    order: NDArray[np.int64],
    size: int,
    priorities: NDArray[np.float64],
    slots: NDArray[np.int64],
    new_priorities: NDArray[np.float64],
) -> int:
    """Move each slot to the position of its new priority, or out of the order if that is infinite.

    Return the new size.
    """
    for i in range(slots.size):
        slot, priority = slots[i], new_priorities[i]
        if not np.isnan(priorities[slot]):
            size -= 1
            for position in range(_place(order, size + 1, priorities, slot, priorities[slot]), size):
                order[position] = order[position + 1]
        priorities[slot] = priority if priority < np.inf else np.nan
        if priority < np.inf:
            place = _place(order, size, priorities, slot, priority)
            for position in range(size, place, -1):
                order[position] = order[position - 1]
            order[place] = slot
            size += 1
    return size


def _ranked(priorities: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return the slots with a priority, sorted as in `_place`: higher priorities first, then lower slots."""
    stored = np.flatnonzero(np.isfinite(priorities))
    return stored[np.argsort(-priorities[stored], kind="stable")]


def _masses_up_to(count: int, alpha: float) -> NDArray[np.float64]:
    """Return the cumulative masses of the ranks."""
    return np.cumsum(np.arange(1, count + 1, dtype=np.float64) ** -alpha)


class Ranking:
    """The order of all filled slots by priority, from which slots are sampled by rank.

    An infinite priority stands for an empty slot, as in the trees.
    """

    def __init__(self, capacity: int, alpha: float) -> None:
        self.size = 0
        self.order = np.zeros(capacity, dtype=np.int64)  # the slot of each rank, the highest priority first
        self._priorities = np.full(capacity, np.nan)
        self.rebuild(alpha)

    def rebuild(self, alpha: float) -> None:
        """Set a new exponent."""
        self.alpha = alpha
        self._mass_up_to = _masses_up_to(self.order.size, alpha)

    def set(self, slots: NDArray[np.int64], priorities: NDArray[np.float64]) -> None:
        """Set the priorities of many slots; if a slot is repeated, the last value counts."""
        self.size = _set_ranked(self.order, self.size, self._priorities, slots, priorities)

    def load(self, priorities: NDArray[np.float64], alpha: float) -> None:
        """Replace all content with these priorities, one per slot."""
        ranked = _ranked(priorities)
        self.size = ranked.size
        self.order[: self.size] = ranked
        self._priorities[:] = np.where(np.isfinite(priorities), priorities, np.nan)
        self.rebuild(alpha)

    def sample(self, uniforms: NDArray[np.float64], beta: float) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Sample slots by rank, stratified; return them and their weights, divided by the maximum over all slots."""
        mass_up_to = self._mass_up_to[: self.size]
        targets = (np.arange(uniforms.size) + uniforms) / uniforms.size * mass_up_to[-1]
        positions = np.minimum(np.searchsorted(mass_up_to, targets, side="right"), self.size - 1)
        weights = ((positions + 1) / self.size) ** (self.alpha * beta)
        return self.order[positions], weights.astype(np.float32)

    def check_valid(self, priorities: NDArray[np.float64]) -> tuple[bool, str]:
        """Return whether the order matches `priorities` (one per slot), and what is wrong if not."""
        stored = np.isfinite(priorities)
        if not np.array_equal(np.sort(self.order[: self.size]), np.flatnonzero(stored)):
            return False, "the ranking does not hold every stored slot once"
        if not np.array_equal(self._priorities, np.where(stored, priorities, np.nan), equal_nan=True):
            return False, "the ranking holds other priorities than the trees"
        if not np.array_equal(self.order[: self.size], _ranked(priorities)):
            return False, "the ranking is not in the order of the priorities"
        if not np.array_equal(self._mass_up_to, _masses_up_to(self.order.size, self.alpha)):
            return False, "a rank has another mass than its exponent gives"
        return True, ""
