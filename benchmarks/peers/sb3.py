"""stable-baselines3's DQN on Breakout with our network, in steady state: environment steps per second.

Runs in the peers' environment. Prints "ready" once updates have started; then reads a number of seconds per line, and
prints the steps and the updates per second in that time.

Its update does less than ours: it is not double DQN (one forward pass less), has no importance weights and no
priorities, and nothing is recycled. Its replay is small, so that filling it takes no time. Its environments are
stepped in its own process, because its `SubprocVecEnv` was slower (82 and 76 instead of 85 and 86 steps per second, on
two cores).
"""

from __future__ import annotations

import sys
import time
from typing import Any, NamedTuple

import ale_py
import gymnasium
import torch
from stable_baselines3 import DQN
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_atari_env
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.common.vec_env import VecFrameStack
from stable_baselines3.dqn.policies import CnnPolicy, QNetwork
from torch import Tensor, nn

STEPS_PER_UPDATE = 4
LEARNING_STARTS = 1_000
FEATURES, HEAD = 3136, 256


class Torso(BaseFeaturesExtractor):
    """The three convolutions."""

    def __init__(self, space: Any) -> None:
        super().__init__(space, FEATURES)
        layers: list[nn.Module] = []
        for channels, filters, kernel, stride in ((4, 32, 8, 4), (32, 64, 4, 2), (64, 64, 3, 1)):
            layers += [nn.Conv2d(channels, filters, kernel, stride), nn.ReLU()]
        self.layers = nn.Sequential(*layers, nn.Flatten())

    def forward(self, observations: Tensor) -> Tensor:
        """Return the features of each observation."""
        features: Tensor = self.layers(observations)
        return features


class Dueling(nn.Module):
    """Two heads of 256."""

    def __init__(self, actions: int) -> None:
        super().__init__()
        self.value = nn.Sequential(nn.Linear(FEATURES, HEAD), nn.ReLU(), nn.Linear(HEAD, 1))
        self.advantage = nn.Sequential(nn.Linear(FEATURES, HEAD), nn.ReLU(), nn.Linear(HEAD, actions))

    def forward(self, features: Tensor) -> Tensor:
        """Return Q-values of shape (batch, actions)."""
        advantage: Tensor = self.advantage(features)
        value: Tensor = self.value(features)
        return value + advantage - advantage.mean(dim=1, keepdim=True)


class DuelingQNetwork(QNetwork):
    """stable-baselines3's network with our heads."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.q_net = Dueling(int(self.action_space.n))  # type: ignore[assignment]  # DQN uses it as a module


class DuelingPolicy(CnnPolicy):
    """stable-baselines3's policy with our network."""

    def make_q_net(self) -> QNetwork:
        """Create the online or the target network."""
        options = self._update_features_extractor(self.net_args, features_extractor=None)
        return DuelingQNetwork(**options).to(self.device)


class Progress(NamedTuple):
    """Time, steps and updates so far."""

    seconds: float
    steps: int
    updates: int


class Measurement(BaseCallback):
    """Measures on command; in between, training is paused."""

    def __init__(self) -> None:
        super().__init__()
        self._start: Progress | None = None
        self._seconds = 0.0

    def _on_step(self) -> bool:
        now = Progress(time.perf_counter(), self.num_timesteps, self.model._n_updates)
        if self._start is None:
            if now.steps < 1.5 * LEARNING_STARTS:
                return True
            print("ready", flush=True)
        else:
            seconds = now.seconds - self._start.seconds
            if seconds < self._seconds:
                return True
            steps, updates = now.steps - self._start.steps, now.updates - self._start.updates
            print(steps / seconds, updates / seconds, flush=True)
        line = sys.stdin.readline()
        self._seconds = float(line or 0)
        self._start = now._replace(seconds=time.perf_counter())
        return bool(line)


def main() -> None:
    threads, environments = map(int, sys.argv[1:])
    gymnasium.register_envs(ale_py)
    torch.set_num_threads(threads)
    env = VecFrameStack(make_atari_env("BreakoutNoFrameskip-v4", n_envs=environments, seed=0), 4)
    model = DQN(
        DuelingPolicy,
        env,
        policy_kwargs={"features_extractor_class": Torso},
        buffer_size=4_000,
        batch_size=32,
        train_freq=(max(STEPS_PER_UPDATE // environments, 1), "step"),
        gradient_steps=1,
        learning_starts=LEARNING_STARTS,
        target_update_interval=1_000,
        exploration_fraction=1e-4,
        exploration_final_eps=0.05,
        learning_rate=1e-4,
        device="cpu",
    )
    model.learn(10_000_000, callback=Measurement())


if __name__ == "__main__":
    main()
