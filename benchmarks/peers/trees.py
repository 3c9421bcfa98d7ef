"""DPSR's insertion, and sampling with updates, as a user would build them on other libraries' segment trees.

Runs in the peers' environment: `trees.py NAME CAPACITY`. Prints "ready" once it is filled; then reads a task and a
count per line, and prints the CPU and wall seconds that the task took.

All do less than our replay, in their favour: they store no transitions, have no identities, and track the maximum
priority (tianshou: also the minimum) as their own replays do, as running extremes that are never corrected.
"""

from __future__ import annotations

import gc
import sys
import time
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

ALPHA, BETA, GAMMA = 0.6, 0.4, 0.3
CANDIDATES = 256
BATCH = 32
OBSERVATION = 4  # numbers, as in CartPole
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


class CpprbBuffer:
    """cpprb's prioritized buffer as in a training loop on CartPole: add a step; sample and update."""

    def __init__(self, priorities: Floats, rng: np.random.Generator) -> None:
        from cpprb import PrioritizedReplayBuffer

        size = priorities.size
        observation = {"shape": OBSERVATION, "dtype": np.float32}
        columns: dict[str, dict[str, Any]] = {name: {"dtype": np.float32} for name in ("rew", "done")}
        columns |= {"obs": observation, "next_obs": observation, "act": {"dtype": np.int64}}
        self.t = 0
        self.observations = rng.normal(size=(size, OBSERVATION)).astype(np.float32)
        self.buffer = PrioritizedReplayBuffer(size, columns, alpha=ALPHA, eps=1e-6)
        zeros, obs = np.zeros(size, np.float32), self.observations
        self.buffer.add(obs=obs, next_obs=obs, rew=zeros, done=zeros, act=zeros, priorities=priorities)

    def insert(self) -> None:
        """Add one step, with the maximum priority."""
        self.t = (self.t + 1) % (len(self.observations) - 1)
        step = self.observations[self.t : self.t + 2]
        self.buffer.add(obs=step[0], act=1, rew=0.5, next_obs=step[1], done=0.0)

    def sample_update(self, priorities: Floats) -> None:
        """Sample transitions with weights, update their priorities."""
        batch = self.buffer.sample(BATCH, beta=BETA)
        self.buffer.update_priorities(batch["indexes"], priorities)


class TianshouBuffer:
    """tianshou's prioritized buffer as in a training loop on CartPole: add a step; sample and update."""

    def __init__(self, priorities: Floats, rng: np.random.Generator) -> None:
        from tianshou.data import Batch, PrioritizedReplayBuffer

        size = priorities.size
        self.observations = rng.normal(size=(size + 1, OBSERVATION)).astype(np.float32)
        self.t = 0
        self.batch = Batch
        never = np.zeros(size, np.bool_)
        self.buffer = PrioritizedReplayBuffer(size, ALPHA, BETA)
        self.insert()  # allocates the columns
        self.buffer.set_batch(
            Batch(
                obs=self.observations[:-1],
                obs_next=self.observations[1:],
                act=np.ones(size, np.int64),
                rew=np.full(size, 0.5),
                terminated=never,
                truncated=never.copy(),
                done=never.copy(),
                info=Batch(),
            )
        )
        self.buffer.init_weight(np.arange(size))
        self.buffer.update_weight(np.arange(size), priorities)
        self.buffer._size = size  # all rows are filled; adding them one by one would take minutes

    def insert(self) -> None:
        """Add one step, with the maximum priority."""
        self.t = (self.t + 1) % (len(self.observations) - 1)
        first, second = self.observations[self.t : self.t + 2]
        step = {"act": 1, "rew": 0.5, "terminated": False, "truncated": False, "info": {}}
        self.buffer.add(self.batch(obs=first, obs_next=second, **step))

    def sample_update(self, priorities: Floats) -> None:
        """Sample transitions with weights, update their priorities."""
        _, slots = self.buffer.sample(BATCH)
        self.buffer.update_weight(slots, priorities)


PEERS: dict[str, type[Any]] = {
    "tianshou": Tianshou,
    "cpprb": Cpprb,
    "cpprb_buffer": CpprbBuffer,
    "tianshou_buffer": TianshouBuffer,
}


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
