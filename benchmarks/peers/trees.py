"""DPSR's insertion, and drawing with updating, as a user would build them on tianshou's segment trees.

Runs in the peers' own environment. Says "ready" once it is filled; then every line of its input is the name of a work
and how often to do it, and every line of its output the CPU and wall seconds that this took.

It does less than our replay does, in its own favour: it stores no transitions, knows no identities, and keeps least and
greatest priority as tianshou's PrioritizedReplayBuffer does, as running extremes that never come back.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

ALPHA, BETA, GAMMA = 0.6, 0.4, 0.3
CANDIDATES = 256
BATCH = 32
WARM_UP = 200


class TianshouReplay:
    """Two segment trees and the births, filled with N priorities."""

    def __init__(self, capacity: int, rng: np.random.Generator) -> None:
        from tianshou.data import SegmentTree  # type: ignore[import-not-found]  # only in the peers' environment

        priorities = rng.lognormal(-3.0, 1.0, capacity)
        self.rng = rng
        self.t = capacity
        self.births = np.arange(1, capacity + 1)
        self.least, self.greatest = priorities.min(), priorities.max()
        self.sampling, self.replacing = SegmentTree(capacity), SegmentTree(capacity)
        self.sampling[np.arange(capacity)] = priorities**ALPHA
        self.replacing[np.arange(capacity)] = priorities**-GAMMA
        self.slices, self.batch_slices = np.arange(CANDIDATES), np.arange(BATCH)

    def insert(self) -> None:
        """One common replacement by a transition of the greatest priority."""
        targets = (self.slices + self.rng.random(CANDIDATES)) * (self.replacing.reduce() / CANDIDATES)
        candidates = self.replacing.get_prefix_sum_idx(targets)
        oldest = int(candidates[np.argmin(self.births[candidates])])
        self.t += 1
        self.births[oldest] = self.t
        self.sampling[oldest] = self.greatest**ALPHA
        self.replacing[oldest] = self.greatest**-GAMMA

    def draw(self) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """A batch of slots with their weights."""
        targets = (self.batch_slices + self.rng.random(BATCH)) * (self.sampling.reduce() / BATCH)
        slots = self.sampling.get_prefix_sum_idx(targets)
        return slots, (self.sampling[slots] / self.least**ALPHA) ** -BETA

    def update_sampling(self, slots: NDArray[np.int64], priorities: NDArray[np.float64]) -> None:
        """New priorities as prioritized sampling alone needs them."""
        self.sampling[slots] = priorities**ALPHA
        self.least, self.greatest = min(self.least, priorities.min()), max(self.greatest, priorities.max())

    def update(self, slots: NDArray[np.int64], priorities: NDArray[np.float64]) -> None:
        """New priorities as DPSR needs them: for replacing, too."""
        self.update_sampling(slots, priorities)
        self.replacing[slots] = priorities**-GAMMA


def repeat(replay: TianshouReplay, work: str, count: int) -> None:
    """Do a work `count` times: "insert", "draw_update", or "draw_update_sampling"."""
    if work == "insert":
        for _ in range(count):
            replay.insert()
        return
    update: Any = replay.update if work == "draw_update" else replay.update_sampling
    for priorities in np.random.default_rng(1).lognormal(-3.0, 1.0, (count, BATCH)):
        update(replay.draw()[0], priorities)


def main() -> None:
    replay = TianshouReplay(int(sys.argv[1]), np.random.default_rng(0))
    print("ready", flush=True)
    for line in sys.stdin:
        work, count = line.split()
        repeat(replay, work, WARM_UP)
        cpu, wall = time.process_time(), time.perf_counter()
        repeat(replay, work, int(count))
        print(time.process_time() - cpu, time.perf_counter() - wall, flush=True)


if __name__ == "__main__":
    main()
