"""Build the agent that a config names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from dpsr_apex.agent.protocol import Agent
from dpsr_apex.agents import AGENTS
from dpsr_apex.config import ConfigError, LearnerConfig
from dpsr_apex.imports import load_class

METHODS: Final = tuple(name for name in vars(Agent) if not name.startswith("_"))  # of the protocol


def build_agent(
    config: LearnerConfig,
    observation_shape: Sequence[int],
    pixels: bool,
    actions: int,
    seed: int,
    threads: int | None = None,
) -> Agent:
    """Return the agent that `learner.agent` names, with new weights; raise ConfigError if it cannot be used."""
    entry = AGENTS.get(config.agent)
    try:
        cls = load_class(entry.cls if entry else config.agent)
        if missing := [name for name in METHODS if not hasattr(cls, name)]:
            raise ConfigError(f"learner.agent = {config.agent!r} is not an agent: it has no {', '.join(missing)}")
        agent: Agent = cls(config, observation_shape, pixels, actions, seed, threads)
    except ConfigError:
        raise
    except (ImportError, TypeError) as error:
        raise ConfigError(f"learner.agent = {config.agent!r} cannot be built: {error}") from error
    return agent
