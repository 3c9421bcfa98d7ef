"""Interquartile means and probabilities of improvement, with stratified bootstrap intervals over seeds.

After Agarwal et al., "Deep Reinforcement Learning at the Edge of the Statistical Precipice" (2021). Numbers in,
numbers out: no files, no state, and the random generator is an argument.

Scores are given as one array per environment, with one score per seed; the numbers of seeds may differ.
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
    """A figure and its 95% interval; both ends are NaN where one environment has fewer than two seeds."""

    value: float
    low: float
    high: float

    @property
    def has_interval(self) -> bool:
        """Whether the seeds were enough to say how sure the figure is."""
        return bool(np.isfinite(self.low) and np.isfinite(self.high))


class Band(NamedTuple):
    """Interquartile means over seeds at each point of a curve, and their 95% intervals (NaN for a single seed)."""

    middle: Floats
    low: Floats
    high: Floats


def interquartile_mean(values: Floats) -> Floats:
    """Means over the last axis without its lowest and its highest quarter, rounded down to whole values."""
    count = values.shape[-1]
    cut = count // 4
    means: Floats = np.sort(values, axis=-1)[..., cut : count - cut].mean(axis=-1)
    return means


def share_of(count: int, whole: int) -> Estimate:
    """The share of `count` among `whole` with Wilson's interval, which holds also for none, for all and for few."""
    share = count / whole
    z = 1.959963984540054  # the normal distribution's 97.5% quantile
    middle = share + z**2 / (2 * whole)
    reach = z * math.sqrt(share * (1 - share) / whole + z**2 / (4 * whole**2))
    scale = 1 + z**2 / whole
    low, high = max((middle - reach) / scale, 0.0), min((middle + reach) / scale, 1.0)  # rounding may say -1e-17
    return Estimate(share, low, high)


def estimate_iqm(scores: Scores, rng: np.random.Generator, resamples: int = RESAMPLES) -> Estimate:
    """The interquartile mean of all scores of all environments."""
    value = float(interquartile_mean(np.concatenate(scores)))
    resampled = np.concatenate([_resample(stratum, resamples, rng) for stratum in scores], axis=-1)
    return _estimate(value, interquartile_mean(resampled), [scores])


def probability_of_improvement(x: Scores, y: Scores) -> float:
    """How likely a run of `x` scores higher than one of `y` in the same environment; a tie counts one half."""
    return float(np.mean([_wins(mine, theirs).mean() for mine, theirs in zip(x, y, strict=True)]))


def estimate_improvement(x: Scores, y: Scores, rng: np.random.Generator, resamples: int = RESAMPLES) -> Estimate:
    """The probability of improvement of `x` over `y`, averaged over the environments, which both list alike."""
    resampled = [_resampled_wins(mine, theirs, resamples, rng) for mine, theirs in zip(x, y, strict=True)]
    return _estimate(probability_of_improvement(x, y), np.mean(resampled, axis=0), [x, y])


def iqm_band(curves: Floats, rng: np.random.Generator, resamples: int = 1_000) -> Band:
    """The band of curves (seeds × points); NaN where a seed's curve has no value, and there it is left out.

    Whole curves are drawn again, so that the band moves as smoothly over the points as the curves do.
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
        drawn = rng.integers(seeds, size=(resamples, seeds))
        resampled = interquartile_mean(curves[drawn].transpose(0, 2, 1))
        band.low[here], band.high[here] = _ends(resampled)


def _wins(x: Floats, y: Floats) -> Floats:
    """1 for each pair that `x` (the rows) wins, 0 for each that `y` wins, and one half for a tie."""
    wins: Floats = (np.sign(x[:, None] - y) + 1) / 2
    return wins


def _resampled_wins(x: Floats, y: Floats, resamples: int, rng: np.random.Generator) -> Floats:
    """The share of pairs that `x` wins in each resample: seeds are counted, so that no pair is compared again."""
    times_x, times_y = (_times_drawn(len(stratum), resamples, rng) for stratum in (x, y))
    shares: Floats = (times_x @ _wins(x, y) * times_y).sum(axis=1) / (len(x) * len(y))
    return shares


def _times_drawn(seeds: int, resamples: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Resamples × seeds: how often each seed is in each."""
    drawn = rng.integers(seeds, size=(resamples, seeds)) + seeds * np.arange(resamples)[:, None]
    return np.bincount(drawn.ravel(), minlength=resamples * seeds).reshape(resamples, seeds)


def _resample(stratum: Floats, resamples: int, rng: np.random.Generator) -> Floats:
    return stratum[rng.integers(len(stratum), size=(resamples, len(stratum)))]


def _estimate(value: float, resampled: Floats, groups: Sequence[Scores]) -> Estimate:
    """A single seed has no spread to draw from: its interval would have no width, and would claim to be sure."""
    if min(len(stratum) for scores in groups for stratum in scores) < 2:
        return Estimate(value, np.nan, np.nan)
    low, high = _ends(resampled)
    return Estimate(value, float(low), float(high))


def _ends(resampled: Floats) -> Floats:
    ends: Floats = np.quantile(resampled, [(1 - COVERAGE) / 2, (1 + COVERAGE) / 2], axis=0)
    return ends
