"""The trees at their edges: borders of intervals, empty slots, extreme masses; and what check_valid notices."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from dpsr_apex.replay.siblings import FANOUT
from dpsr_apex.replay.trees import (
    BEFORE,
    GREATEST,
    LEAST,
    PRIORITY,
    REPLACING,
    SAMPLING,
    PriorityTrees,
    sample_into,
    sample_to_replace,
    set_replacing_mass,
)
from tests.unit.replay.naive import stratified
from tests.unit.replay.twins import CAPACITIES

ALMOST_ONE = 1 - 2.0**-53
SIZES = st.sampled_from(CAPACITIES)


def grown(
    priorities: NDArray[np.float64], capacity: int | None = None, alpha: float = 1.0, gamma: float = 1.0
) -> PriorityTrees:
    """Trees that hold these priorities in their first slots, set one after the other."""
    trees = PriorityTrees(capacity or priorities.size, alpha, gamma)
    trees.set(np.arange(priorities.size), priorities)
    return trees


def slot_of(trees: PriorityTrees, share: float) -> int:
    """The slot that the target at this share of the sampling mass falls on."""
    slots = np.empty(1, dtype=np.int64)
    sample_into(slots, np.array([share]), *trees.arrays, SAMPLING)
    return int(slots[0])


def copies(trees: PriorityTrees) -> list[NDArray[np.float64]]:
    return [trees.arrays.leaves.copy(), trees.arrays.nodes.copy()]


def assert_same(found: list[NDArray[np.float64]], expected: list[NDArray[np.float64]]) -> None:
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)


def dyadic(rng: np.random.Generator, count: int) -> NDArray[np.float64]:
    """Priorities whose sums, and whose inverses' sums, are exact."""
    return np.exp2(rng.integers(-4, 5, count).astype(np.float64))


@pytest.mark.parametrize("capacity", CAPACITIES)
def test_every_border_belongs_to_the_slot_that_begins_there(capacity: int) -> None:
    """All sums are exact here, so a target on a border is on it to the bit, in the trees as in the oracle."""
    count = capacity
    priorities = dyadic(np.random.default_rng(capacity), count)
    priorities[-1] += 2.0 ** np.ceil(np.log2(priorities.sum())) - priorities.sum()  # total: a power of two
    trees = grown(priorities)
    total = float(priorities.sum())
    starts = np.cumsum(priorities) - priorities
    for slot, start in enumerate(starts.tolist()):
        assert slot_of(trees, start / total) == slot
        assert slot_of(trees, np.nextafter(start + priorities[slot], 0.0) / total) == slot
        assert slot_of(trees, (start + priorities[slot] / 2) / total) == slot


@pytest.mark.parametrize("count", [1, 2, 7, 8, 9, 63, 64, 65, 500])
def test_the_ends_of_the_mass_are_the_first_and_the_last_slot(count: int) -> None:
    trees = grown(np.full(count, 0.1), capacity=513)
    assert slot_of(trees, 0.0) == 0
    assert slot_of(trees, ALMOST_ONE) == count - 1
    assert slot_of(trees, 1.0) == count - 1  # what (i + u) / k can round to
    slots, _ = trees.sample(np.full(7, ALMOST_ONE), 0.4)
    assert slots.max() == count - 1


@settings(max_examples=150, deadline=None, derandomize=True, database=None)
@given(capacity=SIZES, seed=st.integers(0, 2**32 - 1), targets=st.integers(1, 40))
def test_samples_are_the_oracles_with_holes_anywhere(capacity: int, seed: int, targets: int) -> None:
    """Exact sums; slots without mass at the ends, inside, and in whole blocks."""
    rng = np.random.default_rng(seed)
    count = int(rng.integers(1, capacity + 1))
    trees = grown(dyadic(rng, count), capacity)
    share = rng.choice([0.1, 0.5, 0.95])
    holes = np.flatnonzero(rng.random(count) < share)
    start = int(rng.integers(count))
    holes = np.union1d(holes, np.arange(start, min(start + 2 * FANOUT, count)))
    for slot in holes[holes != rng.integers(count)].tolist():
        set_replacing_mass(*trees.arrays, slot, 0.0)
    masses = trees.arrays.leaves[REPLACING, :count].copy()
    if not masses.any():
        return
    uniforms = rng.choice([0.0, ALMOST_ONE, 0.5, 0.25, rng.random()], targets)
    slots = sample_to_replace(*trees.arrays, uniforms).tolist()
    assert slots == stratified(masses, uniforms)
    assert (masses[slots] > 0).all()


@pytest.mark.parametrize("alpha", [0.0, 0.6, 5.0])
@pytest.mark.parametrize("gamma", [0.0, 0.6, 5.0])
@pytest.mark.parametrize("capacity", CAPACITIES)
def test_extreme_priorities_never_lead_to_an_empty_slot(capacity: int, alpha: float, gamma: float) -> None:
    rng = np.random.default_rng(capacity)
    for count in {1, capacity // 2 + 1, capacity}:
        trees = grown(10.0 ** rng.uniform(-50, 50, count), capacity, alpha, gamma)
        assert trees.check_valid(np.arange(count)) == (True, "")
        for uniforms in (rng.random(64), np.zeros(64), np.full(64, ALMOST_ONE)):
            slots, weights = trees.sample(uniforms, 0.4)
            assert 0 <= slots.min() <= slots.max() < count
            assert np.isfinite(weights).all()
            assert weights.max() <= 1.0
            assert sample_to_replace(*trees.arrays, uniforms).max() < count
        distinct = trees.sample_distinct_to_replace(count, rng)
        assert sorted(distinct.tolist()) == list(range(count))


@pytest.mark.parametrize("capacity", CAPACITIES)
def test_distinct_samples_leave_the_trees_as_they_were(capacity: int) -> None:
    rng = np.random.default_rng(capacity)
    trees = grown(np.exp(rng.normal(size=capacity)))
    before = copies(trees)
    for count in (1, 2, capacity, capacity + 3):
        sampled = trees.sample_distinct_to_replace(count, rng).tolist()
        assert len(sampled) == len(set(sampled)) == min(count, capacity)
        assert_same(copies(trees), before)


def test_nothing_can_be_sampled_from_empty_trees() -> None:
    assert PriorityTrees(9, 1.0, 1.0).sample_distinct_to_replace(3, np.random.default_rng(0)).size == 0


@pytest.mark.parametrize("capacity", CAPACITIES)
def test_nothing_drifts_and_a_rebuild_changes_no_bit(capacity: int) -> None:
    rng = np.random.default_rng(capacity)
    trees = grown(np.exp(rng.normal(size=capacity)), alpha=0.6, gamma=0.3)
    trees.set(rng.integers(0, capacity, 100_000), 10.0 ** rng.uniform(-6, 6, 100_000))
    assert trees.check_valid(np.arange(capacity)) == (True, "")
    rebuilt = PriorityTrees(capacity, 0.1, 0.1)
    rebuilt.load(np.arange(capacity), trees.priorities, 0.6, 0.3)
    assert_same(copies(rebuilt), copies(trees))
    trees.rebuild(0.6, 0.3)
    assert_same(copies(rebuilt), copies(trees))


@pytest.mark.parametrize("capacity", CAPACITIES)
def test_trees_with_emptied_slots_are_those_that_never_had_them(capacity: int) -> None:
    rng = np.random.default_rng(capacity)
    priorities = np.exp(rng.normal(size=capacity))
    trees, fresh = grown(priorities, alpha=0.6, gamma=0.3), PriorityTrees(capacity, 0.6, 0.3)
    emptied = rng.permutation(capacity)[: (capacity + 1) // 2]
    stored = np.delete(np.arange(capacity), emptied)
    trees.clear(emptied)
    fresh.load(stored, priorities[stored], 0.6, 0.3)
    assert_same(copies(trees), copies(fresh))
    assert trees.check_valid(stored) == (True, "")
    trees.rebuild(0.6, 0.3)
    assert_same(copies(trees), copies(fresh))


def test_of_a_slot_named_twice_the_last_priority_counts() -> None:
    trees = grown(np.ones(9))
    trees.set(np.array([3, 5, 3]), np.array([2.0, 4.0, 8.0]))
    assert trees.priorities.tolist() == [1, 1, 1, 8, 1, 4, 1, 1, 1]
    assert trees.greatest == 8.0
    assert trees.arrays.nodes[LEAST, trees.arrays.levels[-1]] == 1.0


def test_least_and_greatest_of_empty_trees() -> None:
    trees = PriorityTrees(9, 1.0, 1.0)
    assert (trees.arrays.nodes[LEAST, trees.arrays.levels[-1]], trees.greatest) == (np.inf, 0.0)


def corruptible() -> PriorityTrees:
    """66 stored of 74, in 80 leaves; 10 parents of leaves in 16 nodes, 2 parents of those in 8, and the root."""
    trees = grown(np.arange(2.0, 68.0), capacity=74, alpha=0.6, gamma=0.4)
    assert trees.arrays.leaves.shape[1] == 80
    assert trees.arrays.levels.tolist() == [0, 16, 24]
    assert trees.check_valid(np.arange(66)) == (True, "")
    return trees


@pytest.mark.parametrize(
    ("row", "slot", "value", "reason"),
    [
        (PRIORITY, 3, -1.0, "a stored priority is not finite and positive"),
        (PRIORITY, 3, np.inf, "a stored priority is not finite and positive"),
        (PRIORITY, 70, 1.0, "an empty slot has a priority or a mass"),
        (SAMPLING, 70, 1.0, "an empty slot has a priority or a mass"),
        (REPLACING, 79, 1e-9, "an empty slot has a priority or a mass"),  # beyond the capacity: padding
        (PRIORITY, 3, 77.0, "a leaf of row 0 is not its priority to the power of 0.6"),
        (SAMPLING, 3, 1.01, "a leaf of row 0 is not its priority to the power of 0.6"),
        (REPLACING, 3, 1.01, "a leaf of row 1 is not its priority to the power of -0.4"),
    ],
)
def test_check_valid_notices_a_corrupted_leaf(row: int, slot: int, value: float, reason: str) -> None:
    trees = corruptible()
    trees.arrays.leaves[row, slot] = value
    assert trees.check_valid(np.arange(66)) == (False, reason)


@pytest.mark.parametrize(
    ("row", "node", "value", "reason"),
    [
        (SAMPLING, 11, 1.0, "a node without children has a priority or a mass"),  # padding of a level
        (LEAST, 11, 1.0, "a node without children has a priority or a mass"),
        (GREATEST, 31, 1.0, "a node without children has a priority or a mass"),  # beside the root
        (SAMPLING, 2, 1.0, "a parent of row 0 does not follow from its children"),
        (REPLACING, 16 + 1, 1.0, "a parent of row 1 does not follow from its children"),
        (REPLACING, -FANOUT, 1.0, "a parent of row 1 does not follow from its children"),  # the root
        (LEAST, 1, 0.0, "a parent of row 2 does not follow from its children"),
        (LEAST, 24, 0.0, "a parent of row 2 does not follow from its children"),
        (GREATEST, 1, 99.0, "a parent of row 3 does not follow from its children"),
        (BEFORE + SAMPLING, 0, 1e-9, "row 4 is not the mass of the siblings before"),  # nothing is before the first
        (BEFORE + SAMPLING, 5, 0.0, "row 4 is not the mass of the siblings before"),
        (BEFORE + REPLACING, 15, 1.0, "row 5 is not the mass of the siblings before"),  # infinite where no mass follows
        (BEFORE + REPLACING, 16 + 1, 0.0, "row 5 is not the mass of the siblings before"),
    ],
)
def test_check_valid_notices_a_corrupted_node(row: int, node: int, value: float, reason: str) -> None:
    trees = corruptible()
    trees.arrays.nodes[row, node] = value
    assert trees.check_valid(np.arange(66)) == (False, reason)


def test_check_valid_notices_mass_in_padding_although_its_parents_agree() -> None:
    trees = grown(np.arange(2.0, 68.0), capacity=74)
    set_replacing_mass(*trees.arrays, 76, 0.5)
    assert trees.check_valid(np.arange(66)) == (False, "an empty slot has a priority or a mass")
