"""DPSR's insertion, and drawing with updating, as a user would build them on other people's trees.

Runs in the peers' own environment: `trees.py NAME CAPACITY`. Says "ready" once it is filled; then every line of its
input is the name of a work and how often to do it, and every line of its output the CPU and wall seconds that took.

All do less than our replay does, in their own favour: they store no transitions, know no identities, and keep the
greatest priority (tianshou: the least, too) as their own replays do, as running extremes that never come back.
"""

from __future__ import annotations

import gc
import operator
import random
import sys
import time
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

ALPHA, BETA, GAMMA = 0.6, 0.4, 0.3
CANDIDATES = 256
BATCH = 32
WARM_UP = 4  # one of so many is done before the time is taken, since others have had the caches meanwhile

Floats = NDArray[np.float64]


class Trees(Protocol):
    """What is measured of a peer."""

    def insert(self) -> None:
        """One common replacement, by a transition of the greatest priority."""

    def draw_update(self, priorities: Floats) -> None:
        """Draw a batch with weights and give it these priorities, as prioritized sampling alone needs it."""


class Tianshou:
    """Two of tianshou's segment trees (numba), and the births."""

    def __init__(self, priorities: Floats, rng: np.random.Generator) -> None:
        from tianshou.data import SegmentTree

        capacity = priorities.size
        self.rng = rng
        self.t = capacity
        self.births = np.arange(1, capacity + 1)
        self.least, self.greatest = priorities.min(), priorities.max()
        self.sampling, self.replacing = SegmentTree(capacity), SegmentTree(capacity)
        self.sampling[np.arange(capacity)] = priorities**ALPHA
        self.replacing[np.arange(capacity)] = priorities**-GAMMA
        self.slices, self.batch_slices = np.arange(CANDIDATES), np.arange(BATCH)

    def insert(self) -> None:
        """Of the candidates drawn by p ** -gamma, the oldest makes room."""
        targets = (self.slices + self.rng.random(CANDIDATES)) * (self.replacing.reduce() / CANDIDATES)
        candidates = self.replacing.get_prefix_sum_idx(targets)
        oldest = int(candidates[np.argmin(self.births[candidates])])
        self.t += 1
        self.births[oldest] = self.t
        self.sampling[oldest] = self.greatest**ALPHA
        self.replacing[oldest] = self.greatest**-GAMMA

    def _draw(self) -> tuple[NDArray[np.int64], Floats]:
        targets = (self.batch_slices + self.rng.random(BATCH)) * (self.sampling.reduce() / BATCH)
        slots = self.sampling.get_prefix_sum_idx(targets)
        return slots, (self.sampling[slots] / self.least**ALPHA) ** -BETA

    def draw_update(self, priorities: Floats) -> None:
        """Draw by p ** alpha, weigh, update."""
        slots, _ = self._draw()
        self.sampling[slots] = priorities**ALPHA
        self.least, self.greatest = min(self.least, priorities.min()), max(self.greatest, priorities.max())


class Cpprb:
    """Two of cpprb's prioritized buffers (C++), one with p ** -gamma for its priorities, and the births.

    cpprb has no eviction by priority, and cannot draw without gathering what it has stored: that is one byte here.
    """

    def __init__(self, priorities: Floats, rng: np.random.Generator) -> None:
        from cpprb import PrioritizedReplayBuffer

        del rng  # it has one of its own
        capacity = priorities.size
        column = {"nothing": {"shape": 1, "dtype": np.uint8}}
        self.t = capacity
        self.births = np.arange(1, capacity + 1)
        self.greatest = float(priorities.max())
        self.sampling = PrioritizedReplayBuffer(capacity, column, alpha=ALPHA, eps=1e-6)
        self.replacing = PrioritizedReplayBuffer(capacity, column, alpha=1.0, eps=0.0)
        nothing = np.zeros(capacity, dtype=np.uint8)
        self.sampling.add(nothing=nothing, priorities=priorities)
        self.replacing.add(nothing=nothing, priorities=priorities**-GAMMA)

    def insert(self) -> None:
        """Of the candidates drawn by p ** -gamma, the oldest makes room."""
        candidates = self.replacing.sample(CANDIDATES, beta=0.0)["indexes"]
        oldest = int(candidates[np.argmin(self.births[candidates])])
        self.t += 1
        self.births[oldest] = self.t
        self.sampling.update_priorities([oldest], [self.greatest])
        self.replacing.update_priorities([oldest], [self.greatest**-GAMMA])

    def draw_update(self, priorities: Floats) -> None:
        """Draw by p ** alpha, weigh, update."""
        self.sampling.update_priorities(self.sampling.sample(BATCH, beta=BETA)["indexes"], priorities)


class PythonTree:
    """A binary segment tree in a list, built as in OpenAI's baselines, which DPSR's authors started from."""

    def __init__(self, operation: Callable[[float, float], float], neutral: float, leaves: list[float]) -> None:
        self.operation = operation
        self.width = 1 << (len(leaves) - 1).bit_length()
        self.nodes = [neutral] * self.width + leaves + [neutral] * (self.width - len(leaves))
        for node in range(self.width - 1, 0, -1):
            self.nodes[node] = operation(self.nodes[2 * node], self.nodes[2 * node + 1])

    def __setitem__(self, leaf: int, number: float) -> None:
        node = leaf + self.width
        self.nodes[node] = number
        node //= 2
        while node >= 1:
            self.nodes[node] = self.operation(self.nodes[2 * node], self.nodes[2 * node + 1])
            node //= 2

    def reduce(self, start: int, stop: int) -> float:
        """The operation over the leaves from `start` to `stop` (exclusive)."""
        return self._reduce(start, stop, 1, 0, self.width)

    def find(self, target: float) -> int:
        """The leaf in whose share of the sum the target falls."""
        assert 0 <= target <= self.reduce(0, self.width) + 1e-5
        node = 1
        while node < self.width:
            if self.nodes[2 * node] > target:
                node = 2 * node
            else:
                target -= self.nodes[2 * node]
                node = 2 * node + 1
        return node - self.width

    def _reduce(self, start: int, stop: int, node: int, first: int, end: int) -> float:
        if (start, stop) == (first, end):
            return self.nodes[node]
        middle = (first + end) // 2
        if stop <= middle:
            return self._reduce(start, stop, 2 * node, first, middle)
        if start >= middle:
            return self._reduce(start, stop, 2 * node + 1, middle, end)
        left = self._reduce(start, middle, 2 * node, first, middle)
        return self.operation(left, self._reduce(middle, stop, 2 * node + 1, middle, end))


class Python:
    """The structure of the authors' code: trees as Python lists, candidates drawn one after the other."""

    def __init__(self, priorities: Floats, rng: np.random.Generator) -> None:
        del rng  # Python's own is faster for single numbers
        self.random = random.Random(0)
        self.greatest = float(priorities.max())
        self.births = list(range(1, priorities.size + 1))
        self.t = priorities.size
        self.sampling = PythonTree(operator.add, 0.0, (priorities**ALPHA).tolist())
        self.replacing = PythonTree(operator.add, 0.0, (priorities**-GAMMA).tolist())
        self.least = PythonTree(min, float("inf"), (priorities**ALPHA).tolist())

    def insert(self) -> None:
        """Of the candidates drawn by p ** -gamma, the oldest makes room."""
        oldest = min(self._draw(self.replacing, CANDIDATES), key=self.births.__getitem__)
        self.t += 1
        self.births[oldest] = self.t
        self.sampling[oldest] = self.least[oldest] = self.greatest**ALPHA
        self.replacing[oldest] = self.greatest**-GAMMA

    def draw_update(self, priorities: Floats) -> None:
        """Draw by p ** alpha, weigh, update."""
        slots = self._draw(self.sampling, BATCH)
        least = self.least.reduce(0, len(self.births))
        np.array([(self.sampling.nodes[self.sampling.width + slot] / least) ** -BETA for slot in slots])
        for slot, priority in zip(slots, priorities.tolist(), strict=True):
            self.sampling[slot] = self.least[slot] = priority**ALPHA
            self.greatest = max(self.greatest, priority)

    def _draw(self, tree: PythonTree, count: int) -> list[int]:
        width = tree.reduce(0, len(self.births)) / count
        return [tree.find((i + self.random.random()) * width) for i in range(count)]


PEERS: dict[str, type[Any]] = {"tianshou": Tianshou, "cpprb": Cpprb, "python": Python}


def repeat(trees: Trees, work: str, count: int) -> tuple[float, float]:
    """Do a work ("insert" or "draw_update") `count` times; the CPU and wall seconds that it took."""
    rows = np.random.default_rng(1).lognormal(-3.0, 1.0, (count, BATCH))
    gc.collect()
    gc.disable()  # as for ours
    cpu, wall = time.process_time(), time.perf_counter()
    if work == "insert":
        for _ in range(count):
            trees.insert()
    else:
        for priorities in rows:
            trees.draw_update(priorities)
    taken = time.process_time() - cpu, time.perf_counter() - wall
    gc.enable()
    return taken


def main() -> None:
    rng = np.random.default_rng(0)
    trees: Trees = PEERS[sys.argv[1]](rng.lognormal(-3.0, 1.0, int(sys.argv[2])), rng)
    print("ready", flush=True)
    for line in sys.stdin:
        work, count = line.split()
        repeat(trees, work, int(count) // WARM_UP)
        print(*repeat(trees, work, int(count)), flush=True)


if __name__ == "__main__":
    main()
