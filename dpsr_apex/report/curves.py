"""Curves over transitions of a group's seeds: scores, ages and priorities in the replay, and recycling gains.

Seeds are logged and evaluated at different t; here they are interpolated to a common grid. Computes only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from dpsr_apex.files import Row
from dpsr_apex.live.curve import Floats, Points, points, smoothed
from dpsr_apex.report.groups import Group
from dpsr_apex.report.records import RunRecord
from dpsr_apex.report.statistics import Band, iqm_band

GRID_POINTS = 100
DECILES = 11


class Curve(NamedTuple):
    """A group's curve: the points of every seed, and the band over all seeds on a common grid."""

    seeds: Sequence[Points]
    grid: Floats
    band: Band


class Deciles(NamedTuple):
    """Minimum, 10%, …, 90%, maximum (the columns) at each t, as means over seeds."""

    t: Floats
    values: Floats  # shape (len(t), 11)


def evaluation_points(run: RunRecord) -> Points:
    """Return t and mean score of each of a run's evaluations."""
    t, means = np.array(run.scores, dtype=np.float64).reshape(-1, 2).T
    return t, means


def evaluation_curve(group: Group, rng: np.random.Generator) -> Curve | None:
    """Return the curve of mean evaluation scores; None if no seed has two evaluations."""
    seeds = [evaluation_points(run) for run in group.runs]
    longest = max(seeds, key=lambda seed: len(seed[0]))[0]
    return _curve(seeds, longest, rng) if len(longest) > 1 else None


def training_curve(group: Group, rng: np.random.Generator) -> Curve | None:
    """Return the curve of smoothed training returns; None if no seed has two points."""
    raw = [points(run.rows, "return_mean") for run in group.runs]
    seeds = [(t, smoothed(returns)) for t, returns in raw]
    return _curve(seeds, _even_grid(seeds), rng) if any(len(t) > 1 for t, _ in seeds) else None


def mean_points(group: Group, name: str) -> Points:
    """Return the mean over seeds of the metric `name`; empty if no row has it."""
    return _mean_over_seeds([points(run.rows, name) for run in group.runs])


def gain_points(group: Group) -> Points:
    """Return the mean gain of a recycled transition between consecutive rows, averaged over seeds."""
    return _mean_over_seeds([_gains(run.rows) for run in group.runs])


def decile_points(group: Group, name: str) -> Deciles | None:
    """Return the deciles of the metric `name`; None if no row has them."""
    per_seed = [[(row["t"], row[name]) for row in run.rows if _has_deciles(row, name)] for run in group.runs]
    series = [_mean_over_seeds([_column(seed, decile) for seed in per_seed if seed]) for decile in range(DECILES)]
    t = series[0][0]
    return Deciles(t, np.stack([values for _, values in series], axis=1)) if len(t) else None


def align(seeds: Sequence[Points], grid: Floats) -> Floats:
    """Interpolate each seed on the grid, shape (seeds, grid).

    NaN more than half a grid step before a seed's first or after its last point.
    """
    slack = float(np.median(np.diff(grid))) / 2 if len(grid) > 1 else 0.0
    aligned = np.full((len(seeds), len(grid)), np.nan)
    for row, (t, values) in zip(aligned, seeds, strict=True):
        if len(t):
            inside = (grid >= t[0] - slack) & (grid <= t[-1] + slack)
            row[inside] = np.interp(grid[inside], t, values)
    return aligned


def _curve(seeds: Sequence[Points], grid: Floats, rng: np.random.Generator) -> Curve:
    non_empty = [seed for seed in seeds if len(seed[0])]
    return Curve(non_empty, grid, iqm_band(align(non_empty, grid), rng))


def _even_grid(seeds: Sequence[Points]) -> Floats:
    clocks = [t for t, _ in seeds if len(t)]
    if not clocks:
        return np.empty(0)
    longest = max(clocks, key=len)
    return np.linspace(min(t[0] for t in clocks), max(t[-1] for t in clocks), min(len(longest), GRID_POINTS))


def _mean_over_seeds(seeds: Sequence[Points]) -> Points:
    grid = _even_grid(seeds)
    if not len(grid):
        return grid, grid
    aligned = align(seeds, grid)
    known = np.isfinite(aligned)
    grid, aligned, known = (array[..., known.any(axis=0)] for array in (grid, aligned, known))
    return grid, np.where(known, aligned, 0.0).sum(axis=0) / known.sum(axis=0)


def _gains(rows: Sequence[Row]) -> Points:
    known = [row for row in rows if "recycled" in row and "recycled_gain" in row]
    counts = np.array([0.0, *(row["recycled"] for row in known)])
    totals = np.array([0.0, *(row["recycled_gain"] for row in known)])
    recycled, gained = np.diff(counts), np.diff(totals)
    valid = recycled > 0
    return np.array([row["t"] for row in known], dtype=np.float64)[valid], gained[valid] / recycled[valid]


def _has_deciles(row: Row, name: str) -> bool:
    values = row.get(name)
    return isinstance(values, list) and len(values) == DECILES


def _column(seed: Sequence[tuple[int, Sequence[float]]], decile: int) -> Points:
    return np.array([t for t, _ in seed], dtype=np.float64), np.array([values[decile] for _, values in seed])
