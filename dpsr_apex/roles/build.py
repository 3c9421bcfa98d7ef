"""From a config to the environments and the agent that the roles work with."""

from __future__ import annotations

import numpy as np

from dpsr_apex.agent.dqn import DqnAgent
from dpsr_apex.config import Config
from dpsr_apex.envs.make import make_stacked
from dpsr_apex.envs.stacked import StackedEnv

TRAINING, EVALUATION = 0, 1


def seeds(config: Config, purpose: int, count: int, t: int = 0) -> list[int]:
    """Independent seeds that follow from the run's own, different for each purpose and clock."""
    sequence = np.random.SeedSequence([config.run.seed, purpose, t])
    return [int(word) >> 1 for word in sequence.generate_state(count)]  # Gymnasium takes 31 bits


def build_env(config: Config, seed: int, training: bool) -> StackedEnv:
    """The config's environment after its first reset."""
    return make_stacked(config.env.name, config.env.arguments, training, config.env.stack, seed)


def build_agent(config: Config, env: StackedEnv, seed: int) -> DqnAgent:
    """An agent with fresh weights that fits `env`."""
    pixels = env.codec.dtype == np.uint8
    return DqnAgent(config.learner, env.observation_shape, pixels, env.actions, seed, config.run.threads)
