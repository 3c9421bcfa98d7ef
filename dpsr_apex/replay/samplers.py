"""Samplers: how the transitions of a batch are chosen, and their importance weights.

A sampler reads the priorities in the trees, which the replay keeps up to date for every method, and is notified of
changes. A new sampler is a class in this module and an entry in `SAMPLERS`.
"""

from __future__ import annotations

from typing import ClassVar, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from dpsr_apex.replay.ranking import Ranking
from dpsr_apex.replay.trees import Floats, PriorityTrees, Slots


class Sampler(Protocol):
    """Samples slots from a distribution over all of them."""

    by_priority: ClassVar[bool]  # False: alpha(t) is 0, regardless of `replay.sampling_exponent`

    def __init__(self, trees: PriorityTrees, /) -> None: ...

    def sample(self, uniforms: Floats, beta: float, /) -> tuple[Slots, NDArray[np.float32]]:
        """Sample one slot for each uniform number in [0, 1), one from each of as many equal slices of the total mass.

        Also return the importance weight of each: (N P(i)) ** -beta, divided by the maximum such weight over ALL slots.
        """

    def update(self, slots: Slots, /) -> None:
        """Follow a change of the priorities of these slots in the trees."""

    def rebuild(self) -> None:
        """Follow a load of the trees or a change of their exponent."""

    def check_valid(self) -> tuple[bool, str]:
        """Return whether this agrees with the trees, and what is wrong if not."""


class Proportional:
    """P(i) proportional to p ** alpha, sampled directly from the trees."""

    by_priority: ClassVar[bool] = True

    def __init__(self, trees: PriorityTrees) -> None:
        self.sample = trees.sample

    def update(self, _slots: Slots) -> None:
        """Do nothing: there is no state besides the trees."""

    def rebuild(self) -> None:
        """Do nothing: there is no state besides the trees."""

    def check_valid(self) -> tuple[bool, str]:
        """Return that everything is valid: there is no state besides the trees."""
        return True, ""


class Uniform(Proportional):
    """Every transition has the same probability: p ** 0."""

    by_priority = False


class Rank:
    """P(i) proportional to (1 / rank(i)) ** alpha; the highest priority has rank 1."""

    by_priority: ClassVar[bool] = True

    def __init__(self, trees: PriorityTrees) -> None:
        self.ranking = Ranking(trees.capacity, trees.alpha)
        self.sample = self.ranking.sample
        self._trees = trees

    def update(self, slots: Slots) -> None:
        """Move these slots to the ranks of their priorities, or out of the ranking if they are empty now."""
        self.ranking.set(slots, self._trees.priorities[slots])

    def rebuild(self) -> None:
        """Rank all slots from scratch."""
        self.ranking.load(self._trees.priorities, self._trees.alpha)

    def check_valid(self) -> tuple[bool, str]:
        """Return whether the ranks match the priorities in the trees, and what is wrong if not."""
        return self.ranking.check_valid(self._trees.priorities)


SAMPLERS: Final[dict[str, type[Sampler]]] = {
    "proportional": Proportional,
    "rank": Rank,
    "uniform": Uniform,
}
