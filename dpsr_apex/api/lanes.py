"""The steps of a user's environments, lane by lane, as transitions for the replay."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dpsr_apex.api import checks
from dpsr_apex.api.observations import Known, ObservationCodec
from dpsr_apex.config import Config
from dpsr_apex.errors import UserError
from dpsr_apex.replay.transitions import Stack
from dpsr_apex.roles.labels import Labeller
from dpsr_apex.roles.n_step import Arrived, NStep, Start
from dpsr_apex.state import State, join, split


class GivenStep(NamedTuple):
    """One step as a user passes it to a buffer, or the steps of all lanes: one row each."""

    obs: NDArray[Any]
    action: Any
    reward: Any
    next_obs: Any
    terminated: Any
    truncated: Any
    snapshot: Any
    final_obs: Any


class LaneStep(NamedTuple):
    """One checked step of one environment."""

    obs: NDArray[Any]
    action: int
    reward: float
    next_obs: NDArray[Any]
    terminated: bool
    truncated: bool
    snapshot: bytes


def checked_step(given: GivenStep, codec: ObservationCodec, count: int) -> list[LaneStep]:
    """Return a single step, after all arguments were checked; `count` is the number of actions."""
    obs, action, reward, next_obs, terminated, truncated, snapshot, final_obs = given
    ended = checks.flag(terminated, "terminated"), checks.flag(truncated, "truncated")
    if final_obs is not None:
        raise UserError("final_obs is for the steps of a vector environment; pass a single one as next_obs")
    step = LaneStep(
        checks.observations(obs, "obs", codec.shape, codec.dtype),
        checks.action(action, count),
        checks.reward(reward, "reward"),
        checks.observations(next_obs, "next_obs", codec.shape, codec.dtype),
        *ended,
        checks.snapshot(snapshot),
    )
    return [step]


def checked_lanes(given: GivenStep, codec: ObservationCodec, count: int) -> list[LaneStep]:
    """Return the step of each lane, after all arguments were checked; `count` is the number of actions."""
    lanes = len(given.obs)
    shape, dtype = (lanes, *codec.shape), codec.dtype
    starts = checks.observations(given.obs, "obs", shape, dtype)
    ends = list(checks.observations(given.next_obs, "next_obs", shape, dtype))
    actions = checks.actions(given.action, count, (lanes,)).tolist()
    rewards = checks.rewards(given.reward, "reward", (lanes,)).tolist()
    terminals = checks.flags(given.terminated, "terminated", (lanes,)).tolist()
    limits = checks.flags(given.truncated, "truncated", (lanes,)).tolist()
    snapshots = checks.snapshots(given.snapshot, lanes)
    ended = [terminal or limit for terminal, limit in zip(terminals, limits, strict=True)]
    final = checks.final_observations(given.final_obs, ended, codec.shape, dtype)
    ends = [end if last is None else last for end, last in zip(ends, final, strict=True)]
    return [LaneStep(*row) for row in zip(starts, actions, rewards, ends, terminals, limits, snapshots, strict=True)]


class Lane:
    """One environment of the user's loop: its pending n-step transitions, its episode and its last frames."""

    def __init__(self, config: Config, codec: ObservationCodec, rng: np.random.Generator) -> None:
        self._codec = codec
        self._n_step = NStep(config.actor.n_steps, config.learner.discount)
        self._known: Known = {}
        self._last: Stack = ()
        self._ended: Stack = ()  # the last observation of the last episode
        self.repeats = False  # whether the current episode began with that observation
        self._obs: NDArray[Any] = np.zeros(0)
        self._labeller = Labeller(config.replay, self, rng)

    def state_key(self) -> int:
        """Return the key of the observation that is being added."""
        return self._codec.key(self._obs)

    def push(self, step: LaneStep) -> list[Arrived]:
        """Add one step; return the transitions that it completes.

        A step that does not begin where the last one ended begins an episode: the last one counts as truncated.
        """
        self._obs = step.obs
        stack = self._compress(step.obs)
        arrived = [] if stack == self._n_step.end else self._begin_episode(stack)
        start = Start(stack, step.action, step.snapshot, self._labeller.label())
        end = self._compress(step.next_obs)
        if step.terminated or step.truncated:
            self._ended = end
        return arrived + self._n_step.push(start, step.reward, end, step.terminated, step.truncated)

    def _begin_episode(self, stack: Stack) -> list[Arrived]:
        self.repeats, self._ended = stack == self._ended, ()
        self._labeller.begin_episode()
        return self._n_step.interrupt()

    def _compress(self, observation: NDArray[Any]) -> Stack:
        """Compress an observation; share its frames, or all of it, with the last one."""
        stack, self._known = self._codec.compress(observation, self._known)
        self._last = self._last if stack == self._last else stack
        return self._last

    def save(self) -> State:
        """Return everything that later transitions depend on."""
        return join({"n_step": self._n_step.save(), "labels": self._labeller.save()})

    def load(self, state: State) -> None:
        """Restore a state returned by `save`."""
        parts = split(state)
        self._n_step.load(parts["n_step"])
        self._labeller.load(parts["labels"])
