"""Replays filled_replay with transitions of random play in real environments."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dpsr_apex.config import ReplayConfig
from dpsr_apex.envs.corridor import Corridor
from dpsr_apex.envs.make import make_stacked
from dpsr_apex.envs.stacked import StackedEnv
from dpsr_apex.inspection.stored import StoredTransition, find_transitions
from dpsr_apex.replay.replay import Replay
from dpsr_apex.replay.transitions import Transitions, from_lists
from dpsr_apex.roles.n_step import Arrived, NStep, Start

CAPACITY = 40
CONFIG = ReplayConfig(method="double", capacity=CAPACITY, replace_candidates=8)


def cartpole() -> StackedEnv:
    return make_stacked("CartPole-v1", seed=1)


def corridor(stack: int = 1) -> StackedEnv:
    return StackedEnv(Corridor(), stack, seed=0)


def played(env: StackedEnv, count: int, n_steps: int = 1) -> Transitions:
    """Play at random and return at least `count` transitions."""
    rng = np.random.default_rng(0)
    pending = NStep(n_steps, 0.99)
    arrived: list[Arrived] = []
    while len(arrived) < count:
        start = Start(env.stack, int(rng.integers(env.actions)), env.snapshot())
        step = env.step(start.action)
        arrived += pending.push(start, step.reward, env.stack, step.terminal, step.truncated)
        if step.terminal or step.truncated:
            env.reset()
    return from_lists(
        s_tm1=[one.start.stack for one in arrived],
        a_tm1=np.array([one.start.action for one in arrived]),
        r_t=np.array([one.reward for one in arrived], np.float32),
        s_t=[one.end for one in arrived],
        terminal=np.array([one.terminal for one in arrived]),
        n_steps=np.array([one.n_steps for one in arrived], np.uint8),
        snapshots=[one.start.snapshot for one in arrived],
    )


def filled_replay(transitions: Transitions) -> Replay:
    """Insert transitions into a replay, with varied priorities of which some are equal."""
    replay = Replay(CONFIG, 1_000, np.random.default_rng(2))
    errors = np.random.default_rng(3).integers(1, 12, len(transitions)) / 7
    replay.insert(transitions, errors)
    return replay


def with_gains(replay: Replay, gains: NDArray[np.float32]) -> Replay:
    """Copy a replay and set the gains of its transitions, which marks those with a finite gain as recycled."""
    facts, arrays = replay.save()
    copy = Replay(replay.config, 1_000, np.random.default_rng(2))
    depths = np.isfinite(gains).astype(np.int32)
    copy.load(facts, arrays | {"gains": gains, "depths": depths})
    return copy


def stored_transitions(env: StackedEnv, count: int = 12, n_steps: int = 1) -> list[StoredTransition]:
    replay = filled_replay(played(env, count, n_steps))
    return find_transitions(replay, replay.identities)
