"""A survey of a replay at one clock t: all numbers of every stored transition, without its frames and its snapshot."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from dpsr_apex.replay.records import Integers

LEAST_PRIORITY, GREATEST_PRIORITY = 1e-37, 1e37  # smaller and larger ones are clipped: they are float32 here
GOLDEN_RATIO: Final = (5**0.5 - 1) / 2


class Survey(NamedTuple):
    """Row i of every column is one stored transition, in the order of their slots."""

    t: int
    capacity: int
    stored: int  # transitions in the replay: more than there are rows if it was subsampled
    identities: Integers
    births: Integers
    priorities: NDArray[np.float32]
    gains: NDArray[np.float32]  # of recycled transitions; NaN for all others
    depths: NDArray[np.int32]
    recycles: NDArray[np.int32]
    actions: NDArray[np.int32]
    rewards: NDArray[np.float32]
    terminals: NDArray[np.bool_]
    positions: NDArray[np.uint32]  # environment steps since the start of the episode

    @property
    def rows(self) -> int:
        """The number of transitions in the survey."""
        return len(self.identities)


class _Source(NamedTuple):
    column: str  # of the replay
    dtype: DTypeLike  # in the survey


_SOURCES: Final = {
    "identities": _Source("identities", np.int64),
    "births": _Source("births", np.int64),
    "priorities": _Source("priorities", np.float32),
    "gains": _Source("gains", np.float32),
    "depths": _Source("depths", np.int32),
    "recycles": _Source("recycles", np.int32),
    "actions": _Source("a_tm1", np.int32),
    "rewards": _Source("r_t", np.float32),
    "terminals": _Source("terminal", np.bool_),
    "positions": _Source("episode_steps", np.uint32),
}


def survey_of(t: int, capacity: int, filled: Integers, columns: Mapping[str, NDArray[Any]], most: int) -> Survey:
    """Return the survey of a replay in which these slots are filled, given its columns by name, as copies.

    More than `most` transitions are subsampled, spread over the slots. A column that the replay of an earlier version
    lacks is 0.
    """
    spread = filled[spread_over(filled.size, most)]
    surveyed = {}
    for name, (column, dtype) in _SOURCES.items():
        found = columns[column][spread] if column in columns else np.zeros(spread.size)
        if name == "priorities":
            found = np.clip(found, LEAST_PRIORITY, GREATEST_PRIORITY)
        surveyed[name] = np.array(found, dtype)
    return Survey(t, capacity, filled.size, **surveyed)


def spread_over(count: int, most: int) -> Integers:
    """Return at most `most` of the rows 0 to count - 1, in order: all, or one from each of `most` equal parts.

    Its place in its part follows multiples of the golden ratio modulo 1, which are spread evenly, so that rows which
    recur with a period, such as those of the environments that an actor steps in turn, are chosen equally often.
    """
    if count <= most:
        return np.arange(count)
    edges = np.arange(most + 1) * count // most
    places = np.arange(most) * GOLDEN_RATIO % 1
    return edges[:-1] + (places * np.diff(edges)).astype(np.int64)
