"""What a run has learnt, out of a checkpoint, for those who play with it."""

from __future__ import annotations

from dpsr_apex.agent.dqn import DqnAgent
from dpsr_apex.config import Config
from dpsr_apex.envs.stacked import StackedEnv
from dpsr_apex.roles.build import build_agent
from dpsr_apex.run.checkpoint import Checkpoint


def learnt_agent(config: Config, env: StackedEnv, checkpoint: Checkpoint) -> DqnAgent:
    """The agent with the weights of the checkpoint; ValueError where they are of another network."""
    agent = build_agent(config, env, 0)
    agent.load(checkpoint.parts["learner"].arrays)
    return agent
