"""Replays with real transitions in them: an environment that is played at random."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dpsr_apex.config import ReplayConfig
from dpsr_apex.envs.corridor import Corridor
from dpsr_apex.envs.make import make_stacked
from dpsr_apex.envs.stacked import StackedEnv
from dpsr_apex.inspection.moments import Moment, moments_in
from dpsr_apex.replay.memory import DpsrReplay
from dpsr_apex.replay.transitions import Transitions
from dpsr_apex.roles.n_step import Arrived, NStep, Start

CAPACITY = 40
CONFIG = ReplayConfig(method="double", capacity=CAPACITY, replace_candidates=8)


def cartpole() -> StackedEnv:
    return make_stacked("CartPole-v1", seed=1)


def corridor(stack: int = 1) -> StackedEnv:
    return StackedEnv(Corridor(), stack, seed=0)


def played(env: StackedEnv, count: int, n_steps: int = 1) -> Transitions:
    """At least so many transitions of random play."""
    rng = np.random.default_rng(0)
    pending = NStep(n_steps, 0.99)
    arrived: list[Arrived] = []
    while len(arrived) < count:
        start = Start(env.stack, int(rng.integers(env.actions)), env.snapshot())
        step = env.step(start.action)
        arrived += pending.push(start, step.reward, env.stack, step.terminal, step.truncated)
        if step.terminal or step.truncated:
            env.reset()
    return Transitions(
        s_tm1=[one.start.stack for one in arrived],
        a_tm1=np.array([one.start.action for one in arrived]),
        r_t=np.array([one.reward for one in arrived], np.float32),
        s_t=[one.end for one in arrived],
        terminal=np.array([one.terminal for one in arrived]),
        n_steps=np.array([one.n_steps for one in arrived], np.uint8),
        snapshots=[one.start.snapshot for one in arrived],
    )


def filled(transitions: Transitions) -> DpsrReplay:
    """A replay that has taken them, with priorities of all sizes, some of them equal."""
    replay = DpsrReplay(CONFIG, 1_000, np.random.default_rng(2))
    errors = np.random.default_rng(3).integers(1, 12, len(transitions)) / 7
    replay.insert(transitions, errors)
    return replay


def with_gains(replay: DpsrReplay, gains: NDArray[np.float32]) -> DpsrReplay:
    """The same replay as if these had been recycled that have a gain."""
    facts, arrays = replay.save()
    again = DpsrReplay(replay.config, 1_000, np.random.default_rng(2))
    again.load(facts, arrays | {"gains": gains})
    return again


def some_moments(env: StackedEnv, count: int = 12, n_steps: int = 1) -> list[Moment]:
    replay = filled(played(env, count, n_steps))
    return moments_in(replay, np.arange(replay.size))
