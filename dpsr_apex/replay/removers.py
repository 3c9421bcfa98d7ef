"""Removers: which stored transition a new one replaces when the replay is full.

A remover chooses a slot for each new transition and writes it there, one after the other, so that a later one may
replace an earlier one. A new remover is a class in this module and an entry in `REMOVERS`.
"""

from __future__ import annotations

from typing import Final, Protocol

import numpy as np

from dpsr_apex.config import ReplayConfig
from dpsr_apex.replay.records import Arrivals, Floats
from dpsr_apex.replay.slots import SlotIndex, replace_by_priority, replace_oldest, write_ring
from dpsr_apex.replay.trees import Slots


class Remover(Protocol):
    """Replaces stored transitions with new ones when no slot is empty, or uses the slots as a ring buffer."""

    is_ring: bool  # whether slots are used in turn, including the empty ones

    def __init__(self, config: ReplayConfig, index: SlotIndex, /) -> None: ...

    def replace(self, arrivals: Arrivals, rng: np.random.Generator, /) -> tuple[Slots, Floats]:
        """Overwrite a slot with each arrival; return the slots and the priorities that were replaced.

        The priority of an empty slot, which only a ring buffer may overwrite, is infinite.
        """


class Oldest:
    """The oldest transition is replaced."""

    def __init__(self, config: ReplayConfig, index: SlotIndex) -> None:
        self._index = index
        self.is_ring = not config.recycles  # then serial numbers count insertions

    def replace(self, arrivals: Arrivals, _rng: np.random.Generator) -> tuple[Slots, Floats]:
        """Use the slots in order of age, the oldest first; a slot that was emptied is filled in its turn."""
        index = self._index
        if self.is_ring:
            return write_ring(*index.arrays, arrivals.serials, arrivals.priorities, *index.exponents)
        return replace_oldest(*index.arrays, arrivals.serials, arrivals.priorities, *index.exponents)


class OldestOfCandidates:
    """C_c candidates are sampled by p ** -gamma, and the oldest of them is replaced."""

    is_ring = False

    def __init__(self, config: ReplayConfig, index: SlotIndex) -> None:
        self._index = index
        self._candidates = config.replace_candidates

    def replace(self, arrivals: Arrivals, rng: np.random.Generator) -> tuple[Slots, Floats]:
        """Sample new candidates for each arrival."""
        index = self._index
        uniforms = rng.random((len(arrivals.transitions), self._candidates))
        return replace_by_priority(*index.arrays, arrivals.serials, arrivals.priorities, uniforms, *index.exponents)


REMOVERS: Final[dict[str, type[Remover]]] = {
    "oldest": Oldest,
    "priority": OldestOfCandidates,
}
