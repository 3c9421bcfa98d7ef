"""The single-process mode: actor, replay and learner in one thread, each called directly.

Compare `Solo.step` with the paper's Algorithm 1. Everything is reproducible: all randomness comes from the run's seed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence

import numpy as np

from dpsr_apex.agent.protocol import Update
from dpsr_apex.config import Config
from dpsr_apex.protocol.conversions import batch_message, chains_of, recycle_request
from dpsr_apex.protocol.quarantine import Quarantine
from dpsr_apex.protocol.rate_limiter import RateLimiter
from dpsr_apex.replay.replay import Replay
from dpsr_apex.replay.transitions import Transitions, concatenate, pack, unpack
from dpsr_apex.roles.actor import Actor, Collected
from dpsr_apex.roles.build import TRAINING, build_agent, build_env, seeds
from dpsr_apex.roles.learner import Learner, unusable
from dpsr_apex.roles.starts import NO_STARTS
from dpsr_apex.state import State

ERA = 0  # in a single process the replay is never restarted while the learner is running


class Solo:
    """A single-process run."""

    def __init__(self, config: Config, starts: Transitions = NO_STARTS) -> None:
        """Start a run in which a share of the episodes begins at the states of the transitions `starts`."""
        agent_seed, actor_seed, replay_seed, recycler_seed, *env_seeds = seeds(
            config, TRAINING, 4 + config.actor.environments
        )
        envs = [build_env(config, seed, training=True) for seed in env_seeds]
        recycler = build_env(config, recycler_seed, training=True)
        self.agent = build_agent(config, recycler, agent_seed)
        self.actor = Actor(config, self.agent, envs, recycler, np.random.default_rng(actor_seed), starts)
        self.replay = Replay(
            config.replay, config.run.total_steps, np.random.default_rng(replay_seed), config.run.environment_steps
        )
        self.rate = RateLimiter.of(config)
        self.learner = Learner(config.learner, config.run.total_steps, self.agent, recycler.codec, recycler.actions)
        self.quarantine = Quarantine(self.replay)
        self._batch_size = config.learner.batch_size
        self._waiting: deque[Collected] = deque()  # single transitions of the last step, after the last t

    @property
    def t(self) -> int:
        """The clock: transitions inserted so far."""
        return self.replay.t

    def step(self) -> list[Update]:
        """Step every environment once, with everything that Algorithm 1 does for it; return the updates made.

        A step can complete several transitions. Those after the last t are not inserted: they wait until the run is
        continued with more steps.
        """
        if not self._waiting and (collected := self.actor.step()):
            self._waiting.extend(collected.one_by_one())
        updates: list[Update] = []
        while self._waiting and self.replay.remaining:
            updates += self._tick(self._waiting.popleft())
        return updates

    def _tick(self, one: Collected) -> list[Update]:
        """Insert one transition; a round that it opens completes before anything else happens."""
        rounds = self.replay.insert(*one)
        self.actor.set_clock(self.t)
        for round_ in rounds:
            answer = self.actor.recycle(recycle_request(round_, ERA))
            self.replay.answer(round_.number, chains_of(answer))
            if answer.failed.size:
                self.replay.expire(round_.number)
            for identity, reason in zip(answer.failed.tolist(), answer.reasons, strict=True):
                self.quarantine.strike([identity], reason)
            self.actor.set_clock(self.t)
        return self._learn()

    def _learn(self) -> list[Update]:
        updates = []
        while self.rate.may_sample(self.t) and self.replay.size:
            self.rate.batches += 1
            batch = batch_message(self.replay.sample(self._batch_size), self.t, ERA)
            prepared = self.learner.prepare(batch)
            priorities, update, found = self.learner.learn(batch, prepared)
            self.replay.update_priorities(priorities.identities, priorities.td_errors)
            for message in (*unusable(batch, prepared.faults), *found):
                self.quarantine.evict(message.identities.tolist(), message.reason)
            updates += [] if update is None else [update]
        return updates

    def save(self) -> dict[str, State]:
        """Return the whole state, by part."""
        facts, arrays = self.replay.save()
        strikes = self.quarantine.save()
        replay = State({"replay": facts, "rate": self.rate.save().facts, "strikes": strikes}, arrays)
        parts = {"actor": self.actor.save(), "replay": replay, "learner": self.learner.save()}
        return parts | {"waiting": _save_waiting(self._waiting)} if self._waiting else parts

    def load(self, parts: dict[str, State]) -> None:
        """Restore a state returned by `save`; the config must be the same."""
        self.actor.load(parts["actor"])
        facts, arrays = parts["replay"]
        self.replay.load(facts["replay"], arrays)
        self.rate.load(State(facts["rate"], {}))
        self.quarantine.load(facts["strikes"])
        self.learner.load(parts["learner"])
        self._waiting = deque(_load_waiting(parts["waiting"]) if "waiting" in parts else ())

    def close(self) -> None:
        """Close the environments."""
        self.actor.close()


def _save_waiting(waiting: Sequence[Collected]) -> State:
    td_errors = [one.td_errors.item() for one in waiting if one.td_errors is not None]
    return State({"td_errors": td_errors}, pack(concatenate([one.transitions for one in waiting])))


def _load_waiting(state: State) -> Iterator[Collected]:
    td_errors = state.facts["td_errors"]
    return Collected(unpack(state.arrays), np.array(td_errors) if td_errors else None).one_by_one()
