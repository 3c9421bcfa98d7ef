"""The steps down a tree, beside the same in plain Python, in a block that is not the first of its array."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import njit
from numpy.typing import NDArray

from dpsr_apex.replay.siblings import FANOUT, fetch_ahead, step_down, step_to_leaf

MASSES = st.lists(st.sampled_from([0.0, 1e-300, 2.0**-60, 0.1, 1.0, 3.0, 1e250]), min_size=FANOUT, max_size=FANOUT)


@njit(cache=False)
def down(before: NDArray[np.float64], block: int, target: float) -> tuple[int, float]:
    return step_down(before, block, target)


@njit(cache=False)
def to_leaf(masses: NDArray[np.float64], block: int, target: float) -> int:
    fetch_ahead(masses, block)
    return step_to_leaf(masses, block, target)


def in_third_block(numbers: list[float]) -> NDArray[np.float64]:
    return np.concatenate((np.full(2 * FANOUT, -1.0), numbers))


@pytest.mark.parametrize(
    ("target", "expected"),
    [(0.0, (0, 0.0)), (0.5, (0, 0.5)), (1.0, (2, 0.0)), (2.5, (2, 1.5)), (3.0, (3, 0.0)), (1e300, (3, 1e300 - 3.0))],
)
def test_a_step_down_ends_at_the_last_sibling_that_begins_at_or_before_the_target(
    target: float, expected: tuple[int, float]
) -> None:
    before = in_third_block([0.0, 1.0, 1.0, 3.0, np.inf, np.inf, np.inf, np.inf])
    assert down(before, 2, target) == expected


@settings(max_examples=300, deadline=None, derandomize=True, database=None)
@given(masses=MASSES, share=st.sampled_from([0.0, 0.3, 0.5, 1 - 2.0**-53, 1.0, 1.5]))
def test_a_step_to_a_leaf_never_ends_at_one_without_mass(masses: list[float], share: float) -> None:
    ends = np.cumsum(masses)
    if ends[-1] == 0.0:
        return
    target = share * float(ends[-1])
    leaf = to_leaf(in_third_block(masses), 2, target)
    assert masses[leaf] > 0.0
    if target < ends[-1]:
        assert leaf == np.searchsorted(ends, target, side="right")
    else:  # rounding has pushed it to the end, or beyond
        assert leaf == np.searchsorted(ends, ends[-1], side="left")
