"""Series of numbers out of rows, for pictures. It reads rows that others wrote, and changes none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Row = Mapping[str, Any]
Floats = NDArray[np.float64]
Points = tuple[Floats, Floats]


def points(rows: Sequence[Row], name: str) -> Points:
    """The clock and the value of each row that has one."""
    known = [(row["t"], row[name]) for row in rows if row.get(name) is not None]
    t, values = np.array(known, dtype=np.float64).reshape(-1, 2).T
    return t, values


def smoothed(values: Floats) -> Floats:
    """Means over a centred window of a twentieth of all values, narrower at both ends."""
    reach = len(values) // 40
    sums = np.concatenate(([0.0], np.cumsum(values)))
    middle = np.arange(len(values))
    first, last = np.maximum(middle - reach, 0), np.minimum(middle + reach + 1, len(values))
    means: Floats = (sums[last] - sums[first]) / (last - first)
    return means
