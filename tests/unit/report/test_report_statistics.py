from __future__ import annotations

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from rliable import library, metrics

from dpsr_apex.report.statistics import (
    Floats,
    estimate_improvement,
    estimate_iqm,
    interquartile_mean,
    iqm_band,
    probability_of_improvement,
)

SCORES = arrays(np.float64, st.tuples(st.integers(1, 9), st.integers(1, 4)), elements=st.integers(-20, 20).map(float))


def rng() -> np.random.Generator:
    return np.random.default_rng(1)


def by_environment(matrix: Floats) -> list[Floats]:
    """Convert rliable's matrix of shape (runs, environments) to one array per environment."""
    return list(matrix.T)


@settings(deadline=None)
@given(SCORES)
def test_the_interquartile_mean_matches_rliable(scores: Floats) -> None:
    ours = estimate_iqm(by_environment(scores), rng(), resamples=2).value
    assert ours == pytest.approx(metrics.aggregate_iqm(scores))


@settings(deadline=None)
@given(st.data())
def test_the_probability_of_improvement_matches_rliable(data: st.DataObject) -> None:
    x = data.draw(SCORES)
    shape = (data.draw(st.integers(1, 9)), x.shape[1])
    y = data.draw(arrays(np.float64, shape, elements=st.integers(-20, 20).map(float)))
    ours = probability_of_improvement(by_environment(x), by_environment(y))
    assert ours == pytest.approx(metrics.probability_of_improvement(x, y))


def resampled(matrix: Floats, generator: np.random.Generator, resamples: int) -> Floats:
    """Resample each environment's seeds in the simplest way: an array of shape (resamples, runs, environments)."""
    shape = (resamples, len(matrix))
    return np.stack([generator.choice(column, shape) for column in matrix.T], axis=2)


def test_intervals_match_a_naive_bootstrap() -> None:
    x, y = rng().normal(1.0, 1.0, (8, 3)), rng().normal(0.6, 2.0, (6, 3))
    other = np.random.default_rng(5)
    means = scipy.stats.trim_mean(resampled(x, other, 2_000).reshape(2_000, -1), 0.25, axis=1)
    x_new, y_new = resampled(x, other, 2_000), resampled(y, other, 2_000)
    wins = (x_new[:, :, None] > y_new[:, None]).mean(axis=(1, 2, 3))
    mean = estimate_iqm(by_environment(x), rng())
    improvement = estimate_improvement(by_environment(x), by_environment(y), rng())
    assert [mean.low, mean.high] == pytest.approx(np.quantile(means, [0.025, 0.975]), abs=0.06)
    assert [improvement.low, improvement.high] == pytest.approx(np.quantile(wins, [0.025, 0.975]), abs=0.03)


@pytest.mark.filterwarnings("ignore:random_state is deprecated:FutureWarning")  # rliable passes it on
def test_intervals_are_close_to_rliable() -> None:
    x, y = rng().normal(1.0, 1.0, (8, 3)), rng().normal(0.6, 2.0, (6, 3))
    mean = estimate_iqm(by_environment(x), rng())
    improvement = estimate_improvement(by_environment(x), by_environment(y), rng())
    state = np.random.RandomState(1)
    _, means = library.get_interval_estimates(
        {"x": x},
        lambda scores: np.array([scipy.stats.trim_mean(scores, 0.25, axis=None)]),
        reps=2_000,
        random_state=state,
    )
    _, improvements = library.get_interval_estimates(
        {"x,y": (x, y)},
        lambda ours, theirs: np.array([(ours[:, None] > theirs).mean()]),
        reps=2_000,
        random_state=state,
    )
    assert [mean.low, mean.high] == pytest.approx(means["x"].ravel(), abs=0.06)
    assert [improvement.low, improvement.high] == pytest.approx(improvements["x,y"].ravel(), abs=0.03)


def test_intervals_have_about_their_nominal_coverage() -> None:
    """Bootstrap intervals are slightly too narrow for 20 seeds: 92 to 95% instead of 95%."""
    generator = np.random.default_rng(2)
    covered = 0
    for _ in range(400):
        estimate = estimate_iqm([generator.normal(5.0, 2.0, 20)], generator, resamples=400)
        covered += estimate.low <= 5.0 <= estimate.high
    assert 0.88 * 400 <= covered <= 0.98 * 400


def test_environments_may_have_different_numbers_of_seeds() -> None:
    few, many = np.array([1.0, 2.0]), np.array([3.0, 4.0, 5.0, 6.0, 7.0, 8.0])
    assert estimate_iqm([few, many], rng()).value == np.mean([3.0, 4.0, 5.0, 6.0])
    assert probability_of_improvement([few, many], [many, many]) == 0.25


def test_seeds_are_resampled_within_each_environment() -> None:
    """The environments have very different scores: resampled together, the mean would vary by hundreds."""
    estimate = estimate_iqm([np.array([0.0, 1.0, 0.0]), np.array([1000.0, 1001.0, 1002.0])], rng())
    assert estimate.high - estimate.low < 2


def test_a_single_seed_has_no_interval() -> None:
    assert not estimate_iqm([np.array([3.0])], rng()).has_interval
    assert not estimate_iqm([np.array([3.0, 4.0]), np.array([1.0])], rng()).has_interval
    assert not estimate_improvement([np.array([3.0])], [np.array([1.0, 2.0])], rng()).has_interval


def test_equal_generators_give_equal_intervals() -> None:
    scores = [rng().normal(size=7)]
    assert estimate_iqm(scores, rng()) == estimate_iqm(scores, rng())


@settings(deadline=None)
@given(arrays(np.float64, st.tuples(st.integers(2, 6), st.integers(1, 5)), elements=st.floats(-9, 9, width=16)))
def test_a_band_lies_within_the_range_of_the_seeds(curves: Floats) -> None:
    band = iqm_band(curves, rng(), resamples=200)
    assert band.middle == pytest.approx(interquartile_mean(curves.T))
    assert (band.low <= band.high + 1e-9).all()
    assert (band.low >= curves.min(axis=0) - 1e-9).all()
    assert (band.high <= curves.max(axis=0) + 1e-9).all()


def test_a_seed_is_excluded_from_the_band_after_its_end() -> None:
    curves = np.array([[1.0, 1.0, 1.0], [3.0, 3.0, np.nan], [5.0, np.nan, np.nan]])
    band = iqm_band(curves, rng())
    assert band.middle.tolist() == [3.0, 2.0, 1.0]
    assert band.high[0] > 3.0
    assert np.isnan(band.low[2])
    assert np.isnan(band.high[2])
