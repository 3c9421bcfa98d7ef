"""Build the environments and the agent of a config."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from dpsr_apex.config import Config
from dpsr_apex.envs.make import make_stacked
from dpsr_apex.envs.stacked import StackedEnv
from dpsr_apex.errors import UserError
from dpsr_apex.state import State

if TYPE_CHECKING:
    from dpsr_apex.agent.protocol import Agent, NetworkName

TRAINING, EVALUATION, ACTING = 0, 1, 2
NETWORKS: Final = ("online", "target")


class NoWeights(UserError):
    """Raised for a checkpoint that was written before the learner had sent its state."""


def seeds(config: Config, purpose: int, count: int, which: int = 0) -> list[int]:
    """Return `count` independent seeds derived from the run's seed, different for each `purpose` and `which`."""
    sequence = np.random.SeedSequence([config.run.seed, purpose, which])
    return [int(word) >> 1 for word in sequence.generate_state(count)]  # Gymnasium accepts 31 bits


def build_env(config: Config, seed: int, training: bool) -> StackedEnv:
    """Return the environment of a config, after its first reset.

    It records its history, if it must, only in a run that restores states.
    """
    env, restores = config.env, config.replay.recycles or bool(config.actor.start_from)
    made = make_stacked(env.name, env.arguments, training, env.stack, seed, env.wrappers, restores)
    if training:  # the rewards of an evaluation are not clipped, and not stored
        made.reward_limit = env.reward_limit
    return made


def build_agent(config: Config, env: StackedEnv, seed: int) -> Agent:
    """Return an agent for `env` with newly initialized weights."""
    from dpsr_apex.agent import build  # here, so that an environment can be built without torch

    observations = env.observation_shape, env.shows_pixels
    return build.build_agent(config.learner, *observations, env.actions, seed, config.run.threads)


def load_agent(config: Config, env: StackedEnv, learner: State) -> Agent:
    """Return an agent with the weights of a learner's saved state; raise ValueError if the networks differ."""
    agent = build_agent(config, env, 0)
    load_networks(agent, learner)
    return agent


def load_networks(agent: Agent, learner: State) -> None:
    """Load only the networks of a learner's saved state, for an agent that is not trained further."""
    for name, arrays in networks_of(learner).items():
        agent.load_weights(name, arrays)


def networks_of(learner: State) -> dict[NetworkName, dict[str, NDArray[Any]]]:
    """Return the weights in a learner's saved state, by network; raise NoWeights if there are none."""
    arrays = learner.arrays
    if not arrays:
        raise NoWeights("the checkpoint has no weights, because the learner had not sent any yet: use a later one")
    return {name: {key: arrays[key] for key in arrays if key.startswith(f"{name}.")} for name in NETWORKS}


def one_thread(config: Config) -> Config:
    """Return the config for a process that uses a single core and leaves the GPU to the learner."""
    return replace(config, run=replace(config.run, threads=1), learner=replace(config.learner, device="cpu"))
