"""Interquartile means and probabilities of improvement, with stratified bootstrap intervals over seeds.

After Agarwal et al., "Deep Reinforcement Learning at the Edge of the Statistical Precipice" (2021). Pure functions; the
random generator is an argument.

Scores are one array per environment, with one score per seed; the numbers of seeds may differ.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Scores = Sequence[Floats]

RESAMPLES = 5_000
COVERAGE = 0.95


class Estimate(NamedTuple):
    """A value and its 95% interval; both ends are NaN if an environment has fewer than two seeds."""

    value: float
    low: float
    high: float

    @property
    def has_interval(self) -> bool:
        """Whether there were enough seeds for an interval."""
        return bool(np.isfinite(self.low) and np.isfinite(self.high))


class Band(NamedTuple):
    """Interquartile means over seeds at each point of a curve, and their 95% intervals (NaN for a single seed)."""

    middle: Floats
    low: Floats
    high: Floats


def interquartile_mean(values: Floats) -> Floats:
    """Return the mean over the last axis without its lowest and highest n // 4 values."""
    count = values.shape[-1]
    cut = count // 4
    means: Floats = np.sort(values, axis=-1)[..., cut : count - cut].mean(axis=-1)
    return means


def share_of(count: int, whole: int) -> Estimate:
    """Return count / whole with its Wilson score interval, which is also valid for small and extreme counts."""
    share = count / whole
    z = 1.959963984540054  # the normal distribution's 97.5% quantile
    middle = share + z**2 / (2 * whole)
    half_width = z * math.sqrt(share * (1 - share) / whole + z**2 / (4 * whole**2))
    scale = 1 + z**2 / whole
    low, high = max((middle - half_width) / scale, 0.0), min((middle + half_width) / scale, 1.0)  # rounding errors
    return Estimate(share, low, high)


def estimate_iqm(scores: Scores, rng: np.random.Generator, resamples: int = RESAMPLES) -> Estimate:
    """Estimate the interquartile mean of all scores of all environments."""
    value = float(interquartile_mean(np.concatenate(scores)))
    resampled = np.concatenate([_resample(stratum, resamples, rng) for stratum in scores], axis=-1)
    return _estimate(value, interquartile_mean(resampled), [scores])


def probability_of_improvement(x: Scores, y: Scores) -> float:
    """Return the probability that a run of `x` scores higher than one of `y` in the same environment (ties: 0.5)."""
    return float(np.mean([_wins(mine, theirs).mean() for mine, theirs in zip(x, y, strict=True)]))


def estimate_improvement(x: Scores, y: Scores, rng: np.random.Generator, resamples: int = RESAMPLES) -> Estimate:
    """Estimate the probability of improvement of `x` over `y`, averaged over environments in the same order."""
    resampled = [_resampled_wins(mine, theirs, resamples, rng) for mine, theirs in zip(x, y, strict=True)]
    return _estimate(probability_of_improvement(x, y), np.mean(resampled, axis=0), [x, y])


def iqm_band(curves: Floats, rng: np.random.Generator, resamples: int = 1_000) -> Band:
    """Return the band of curves of shape (seeds, points); a seed is excluded at points where its value is NaN.

    Whole curves are resampled, so that the band is as smooth over the points as the curves are.
    """
    points = curves.shape[1]
    band = Band(*(np.full(points, np.nan) for _ in range(3)))
    known = np.isfinite(curves)
    for pattern in np.unique(known.T, axis=0):
        if pattern.any():
            here = (pattern == known.T).all(axis=1)
            _fill_band(band, here, curves[pattern][:, here], rng, resamples)
    return band


def _fill_band(band: Band, here: NDArray[np.bool_], curves: Floats, rng: np.random.Generator, resamples: int) -> None:
    band.middle[here] = interquartile_mean(curves.T)
    seeds = len(curves)
    if seeds > 1:
        sampled = rng.integers(seeds, size=(resamples, seeds))
        resampled = interquartile_mean(curves[sampled].transpose(0, 2, 1))
        band.low[here], band.high[here] = _interval(resampled)


def _wins(x: Floats, y: Floats) -> Floats:
    """Return 1 for each pair that `x` (rows) wins, 0 for each that `y` (columns) wins, and 0.5 for a tie."""
    wins: Floats = (np.sign(x[:, None] - y) + 1) / 2
    return wins


def _resampled_wins(x: Floats, y: Floats, resamples: int, rng: np.random.Generator) -> Floats:
    """Return the share of pairs that `x` wins in each resample; weighting by counts compares each pair only once."""
    counts_x, counts_y = (_sample_counts(len(stratum), resamples, rng) for stratum in (x, y))
    shares: Floats = (counts_x @ _wins(x, y) * counts_y).sum(axis=1) / (len(x) * len(y))
    return shares


def _sample_counts(seeds: int, resamples: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Return how often each seed is in each resample, shape (resamples, seeds)."""
    sampled = rng.integers(seeds, size=(resamples, seeds)) + seeds * np.arange(resamples)[:, None]
    return np.bincount(sampled.ravel(), minlength=resamples * seeds).reshape(resamples, seeds)


def _resample(stratum: Floats, resamples: int, rng: np.random.Generator) -> Floats:
    return stratum[rng.integers(len(stratum), size=(resamples, len(stratum)))]


def _estimate(value: float, resampled: Floats, groups: Sequence[Scores]) -> Estimate:
    """Add the interval of the resampled values; none for a single seed, whose interval would have zero width."""
    if min(len(stratum) for scores in groups for stratum in scores) < 2:
        return Estimate(value, np.nan, np.nan)
    low, high = _interval(resampled)
    return Estimate(value, float(low), float(high))


def _interval(resampled: Floats) -> Floats:
    ends: Floats = np.quantile(resampled, [(1 - COVERAGE) / 2, (1 + COVERAGE) / 2], axis=0)
    return ends
