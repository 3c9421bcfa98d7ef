"""The distribution of ages, priorities and depths in a replay: means, deciles and histograms."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpsr_apex.replay.replay import Replay

LARGEST_SAMPLE = 20_000  # transitions; a larger replay is subsampled, evenly over its slots
BINS = 20
NAMES = (
    *("age_mean", "age_deciles", "age_histogram", "priority_mean", "priority_deciles", "priority_histogram"),
    *("depth_mean", "depth_max"),
)
DECILES = np.linspace(0.0, 1.0, 11)

Numbers = NDArray[np.float64]


def take_census(replay: Replay) -> dict[str, Any]:
    """Return means, deciles and histograms, named as in a row of metrics; all None if the replay is empty.

    Ages are in transitions and have equally wide bins; the bins of priorities are spaced logarithmically.
    """
    if not replay.size:
        return dict.fromkeys(NAMES)
    births, priorities = replay.births_and_priorities(LARGEST_SAMPLE)
    depths = replay.depths
    ages = (replay.t - births).astype(np.float64)
    counts, powers = np.histogram(np.log10(priorities), BINS)
    return {
        "age_mean": float(ages.mean()),
        "age_deciles": _deciles(ages),
        "age_histogram": _histogram(*np.histogram(ages, BINS, (0.0, max(float(ages.max()), 1.0)))),
        "priority_mean": float(priorities.mean()),
        "priority_deciles": _deciles(priorities),
        "priority_histogram": _histogram(counts, 10.0**powers),
        "depth_mean": float(depths[depths > 0].mean()) if depths.any() else None,
        "depth_max": int(depths.max()),
    }


def _deciles(values: Numbers) -> list[float]:
    """Return the minimum, nine deciles, and the maximum."""
    return [_short(value) for value in np.quantile(values, DECILES)]


def _histogram(counts: NDArray[np.int64], edges: Numbers) -> dict[str, Any]:
    return {"edges": [_short(edge) for edge in edges], "counts": counts.tolist()}


def _short(value: float) -> float:
    """Round to six significant digits, which are enough for a plot and keep files small."""
    return float(f"{value:.6g}")
