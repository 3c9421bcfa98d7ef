"""DPSR's insertion, and sampling with updates, as a user would build them on other libraries' segment trees.

Runs in the peers' environment: `trees.py NAME CAPACITY`. Prints "ready" once it is filled; then reads a task and a
count per line, and prints the CPU and wall seconds that the task took.

All do less than our replay, in their favour: they store no transitions, have no identities, and track the maximum
priority (tianshou: also the minimum) as their own replays do, as running extremes that are never corrected.
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
WARM_UP = 4  # 1 / WARM_UP of the operations are run before timing, to fill the caches

Floats = NDArray[np.float64]


class Trees(Protocol):
    """The operations that are measured."""

    def insert(self) -> None:
        """Make one common replacement by a transition of maximum priority."""

    def sample_update(self, priorities: Floats) -> None:
        """Sample a batch with weights and set its priorities, as needed for prioritized sampling only."""


class Tianshou:
    """Two of tianshou's segment trees (numba), and the insertion times."""

    def __init__(self, priorities: Floats, rng: np.random.Generator) -> None:
        from tianshou.data import SegmentTree

        capacity = priorities.size
        self.rng = rng
        self.t = capacity
        self.births = np.arange(1, capacity + 1)
        self.minimum, self.maximum = priorities.min(), priorities.max()
        self.sampling, self.replacing = SegmentTree(capacity), SegmentTree(capacity)
        self.sampling[np.arange(capacity)] = priorities**ALPHA
        self.replacing[np.arange(capacity)] = priorities**-GAMMA
        self.slices, self.batch_slices = np.arange(CANDIDATES), np.arange(BATCH)

    def insert(self) -> None:
        """Sample candidates by p ** -gamma and replace the oldest of them."""
        targets = (self.slices + self.rng.random(CANDIDATES)) * (self.replacing.reduce() / CANDIDATES)
        candidates = self.replacing.get_prefix_sum_idx(targets)
        oldest = int(candidates[np.argmin(self.births[candidates])])
        self.t += 1
        self.births[oldest] = self.t
        self.sampling[oldest] = self.maximum**ALPHA
        self.replacing[oldest] = self.maximum**-GAMMA

    def _sample(self) -> tuple[NDArray[np.int64], Floats]:
        targets = (self.batch_slices + self.rng.random(BATCH)) * (self.sampling.reduce() / BATCH)
        slots = self.sampling.get_prefix_sum_idx(targets)
        return slots, (self.sampling[slots] / self.minimum**ALPHA) ** -BETA

    def sample_update(self, priorities: Floats) -> None:
        """Sample by p ** alpha, compute weights, update priorities."""
        slots, _ = self._sample()
        self.sampling[slots] = priorities**ALPHA
        self.minimum, self.maximum = min(self.minimum, priorities.min()), max(self.maximum, priorities.max())


class Cpprb:
    """Two of cpprb's prioritized buffers (C++), one with p ** -gamma as priorities, and the insertion times.

    cpprb has no eviction by priority, and cannot sample without gathering stored data: here that is one byte.
    """

    def __init__(self, priorities: Floats, rng: np.random.Generator) -> None:
        from cpprb import PrioritizedReplayBuffer

        del rng  # it has its own
        capacity = priorities.size
        column = {"unused": {"shape": 1, "dtype": np.uint8}}
        self.t = capacity
        self.births = np.arange(1, capacity + 1)
        self.maximum = float(priorities.max())
        self.sampling = PrioritizedReplayBuffer(capacity, column, alpha=ALPHA, eps=1e-6)
        self.replacing = PrioritizedReplayBuffer(capacity, column, alpha=1.0, eps=0.0)
        unused = np.zeros(capacity, dtype=np.uint8)
        self.sampling.add(unused=unused, priorities=priorities)
        self.replacing.add(unused=unused, priorities=priorities**-GAMMA)

    def insert(self) -> None:
        """Sample candidates by p ** -gamma and replace the oldest of them."""
        candidates = self.replacing.sample(CANDIDATES, beta=0.0)["indexes"]
        oldest = int(candidates[np.argmin(self.births[candidates])])
        self.t += 1
        self.births[oldest] = self.t
        self.sampling.update_priorities([oldest], [self.maximum])
        self.replacing.update_priorities([oldest], [self.maximum**-GAMMA])

    def sample_update(self, priorities: Floats) -> None:
        """Sample by p ** alpha, compute weights, update priorities."""
        self.sampling.update_priorities(self.sampling.sample(BATCH, beta=BETA)["indexes"], priorities)


class PythonTree:
    """A binary segment tree in a list, as in OpenAI's baselines, on which the authors' code is based."""

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
        """Reduce the leaves from `start` to `stop` (exclusive)."""
        return self._reduce(start, stop, 1, 0, self.width)

    def find(self, target: float) -> int:
        """Return the leaf in whose share of the sum the target lies."""
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
    """The data structures of the authors' code: trees as Python lists, candidates sampled one after the other."""

    def __init__(self, priorities: Floats, rng: np.random.Generator) -> None:
        del rng  # Python's generator is faster for single numbers
        self.random = random.Random(0)
        self.maximum = float(priorities.max())
        self.births = list(range(1, priorities.size + 1))
        self.t = priorities.size
        self.sampling = PythonTree(operator.add, 0.0, (priorities**ALPHA).tolist())
        self.replacing = PythonTree(operator.add, 0.0, (priorities**-GAMMA).tolist())
        self.minimum = PythonTree(min, float("inf"), (priorities**ALPHA).tolist())

    def insert(self) -> None:
        """Sample candidates by p ** -gamma and replace the oldest of them."""
        oldest = min(self._sample(self.replacing, CANDIDATES), key=self.births.__getitem__)
        self.t += 1
        self.births[oldest] = self.t
        self.sampling[oldest] = self.minimum[oldest] = self.maximum**ALPHA
        self.replacing[oldest] = self.maximum**-GAMMA

    def sample_update(self, priorities: Floats) -> None:
        """Sample by p ** alpha, compute weights, update priorities."""
        slots = self._sample(self.sampling, BATCH)
        minimum = self.minimum.reduce(0, len(self.births))
        np.array([(self.sampling.nodes[self.sampling.width + slot] / minimum) ** -BETA for slot in slots])
        for slot, priority in zip(slots, priorities.tolist(), strict=True):
            self.sampling[slot] = self.minimum[slot] = priority**ALPHA
            self.maximum = max(self.maximum, priority)

    def _sample(self, tree: PythonTree, count: int) -> list[int]:
        width = tree.reduce(0, len(self.births)) / count
        return [tree.find((i + self.random.random()) * width) for i in range(count)]


PEERS: dict[str, type[Any]] = {"tianshou": Tianshou, "cpprb": Cpprb, "python": Python}


def repeat(trees: Trees, task: str, count: int) -> tuple[float, float]:
    """Run a task ("insert" or "sample_update") `count` times and return its CPU and wall seconds."""
    rows = np.random.default_rng(1).lognormal(-3.0, 1.0, (count, BATCH))
    gc.collect()
    gc.disable()  # as in our own measurement
    cpu, wall = time.process_time(), time.perf_counter()
    if task == "insert":
        for _ in range(count):
            trees.insert()
    else:
        for priorities in rows:
            trees.sample_update(priorities)
    elapsed = time.process_time() - cpu, time.perf_counter() - wall
    gc.enable()
    return elapsed


def main() -> None:
    rng = np.random.default_rng(0)
    trees: Trees = PEERS[sys.argv[1]](rng.lognormal(-3.0, 1.0, int(sys.argv[2])), rng)
    print("ready", flush=True)
    for line in sys.stdin:
        task, count = line.split()
        repeat(trees, task, int(count) // WARM_UP)
        print(*repeat(trees, task, int(count)), flush=True)


if __name__ == "__main__":
    main()
