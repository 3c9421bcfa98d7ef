"""Schedules: their ends, beyond them, and the paper's own."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpsr_apex.schedules import Schedule, constant

T = 1_000_000


def test_the_ends_are_exact_and_the_last_value_stays() -> None:
    schedule = Schedule(0.1, 0.7, over=0.3)
    assert schedule.at(0, 100) == 0.1
    assert schedule.at(15, 100) == pytest.approx(0.4)
    assert [schedule.at(t, 100) for t in (30, 31, 100, 10**12)] == [0.7] * 4


@given(st.floats(-10, 10), st.integers(0, 10**12), st.integers(1, 10**9))
def test_a_constant_never_moves(value: float, t: int, total_steps: int) -> None:
    assert constant(value).at(t, total_steps) == value


@given(
    st.floats(0, 1),
    st.floats(0, 1),
    st.floats(0.01, 1),
    st.integers(1, 10**6),
    st.integers(0, 10**6),
    st.integers(0, 10),
)
def test_values_stay_between_the_ends_and_move_one_way(
    start: float, end: float, over: float, total_steps: int, t: int, later: int
) -> None:
    schedule = Schedule(start, end, over)
    now, then = schedule.at(t, total_steps), schedule.at(t + later, total_steps)
    rounding = 1e-12
    assert min(start, end) - rounding <= now <= max(start, end) + rounding
    assert (then - now) * (end - start) >= -rounding


@pytest.mark.parametrize("t", [0, 1, 1_000, 50_000, 99_999, 100_000, 100_001, 500_000, T, 2 * T])
def test_the_papers_exploration(t: int) -> None:
    assert Schedule(1.0, 0.02, over=0.1).at(t, T) == pytest.approx(max(1 - 9.8 * t / T, 0.02), abs=1e-12)


@pytest.mark.parametrize("t", [0, 1, 1_000, 500_000, T])
def test_the_papers_bias_annealing(t: int) -> None:
    assert Schedule(0.4, 1.0).at(t, T) == pytest.approx(0.4 + 0.6 * t / T, abs=1e-12)
