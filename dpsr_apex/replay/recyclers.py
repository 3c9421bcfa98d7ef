"""Recyclers: when a recycling round opens, and which stored states it re-enters.

The replay runs the rounds that a recycler opens: it collects the results, writes them into the candidates' slots and
counts them, whichever recycler chose the candidates. A new recycler is a class in this module and an entry in
`RECYCLERS`.
"""

from __future__ import annotations

from typing import Final, Protocol

import numpy as np

from dpsr_apex.config import ReplayConfig
from dpsr_apex.replay.slots import SlotIndex
from dpsr_apex.replay.trees import Slots

NEVER: Final = int(np.iinfo(np.int64).max)  # insertions before a round: more than any run has


class Recycler(Protocol):
    """Opens recycling rounds in a full replay, and chooses their candidates."""

    def __init__(self, config: ReplayConfig, index: SlotIndex, /) -> None: ...

    def insertions_before_round(self, t: int, until_full: int, /) -> int:
        """Return the number of insertions, after the first `t`, before the next one that opens a round.

        It is at least `until_full`, the number of slots that are still empty.
        """

    def candidates(self, rng: np.random.Generator, /) -> Slots:
        """Return the slots of a new round's candidates: at least one, all different; the replay is full."""


class NoRecycling:
    """No state is re-entered."""

    def __init__(self, _config: ReplayConfig, _index: SlotIndex) -> None: ...

    def insertions_before_round(self, _t: int, _until_full: int) -> int:
        """Return `NEVER`."""
        return NEVER

    def candidates(self, _rng: np.random.Generator) -> Slots:
        """Return no slots; there is no round to choose them for."""
        return np.empty(0, dtype=np.int64)


class Periodic:
    """Rounds at every multiple of F_r; base class of recyclers that differ in the choice of candidates."""

    def __init__(self, config: ReplayConfig, index: SlotIndex) -> None:
        self._index = index
        self._period = config.recycle_period
        self._count = config.recycle_candidates

    def insertions_before_round(self, t: int, until_full: int) -> int:
        """Return the number of insertions before t is a multiple of F_r, in a replay that is full by then."""
        return until_full + -(t + 1 + until_full) % self._period


class LowPriority(Periodic):
    """Every F_r transitions, the states of C_r candidates sampled by p ** -gamma are re-entered, as in the paper."""

    def candidates(self, rng: np.random.Generator) -> Slots:
        """Sample until C_r different slots are found, or all slots."""
        return self._index.trees.sample_distinct_to_replace(self._count, rng)


RECYCLERS: Final[dict[str, type[Recycler]]] = {
    "none": NoRecycling,
    "low_priority": LowPriority,
}
