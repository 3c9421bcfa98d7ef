"""From a config to the environments and the agent that the roles work with."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from dpsr_apex.config import Config
from dpsr_apex.envs.make import make_stacked
from dpsr_apex.envs.stacked import StackedEnv

if TYPE_CHECKING:
    from dpsr_apex.agent.dqn import DqnAgent

TRAINING, EVALUATION, ACTING = 0, 1, 2


def seeds(config: Config, purpose: int, count: int, which: int = 0) -> list[int]:
    """Independent seeds that follow from the run's own, different for each purpose, and for each clock or process."""
    sequence = np.random.SeedSequence([config.run.seed, purpose, which])
    return [int(word) >> 1 for word in sequence.generate_state(count)]  # Gymnasium takes 31 bits


def build_env(config: Config, seed: int, training: bool) -> StackedEnv:
    """The config's environment after its first reset."""
    return make_stacked(config.env.name, config.env.arguments, training, config.env.stack, seed)


def build_agent(config: Config, env: StackedEnv, seed: int) -> DqnAgent:
    """An agent with fresh weights that fits `env`."""
    from dpsr_apex.agent.dqn import DqnAgent  # here, so that an environment can be had without torch

    return DqnAgent(config.learner, env.observation_shape, env.shows_pixels, env.actions, seed, config.run.threads)


def one_thread(config: Config) -> Config:
    """The same for a process that must leave the other cores to others, and a GPU to the learner."""
    return replace(config, run=replace(config.run, threads=1), learner=replace(config.learner, device="cpu"))
