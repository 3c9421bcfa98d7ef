"""A plain PyTorch update with our network and loss, from local numpy arrays: updates per second.

Runs in the peers' environment. Prints "ready" once it is set up; then reads a number of seconds per line, and prints
the updates per second in that time and the CPU seconds per update.

It is what a careful user would write: dueling double DQN, importance weights, Huber loss, clipped gradients, Adam; new
priorities are computed and discarded. Nothing is compressed or sent.
"""

from __future__ import annotations

import sys
import time

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import smooth_l1_loss

CAPACITY = 4_000
BATCH = 32
ACTIONS = 4
DISCOUNT = 0.99
CLIP = 10.0


class Network(nn.Module):
    """Three convolutions and two heads of 256."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for channels, filters, kernel, stride in ((4, 32, 8, 4), (32, 64, 4, 2), (64, 64, 3, 1)):
            layers += [nn.Conv2d(channels, filters, kernel, stride), nn.ReLU()]
        self.torso = nn.Sequential(*layers, nn.Flatten())
        self.value = nn.Sequential(nn.Linear(3136, 256), nn.ReLU(), nn.Linear(256, 1))
        self.advantage = nn.Sequential(nn.Linear(3136, 256), nn.ReLU(), nn.Linear(256, ACTIONS))

    def forward(self, observations: Tensor) -> Tensor:
        """Return Q-values of shape (batch, actions)."""
        features = self.torso(observations)
        advantage: Tensor = self.advantage(features)
        value: Tensor = self.value(features)
        return value + advantage - advantage.mean(dim=1, keepdim=True)


class PlainDqn:
    """The arrays, the networks and the optimizer."""

    def __init__(self) -> None:
        self._rng = np.random.default_rng(0)
        shape = (CAPACITY, 4, 84, 84)
        self._s_tm1 = self._rng.integers(0, 256, shape, dtype=np.uint8)
        self._s_t = self._rng.integers(0, 256, shape, dtype=np.uint8)
        self._actions = self._rng.integers(0, ACTIONS, CAPACITY)
        self._rewards = self._rng.random(CAPACITY, dtype=np.float32)
        self._terminal = self._rng.random(CAPACITY) < 0.01
        self._online, self._target = Network(), Network()
        self._target.load_state_dict(self._online.state_dict())
        self._optimizer = torch.optim.Adam(self._online.parameters(), lr=1e-4)

    def update(self) -> Tensor:
        """Sample a batch, update the network, and return the new priorities."""
        rows = self._rng.integers(0, CAPACITY, BATCH)
        weights = torch.ones(BATCH)
        s_tm1, s_t = (torch.from_numpy(states[rows]).float() / 255 for states in (self._s_tm1, self._s_t))
        actions = torch.from_numpy(self._actions[rows])[:, None]
        with torch.no_grad():
            best = self._online(s_t).argmax(dim=1, keepdim=True)
            bootstrap = self._target(s_t).gather(1, best)[:, 0]
            not_terminal = torch.from_numpy(~self._terminal[rows])
            values = torch.from_numpy(self._rewards[rows]) + DISCOUNT * not_terminal * bootstrap
        taken = self._online(s_tm1).gather(1, actions)[:, 0]
        loss = (weights * smooth_l1_loss(taken, values, reduction="none")).mean()
        self._optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]  # untyped in torch
        nn.utils.clip_grad_norm_(self._online.parameters(), CLIP)
        self._optimizer.step()
        priorities: Tensor = (values - taken).detach().abs()
        return priorities


def main() -> None:
    torch.set_num_threads(1)
    plain = PlainDqn()
    for _ in range(10):
        plain.update()
    print("ready", flush=True)
    for line in sys.stdin:
        started, cpu, updates = time.perf_counter(), time.process_time(), 0
        while time.perf_counter() - started < float(line):
            plain.update()
            updates += 1
        seconds = time.perf_counter() - started
        print(updates / seconds, (time.process_time() - cpu) / updates, flush=True)


if __name__ == "__main__":
    main()
