"""Rank-based sampling: the order is kept exactly, whatever moves; and what check_valid notices."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from dpsr_apex.replay.ranking import Ranking
from tests.unit.replay.naive import stratified
from tests.unit.replay.twins import CAPACITIES

ALMOST_ONE = 1 - 2.0**-53


def ranked(priorities: list[float], capacity: int | None = None, alpha: float = 1.0) -> Ranking:
    ranking = Ranking(capacity or len(priorities), alpha)
    ranking.set(np.arange(len(priorities)), np.array(priorities))
    return ranking


def with_empty(priorities: list[float], capacity: int) -> NDArray[np.float64]:
    """These priorities in the first slots, and infinite ones in the others, which are empty."""
    return np.append(priorities, np.full(capacity - len(priorities), np.inf))


@settings(max_examples=150, deadline=None, derandomize=True, database=None)
@given(
    first=st.lists(st.sampled_from((0.5, 1.0, 2.0, 7.0)), min_size=1, max_size=30),
    moves=st.lists(st.tuples(st.integers(0, 29), st.sampled_from((0.5, 1.0, 2.0, 7.0, 0.1, 9.0, np.inf))), max_size=60),
)
def test_the_order_is_that_of_sorting(first: list[float], moves: list[tuple[int, float]]) -> None:
    """With many ties, slots named twice in one call, and slots that are emptied."""
    ranking = ranked(first, capacity=40)
    priorities = with_empty(first, 40)
    slots = np.array([slot % len(first) for slot, _ in moves], dtype=np.int64)
    ranking.set(slots, np.array([priority for _, priority in moves]))
    for slot, (_, priority) in zip(slots, moves, strict=True):
        priorities[slot] = priority
    stored = np.flatnonzero(np.isfinite(priorities)).tolist()
    assert ranking.order[: ranking.size].tolist() == sorted(stored, key=lambda slot: (-priorities[slot], slot))
    assert ranking.check_valid(priorities) == (True, "")


@pytest.mark.parametrize("capacity", CAPACITIES)
@pytest.mark.parametrize("alpha", [0.0, 0.7, 5.0])
def test_samples_and_weights_follow_the_ranks(capacity: int, alpha: float) -> None:
    rng = np.random.default_rng(capacity)
    count = capacity // 2 + 1
    priorities = rng.permutation(np.arange(1.0, count + 1))
    ranking = ranked(priorities.tolist(), capacity, alpha)
    ranks = count + 1 - priorities
    masses = ranks**-alpha
    line = np.argsort(ranks)
    for uniforms in (rng.random(64), np.zeros(3), np.full(5, ALMOST_ONE)):
        slots, weights = ranking.sample(uniforms, 0.4)
        assert slots.tolist() == line[stratified(masses[line], uniforms)].tolist()
        expected = (count * masses / masses.sum()) ** -0.4
        np.testing.assert_allclose(weights, (expected / expected.max())[slots], rtol=1e-6)


def test_a_loaded_ranking_continues_like_the_one_that_was_saved() -> None:
    rng = np.random.default_rng(0)
    priorities = rng.integers(1, 9, 50).astype(np.float64)
    grown, loaded = ranked(priorities.tolist(), 60), Ranking(60, 0.3)
    loaded.load(with_empty(priorities.tolist(), 60), 1.0)
    for ranking in (grown, loaded):
        ranking.set(np.array([5, 55, 5, 7]), np.array([3.0, 4.0, 8.0, 0.5]))
    assert grown.order[:51].tolist() == loaded.order[:51].tolist()


def corrupted(what: str) -> tuple[bool, str]:
    priorities = with_empty([3.0, 1.0, 2.0, 2.0], 6)
    ranking = ranked(priorities[:4].tolist(), capacity=6)
    assert ranking.order[:4].tolist() == [0, 2, 3, 1]
    if what == "slot":
        ranking.order[1] = 0
    elif what == "size":
        ranking.size = 3
    elif what == "priority":
        ranking._priorities[1] = 1.5
    elif what == "order":
        ranking.order[:2] = [2, 0]
    elif what == "tie":
        ranking.order[1:3] = [3, 2]
    elif what == "mass":
        ranking._mass_up_to[2] += 0.1
    return ranking.check_valid(priorities)


@pytest.mark.parametrize(
    ("what", "reason"),
    [
        ("slot", "the ranking does not hold every stored slot once"),
        ("size", "the ranking does not hold every stored slot once"),
        ("priority", "the ranking holds other priorities than the trees"),
        ("order", "the ranking is not in the order of the priorities"),
        ("tie", "the ranking is not in the order of the priorities"),
        ("mass", "a rank has another mass than its exponent gives"),
    ],
)
def test_check_valid_notices(what: str, reason: str) -> None:
    assert corrupted("nothing") == (True, "")
    assert corrupted(what) == (False, reason)
