"""The age of the policies that chose the actions of inserted transitions, in updates.

In a single process every action is chosen by a policy with all updates that are due by then: its age is 0.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class PolicyAge(NamedTuple):
    """Ages over a logging interval, in updates; None without a transition."""

    mean: float | None
    p95: float | None  # 95th percentile


class PolicyAges:
    """Collects the ages of a logging interval."""

    def __init__(self) -> None:
        self._ages: list[float] = []
        self._counts: list[int] = []

    def add(self, updates_due: float, policy: float, count: int) -> None:
        """Add `count` transitions, chosen by a policy with `policy` updates, inserted when `updates_due` were due."""
        self._ages.append(min(max(updates_due - policy, 0.0), updates_due))
        self._counts.append(count)

    def drain(self) -> PolicyAge:
        """Return the ages since the last call."""
        ages, counts = np.array(self._ages), np.array(self._counts)
        self._ages, self._counts = [], []
        if not counts.sum():
            return PolicyAge(None, None)
        order = np.argsort(ages)
        reached = np.cumsum(counts[order])
        p95 = ages[order][np.searchsorted(reached, 0.95 * reached[-1])]
        return PolicyAge(float(np.average(ages, weights=counts)), float(p95))
