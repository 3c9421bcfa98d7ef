"""The single-process mode: actor, replay and learner in one thread, their messages passed by direct call.

Read `Solo.step` beside the paper's Algorithm 1. Everything is reproducible: all randomness comes from the run's seed.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from dpsr_apex.agent.dqn import Update
from dpsr_apex.config import Config
from dpsr_apex.replay.memory import DpsrReplay
from dpsr_apex.roles.actor import Actor
from dpsr_apex.roles.build import TRAINING, build_agent, build_env, seeds
from dpsr_apex.roles.learner import Learner
from dpsr_apex.roles.replay_server import ReplayServer
from dpsr_apex.state import State
from dpsr_apex.wire.messages import Insert


class Solo:
    """One run of one process."""

    def __init__(self, config: Config) -> None:
        agent_seed, actor_seed, replay_seed, recycler_seed, *env_seeds = seeds(
            config, TRAINING, 4 + config.actor.environments
        )
        envs = [build_env(config, seed, training=True) for seed in env_seeds]
        recycler = build_env(config, recycler_seed, training=True)
        self.agent = build_agent(config, recycler, agent_seed)
        self.actor = Actor(config, self.agent, envs, recycler, np.random.default_rng(actor_seed))
        replay = DpsrReplay(config.replay, config.run.total_steps, np.random.default_rng(replay_seed))
        self.replay = ReplayServer(replay, config)
        self.learner = Learner(config.learner, self.agent, recycler.codec)

    @property
    def t(self) -> int:
        """The one clock: transitions inserted so far."""
        return self.replay.replay.t

    def step(self) -> list[Update]:
        """One step of every environment, with all that Algorithm 1 does for it; the updates it led to are returned."""
        insert = self.actor.step()
        if insert is None:
            return []
        return [update for one in _one_by_one(insert) for update in self._tick(one)]

    def _tick(self, insert: Insert) -> list[Update]:
        """One tick of t: a round that it opens is over before anything else happens."""
        inserted, rounds = self.replay.insert(insert)
        self.actor.inserted(inserted)
        for recycle in rounds:
            recycled = self.actor.recycle(recycle)
            self.replay.recycled(recycled)
            if recycled.failed.size:
                self.replay.replay.expire(recycle.round_number)
        return self._learn()

    def _learn(self) -> list[Update]:
        updates = []
        while batch := self.replay.sample(self.learner.want()):
            priorities, update = self.learner.learn(batch, self.learner.prepare(batch))
            self.replay.priorities(priorities)
            updates.append(update)
        return updates

    def save(self) -> dict[str, State]:
        """Everything, part by part."""
        return {"actor": self.actor.save(), "replay": self.replay.save(), "learner": self.learner.save()}

    def load(self, parts: dict[str, State]) -> None:
        """Become what `save` was called on; the config must be the same."""
        self.actor.load(parts["actor"])
        self.replay.load(parts["replay"])
        self.learner.load(parts["learner"])

    def close(self) -> None:
        """Let go of the environments."""
        self.actor.close()


def _one_by_one(insert: Insert) -> Iterator[Insert]:
    """The same transitions, each in a message of its own."""
    for row in range(len(insert.transitions)):
        td_errors = None if insert.td_errors is None else insert.td_errors[row : row + 1]
        yield Insert(insert.transitions.rows(row, row + 1), td_errors)
