"""A survey has what the replay stores about each transition, and says so when it has a part of them only."""

from __future__ import annotations

import numpy as np
import pytest

from dpsr_apex.replay.survey import GREATEST_PRIORITY, LEAST_PRIORITY, spread_over, survey_of
from tests.unit.replay.naive import transitions_of
from tests.unit.replay.test_replay_chains import chain, just_before_a_round
from tests.unit.replay.twins import joined, make_rows


def test_a_survey_is_the_columns_of_the_replay() -> None:
    replay = just_before_a_round()
    (round_,) = replay.insert(transitions_of(make_rows(50, 1)))
    replay.answer(round_.number, joined(round_.candidates.tolist(), [chain(100 * i, 3.0 + i) for i in (1, 2, 3)]))
    survey = replay.survey(1_000)
    stored = replay.rows_of(replay.identities)
    assert (survey.t, survey.capacity, survey.stored, survey.rows) == (replay.t, 9, 9, 9)
    for name in ("identities", "births", "gains", "depths", "recycles"):
        np.testing.assert_array_equal(getattr(survey, name), getattr(stored.slots, name), err_msg=name)
    np.testing.assert_array_equal(survey.priorities, stored.priorities.astype(np.float32))
    for name, column in (("actions", "a_tm1"), ("rewards", "r_t"), ("terminals", "terminal")):
        np.testing.assert_array_equal(getattr(survey, name), getattr(stored.transitions, column), err_msg=name)
    np.testing.assert_array_equal(survey.positions, stored.transitions.episode_steps)
    assert survey.recycles.sum() == 2


def test_a_survey_does_not_change_with_the_replay() -> None:
    replay = just_before_a_round()
    survey = replay.survey(1_000)
    before = [np.array(column) for column in survey[3:]]
    replay.insert(transitions_of(make_rows(50, 1)))
    replay.update_priorities(replay.identities, np.full(replay.size, 77.0))
    assert replay.survey(1_000).priorities.min() > 77.0
    for column, copy in zip(survey[3:], before, strict=True):
        np.testing.assert_array_equal(column, copy)


def test_a_large_replay_is_subsampled() -> None:
    replay = just_before_a_round()
    whole, survey = replay.survey(1_000), replay.survey(4)
    assert (survey.stored, survey.rows) == (9, 4)
    rows = np.searchsorted(whole.identities, survey.identities)
    for name in ("identities", "births", "priorities", "rewards"):
        np.testing.assert_array_equal(getattr(survey, name), getattr(whole, name)[rows], err_msg=name)
    np.testing.assert_array_equal(rows, spread_over(9, 4))


@pytest.mark.parametrize(("count", "most"), [(9, 4), (100_001, 50_000), (1_000_000, 50_000), (5, 5), (3, 10), (0, 7)])
def test_chosen_rows_are_spread_evenly(count: int, most: int) -> None:
    rows = spread_over(count, most)
    assert len(rows) == min(count, most)
    assert (np.diff(rows) > 0).all()
    for part, row in enumerate(rows.tolist()):
        assert part * count // len(rows) <= row < (part + 1) * count // len(rows)


@pytest.mark.parametrize("period", [2, 4, 20, 50, 64, 1_000])
def test_no_phase_of_a_period_is_preferred(period: int) -> None:
    chosen = np.bincount(spread_over(1_000_000, 50_000) % period, minlength=period)
    assert abs(chosen - 50_000 / period).max() < 5 * (50_000 / period) ** 0.5


def test_priorities_beyond_float32_are_clipped_and_missing_columns_are_zero() -> None:
    columns = {"priorities": np.array([1e-50, 1.0, 1e50]), "identities": np.arange(3), "births": np.arange(3)}
    columns |= {name: np.zeros(3) for name in ("gains", "depths", "a_tm1", "r_t", "terminal")}
    survey = survey_of(7, 10, np.arange(3), columns, 100)
    np.testing.assert_allclose(survey.priorities, [LEAST_PRIORITY, 1.0, GREATEST_PRIORITY], rtol=1e-6)
    assert survey.recycles.tolist() == survey.positions.tolist() == [0, 0, 0]
