"""Checks before a new run is started: its environment, its agent, its device, and the memory that it needs."""

from __future__ import annotations

import time
import traceback
from pathlib import Path
from typing import NamedTuple

import numpy as np

from dpsr_apex.config import Config, ReplayConfig
from dpsr_apex.envs.check import Result, ensure_restorable
from dpsr_apex.envs.snapshot import UnusableEnvironment
from dpsr_apex.envs.stacked import StackedEnv
from dpsr_apex.errors import UserError
from dpsr_apex.formatting import number
from dpsr_apex.live.console import make_console
from dpsr_apex.machine import available_memory
from dpsr_apex.record.moments import read_moments
from dpsr_apex.roles.build import build_agent, build_env, one_thread
from dpsr_apex.roles.memory import Sizes, describe_memory, estimate_memory, measure_sizes
from dpsr_apex.roles.starts import ensure_startable

LEAST_TRIED, MOST_TRIED = 100, 300  # environment steps that are tried before a run is started
TRIED_SECONDS = 0.2  # after which no more are tried than these few


class NotEnoughMemory(UserError):
    """Raised for a run that would not fit into the memory of this machine."""


def ensure_memory(config: Config, sizes: Sizes) -> None:
    """Print the memory that a run will need on this machine; reject a run that needs more than is available."""
    needed, available = estimate_memory(config, sizes), available_memory()
    make_console().print(describe_memory(config, needed, available), soft_wrap=True)
    if config.system.memory_check and available is not None and needed.total > available:
        remedy = f"reduce replay.capacity ({config.replay.capacity}), or set system.memory_check=false to start anyway"
        raise NotEnoughMemory(f"the run would need more memory than is available: {remedy}")


def ensure_device(config: Config) -> None:
    """Reject a device that this machine does not have; torch is loaded only if one is named."""
    if config.learner.device == "cuda":
        from dpsr_apex.agent.devices import choose_device

        choose_device(config.learner.device)


class Usable(NamedTuple):
    """What was found out about an environment before a run is started."""

    sizes: Sizes  # of what the replay will store
    notes: list[str]  # how the environment is used, for the start of the run


def ensure_usable(config: Config) -> Usable:
    """Reject an environment, agent or network that the run could not use, before anything is written."""
    try:
        env, sizes = _tried_out(config)
    except UnusableEnvironment:
        raise
    except Exception as error:  # a user's environment may raise anything
        remedy = "Fix its reset() or step(), which were called with random actions."
        problem, trace = f"it raised {type(error).__name__}: {error}", "".join(traceback.format_exception(error))
        raise UnusableEnvironment(config.env.name, problem, remedy, trace) from error
    if ":" in config.learner.agent or config.learner.network != "auto":  # the others always fit, and torch loads slowly
        build_agent(one_thread(config), env, 0)
    if config.actor.start_from:
        _ensure_startable(config, config.actor.start_from)
    notes = [f"Observations: {env.conversion}"] if env.conversion else []
    if not config.replay.recycles:
        return Usable(sizes, notes)
    if env.actions < 2:
        remedy = "Choose a method without recycling, such as replay.method = 'double'."
        raise UnusableEnvironment(config.env.name, "it has only one action, so recycling cannot take another", remedy)
    result = ensure_restorable(config.env.name, config.env.arguments, config.env.stack, config.env.wrappers)
    if result.by_history:
        notes.append(f"{result.history_cost}, {_replaying_time(config.replay, result)}")
    return Usable(sizes, notes)


def _ensure_startable(config: Config, path: str) -> None:
    """Reject moments at which episodes of this run could not begin."""
    moments = read_moments(Path(path))
    env = build_env(config, 0, training=True)
    try:
        ensure_startable(env, moments.environment, moments.transitions, path)
    finally:
        env.close()


def _replaying_time(replay: ReplayConfig, result: Result) -> str:
    """Return how much time restoring states by their history will add to a run."""
    if replay.recycle_share > 0:
        restores = replay.recycle_share / (1 - replay.recycle_share) / replay.recycle_steps
    else:
        restores = replay.recycle_candidates / replay.recycle_period
    # States are found all over an episode, so that half of it is replayed on average.
    seconds = 10_000 * restores * result.episode_seconds / 2
    return f"about {number(seconds, 2)} s per 10,000 steps of the run"


def _tried_out(config: Config) -> tuple[StackedEnv, Sizes]:
    """Take some random steps, each of which is validated; return the environment, closed, and the sizes of its data."""
    env = build_env(config, 0, training=True)
    rng = np.random.default_rng(0)
    frames: list[bytes] = []
    snapshots: list[bytes] = []
    enough = time.monotonic() + TRIED_SECONDS
    try:
        while len(frames) < LEAST_TRIED or (len(frames) < MOST_TRIED and time.monotonic() < enough):
            snapshots.append(env.snapshot())
            step = env.step(int(rng.integers(env.actions)))
            frames.append(env.stack[-1])
            if step.terminal or step.truncated:
                env.reset()
    finally:
        env.close()
    return env, measure_sizes(env.observation_shape, frames, snapshots)
