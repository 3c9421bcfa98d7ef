"""torchrl's TensorDictPrioritizedReplayBuffer as in a training loop on CartPole: add a step; sample and update.

Runs in the peers' environment: `torchrl_buffer.py CAPACITY`. Prints "ready" once it is filled; then reads a task
("insert" or "sample_update") and a count per line, and prints the CPU and wall seconds that the task took.

Its settings are the fastest of those that its documentation shows: memory on the CPU, one thread, no prefetching.
"""

from __future__ import annotations

import gc
import sys
import time

import torch
from tensordict import TensorDict
from torchrl.data import LazyTensorStorage, TensorDictPrioritizedReplayBuffer

ALPHA, BETA = 0.6, 0.4
BATCH = 32
OBSERVATION = 4  # numbers, as in CartPole
WARM_UP = 4  # 1 / WARM_UP of the operations are run before timing


class Buffer:
    """A full buffer, and steps for it."""

    def __init__(self, capacity: int) -> None:
        self.observations = torch.randn(capacity + 1, OBSERVATION)
        self.buffer = TensorDictPrioritizedReplayBuffer(
            alpha=ALPHA, beta=BETA, storage=LazyTensorStorage(capacity), batch_size=BATCH
        )
        self.t = 0
        self.buffer.extend(self.steps(torch.arange(capacity)))

    def steps(self, rows: torch.Tensor) -> TensorDict:
        """Return the steps that begin with these observations."""
        count = rows.shape
        return TensorDict(
            {
                "obs": self.observations[rows],
                "next_obs": self.observations[rows + 1],
                "action": torch.ones(count, dtype=torch.int64),
                "reward": torch.full(count, 0.5),
                "done": torch.zeros(count, dtype=torch.bool),
            },
            batch_size=count,
        )

    def insert(self, _errors: torch.Tensor) -> None:
        """Add one step, with the maximum priority."""
        self.t = (self.t + 1) % (len(self.observations) - 1)
        self.buffer.add(self.steps(torch.tensor(self.t)))

    def sample_update(self, errors: torch.Tensor) -> None:
        """Sample transitions with weights, update their priorities."""
        batch = self.buffer.sample()
        self.buffer.update_priority(batch["index"], errors)


def repeat(buffer: Buffer, task: str, count: int) -> tuple[float, float]:
    """Run a task `count` times and return its CPU and wall seconds."""
    rows = torch.rand(count, BATCH)
    call = {"insert": buffer.insert, "sample_update": buffer.sample_update}[task]
    gc.collect()
    gc.disable()  # as in our own measurement
    cpu, wall = time.process_time(), time.perf_counter()
    for row in rows:
        call(row)
    elapsed = time.process_time() - cpu, time.perf_counter() - wall
    gc.enable()
    return elapsed


def main() -> None:
    torch.set_num_threads(1)
    buffer = Buffer(int(sys.argv[1]))
    print("ready", flush=True)
    for line in sys.stdin:
        task, count = line.split()
        repeat(buffer, task, int(count) // WARM_UP)
        print(*repeat(buffer, task, int(count)), flush=True)


if __name__ == "__main__":
    main()
