"""One run of stable-baselines3's DQN or sb3-contrib's QR-DQN until a score: CPU seconds of the training.

Runs in the peers' environment: `score.py ALGORITHM ENV TARGET STEPS CHECK EPISODES SEED`. Prints the CPU seconds
without evaluations, the steps, the last score and whether the score was reached.

The settings for CartPole and LunarLander are those of the RL Zoo. It has none for MinAtar: the network is that of the
MinAtar paper, and of four variants of its settings with Adam these took the least CPU time with DQN (seeds 10 and 11).
"""

from __future__ import annotations

import sys
import time
from typing import Any

import gymnasium
import numpy as np
import torch
from sb3_contrib import QRDQN
from stable_baselines3 import DQN
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from torch import nn


class Grid(BaseFeaturesExtractor):
    """MinAtar's network: one convolution of 16 channels, then 128 units."""

    def __init__(self, space: Any) -> None:
        super().__init__(space, 128)
        rows, columns, planes = space.shape
        self.layers = nn.Sequential(
            nn.Conv2d(planes, 16, 3),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(16 * (rows - 2) * (columns - 2), 128),
            nn.ReLU(),
        )

    def forward(self, observations: torch.Tensor) -> torch.Tensor:
        """Return the features of observations of shape (batch, rows, columns, planes)."""
        features: torch.Tensor = self.layers(observations.permute(0, 3, 1, 2).float())
        return features


WIDE = {"net_arch": [256, 256]}
CARTPOLE = {
    "learning_rate": 2.3e-3, "batch_size": 64, "buffer_size": 100_000, "learning_starts": 1_000, "gamma": 0.99,
    "target_update_interval": 10, "train_freq": 256, "gradient_steps": 128, "exploration_fraction": 0.16,
    "exploration_final_eps": 0.04, "steps": 50_000,
}  # fmt: skip
LUNAR_DQN = {
    "learning_rate": 6.3e-4, "batch_size": 128, "buffer_size": 50_000, "learning_starts": 0, "gamma": 0.99,
    "target_update_interval": 250, "train_freq": 4, "gradient_steps": -1, "exploration_fraction": 0.12,
    "exploration_final_eps": 0.1, "steps": 100_000,
}  # fmt: skip
LUNAR_QR = {
    "learning_rate": lambda left: 1.5e-3 * left, "batch_size": 128, "buffer_size": 100_000, "learning_starts": 10_000,
    "gamma": 0.995, "target_update_interval": 1, "train_freq": 256, "gradient_steps": -1,
    "exploration_fraction": 0.24, "exploration_final_eps": 0.18, "steps": 100_000,
}  # fmt: skip
MINATAR: dict[str, Any] = {
    "learning_rate": 1e-3, "batch_size": 32, "buffer_size": 100_000, "learning_starts": 1_000, "gamma": 0.99,
    "target_update_interval": 1_000, "train_freq": 4, "gradient_steps": 1, "exploration_fraction": 0.1,
    "exploration_final_eps": 0.05, "steps": 300_000,
    "policy_kwargs": {"features_extractor_class": Grid, "net_arch": [], "normalize_images": False},
}  # fmt: skip
SETTINGS: dict[tuple[str, str], dict[str, Any]] = {
    ("dqn", "CartPole-v1"): CARTPOLE | {"policy_kwargs": WIDE},
    ("qrdqn", "CartPole-v1"): CARTPOLE | {"policy_kwargs": WIDE | {"n_quantiles": 10}},
    ("dqn", "LunarLander-v3"): LUNAR_DQN | {"policy_kwargs": WIDE},
    ("qrdqn", "LunarLander-v3"): LUNAR_QR | {"policy_kwargs": WIDE | {"n_quantiles": 170}},
    ("dqn", "MinAtar"): MINATAR,
    ("qrdqn", "MinAtar"): MINATAR | {"policy_kwargs": MINATAR["policy_kwargs"] | {"n_quantiles": 50}},
}


class Flags(gymnasium.ObservationWrapper[Any, Any, Any]):
    """MinAtar's flags as numbers, with the package's rules as ours: no sticky actions, at most 2,500 steps."""

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        self.observation_space = gymnasium.spaces.Box(0, 255, env.observation_space.shape, np.uint8)

    def observation(self, observation: Any) -> Any:
        """Return 0 and 1 as bytes."""
        return observation.astype(np.uint8)


def make(name: str) -> gymnasium.Env[Any, Any]:
    """Return the environment."""
    if not name.startswith("MinAtar/"):
        return Monitor(gymnasium.make(name))
    from minatar.gym import register_envs

    register_envs()
    bare = gymnasium.make(f"{name}-v1", sticky_action_prob=0.0, max_episode_steps=2_500)
    return Monitor(Flags(bare))


class UntilScore(BaseCallback):
    """Evaluates every `check` steps, without counting that time, and ends the training at the score."""

    def __init__(self, name: str, target: float, check: int, episodes: int) -> None:
        super().__init__()
        self.env = make(name)
        self.env.reset(seed=1_000)
        self.target, self.check, self.episodes = target, check, episodes
        self.score, self.evaluating = -np.inf, 0.0

    def _on_step(self) -> bool:
        if self.num_timesteps % self.check:
            return True
        paused = time.process_time()
        scores, _ = evaluate_policy(self.model, self.env, self.episodes, return_episode_rewards=True)
        self.score = float(np.mean(scores))
        self.evaluating += time.process_time() - paused
        return self.score < self.target


def main() -> None:
    algorithm, name, target, steps, check, episodes, seed = sys.argv[1:]
    torch.set_num_threads(1)
    settings = dict(SETTINGS[algorithm, name.split("/")[0] if "/" in name else name])
    # Schedules run over the Zoo's number of steps; a run that has not reached the score by then continues.
    horizon = int(settings.pop("steps"))
    total = max(int(steps), horizon)
    settings["exploration_fraction"] *= horizon / total
    if callable(rate := settings["learning_rate"]):
        settings["learning_rate"] = lambda left: rate(max(1 - (1 - left) * total / horizon, 0.05))
    model = {"dqn": DQN, "qrdqn": QRDQN}[algorithm]("MlpPolicy", make(name), seed=int(seed), device="cpu", **settings)
    stopper = UntilScore(name, float(target), int(check), int(episodes))
    began = time.process_time()
    model.learn(total, callback=stopper)
    seconds = time.process_time() - began - stopper.evaluating
    print(seconds, model.num_timesteps, stopper.score, stopper.score >= float(target), flush=True)


if __name__ == "__main__":
    main()
