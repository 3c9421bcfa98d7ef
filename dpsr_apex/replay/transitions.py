"""Transitions as they rest and travel: several at a time, column by column.

Observations and snapshots are opaque small bytes here; only `dpsr_apex.envs.compression` knows how to inflate them.
Consecutive transitions share their frames (s' of one is s of the next), so a stack is a tuple of references to
immutable bytes, and a frame goes by itself when the last transition that uses it is replaced.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Stack = tuple[bytes, ...]
"""One observation at rest: its squeezed frames, the oldest first."""


class Transitions(NamedTuple):
    """Row i of every column is one transition (s_tm1, a_tm1, r_t, s_t)."""

    s_tm1: list[Stack]
    a_tm1: NDArray[np.int64]
    r_t: NDArray[np.float32]  # for an n-step transition: the discounted sum of its n rewards
    s_t: list[Stack]
    terminal: NDArray[np.bool_]  # a time limit is not a terminal: the value of s_t still counts
    n_steps: NDArray[np.uint8]  # environment steps between s_tm1 and s_t
    snapshots: list[bytes]  # the environment's state at s_tm1, squeezed; empty where it cannot be re-entered

    @property
    def count(self) -> int:
        """How many transitions these are (`len` of a named tuple counts its columns)."""
        return len(self.s_tm1)

    def rows(self, start: int, stop: int) -> Transitions:
        """Transitions `start` to `stop` (exclusive) of these."""
        return Transitions(*(column[start:stop] for column in self))


def concatenate(parts: Iterable[Transitions]) -> Transitions:
    """All transitions of `parts`, in order; at least one part is needed."""
    columns = zip(*parts, strict=True)
    return Transitions(
        *(sum(column, []) if isinstance(column[0], list) else np.concatenate(column) for column in columns)
    )
