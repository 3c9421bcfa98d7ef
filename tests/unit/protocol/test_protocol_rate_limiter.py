"""Transitions against updates: the ratio holds, one side may always continue, and the reported shortage is right."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpsr_apex.protocol.rate_limiter import RateLimiter
from dpsr_apex.state import State
from dpsr_apex.wire.statistics import ActorsPaused

RATES = st.integers(0, 7)
POSITIVE_RATES = st.integers(1, 7)


class Run:
    """A limiter with the clock that belongs to it; nobody does what they may not."""

    def __init__(self, learning_starts: int, steps_per_update: int, tolerance: int) -> None:
        self.limiter = RateLimiter(learning_starts, steps_per_update, tolerance)
        self.t = 0

    def insert(self, at_most: int) -> int:
        count = 0
        while count < at_most and self.limiter.may_insert(self.t):
            self.t += 1
            count += 1
        return count

    def sample(self, at_most: int) -> int:
        count = 0
        while count < at_most and self.limiter.may_sample(self.t):
            self.limiter.batches += 1
            count += 1
        return count


def due_one_by_one(t: int, learning_starts: int, steps_per_update: int) -> int:
    return sum(1 for now in range(1, t + 1) if now >= learning_starts and now % steps_per_update == 0)


@given(st.integers(0, 60), st.integers(1, 20), POSITIVE_RATES)
def test_one_batch_is_due_at_every_multiple_from_learning_starts_on(t: int, starts: int, rate: int) -> None:
    assert RateLimiter(starts, rate, 10).batches_due(t) == due_one_by_one(t, starts, rate)


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9))), st.integers(1, 20), POSITIVE_RATES, st.integers(1, 9))
def test_the_ratio_holds_whatever_the_two_sides_try(
    moves: list[tuple[int, int]], starts: int, rate: int, tolerance: int
) -> None:
    run = Run(starts, rate, tolerance)
    for inserts, samples in moves:
        run.insert(inserts)
        run.sample(samples)
        due = due_one_by_one(run.t, starts, rate)
        assert run.limiter.batches <= due
        assert due - run.limiter.batches <= max(tolerance // rate, 1) + 1


MOVES = st.one_of(
    st.tuples(st.just("insert"), st.integers(1, 30)),
    st.tuples(st.just("sample"), st.integers(1, 30)),
    st.tuples(st.just("change"), RATES),
)


@given(st.lists(MOVES, max_size=30), st.integers(1, 20), RATES, st.integers(1, 9))
def test_one_side_may_always_continue(moves: list[tuple[str, int]], starts: int, rate: int, tolerance: int) -> None:
    run = Run(starts, rate, tolerance)
    for move, number in moves:
        if move == "insert":
            run.insert(number)
        elif move == "sample":
            run.sample(number)
        else:
            run.limiter.change(run.t, number)
        assert run.limiter.may_insert(run.t) or run.limiter.may_sample(run.t)
        assert run.limiter.batches <= run.limiter.batches_due(run.t)


def test_insertion_may_run_ahead_by_the_tolerance_and_stops_there() -> None:
    run = Run(learning_starts=10, steps_per_update=2, tolerance=6)
    assert run.insert(1000) == 16  # batches are due at t = 10, 12, 14 and 16, and 3 may be owed
    assert run.sample(1) == 1
    assert run.insert(1000) == 2


def test_a_tolerance_of_less_than_one_batch_lets_one_be_owed() -> None:
    run = Run(learning_starts=1, steps_per_update=5, tolerance=1)
    assert run.insert(1000) == 10


def test_a_new_rate_counts_from_now_on_and_what_is_owed_stays_owed() -> None:
    run = Run(learning_starts=1, steps_per_update=1, tolerance=100)
    run.insert(20)
    run.sample(15)
    run.limiter.change(run.t, 10)
    assert run.limiter.batches_due(20) - run.limiter.batches == 5
    assert [run.limiter.batches_due(t) for t in (29, 30, 39, 40)] == [20, 21, 21, 22]


def test_a_rate_changed_before_learning_starts_does_not_begin_earlier() -> None:
    limiter = RateLimiter(learning_starts=100, steps_per_update=1, tolerance=10)
    limiter.change(7, 4)
    assert [limiter.batches_due(t) for t in (8, 99, 100, 104)] == [0, 0, 1, 2]


def test_free_running_holds_nobody_back_once_learning_has_started() -> None:
    run = Run(learning_starts=10, steps_per_update=0, tolerance=1)
    assert (run.insert(9), run.sample(1)) == (9, 0)
    assert (run.insert(1), run.sample(1000)) == (1, 1000)
    assert run.insert(1000) == 1000


def test_after_free_running_nothing_is_owed() -> None:
    run = Run(learning_starts=10, steps_per_update=0, tolerance=10)
    run.insert(50)
    run.sample(3)
    run.limiter.change(run.t, 2)
    assert not run.limiter.may_sample(50)
    assert run.limiter.batches_due(52) == 4


@given(st.integers(1, 40), RATES, st.integers(0, 60), st.lists(st.tuples(st.integers(0, 20), RATES), max_size=3))
def test_the_learner_is_told_exactly_what_is_missing(
    starts: int, rate: int, inserts: int, changes: list[tuple[int, int]]
) -> None:
    run = Run(starts, rate, 1000)
    run.insert(inserts)
    run.sample(1000)
    for more, new_rate in changes:
        run.insert(more)
        run.limiter.change(run.t, new_rate)
        run.sample(1000)
    if run.limiter.may_sample(run.t):
        return
    next_t = run.t + run.limiter.learner_waits_for(run.t).transitions_missing
    assert run.limiter.may_sample(next_t)
    assert not run.limiter.may_sample(next_t - 1)


def test_the_actors_wait_for_what_is_owed_beyond_the_limit() -> None:
    run = Run(learning_starts=1, steps_per_update=2, tolerance=4000)
    run.insert(10_000)
    assert run.t == 4_002
    assert run.limiter.actors_wait_for(run.t) == ActorsPaused(updates_behind=2_001, limit=2_000)


@pytest.mark.parametrize("rate", [0, 1, 3])
def test_one_that_is_saved_and_loaded_decides_alike(rate: int) -> None:
    run = Run(learning_starts=5, steps_per_update=2, tolerance=3)
    run.insert(8)
    run.sample(1)
    run.limiter.change(run.t, rate)
    other = RateLimiter(5, 2, 3)
    other.load(State(json.loads(json.dumps(run.limiter.save().facts)), {}))
    for t in range(run.t, run.t + 20):
        assert other.batches_due(t) == run.limiter.batches_due(t)
        assert other.may_insert(t) == run.limiter.may_insert(t)
    assert (other.batches, other.steps_per_update) == (run.limiter.batches, rate)
