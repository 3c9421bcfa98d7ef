"""Recycling with a user's environment and functions: the adapters through which `roles.recycling` uses them."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpsr_apex.agent.protocol import Experience
from dpsr_apex.api import checks
from dpsr_apex.api.batch import Batch
from dpsr_apex.api.observations import Known, ObservationCodec
from dpsr_apex.envs.compression import DamagedSnapshot
from dpsr_apex.envs.stacked import Step
from dpsr_apex.errors import UserError
from dpsr_apex.replay.transitions import Stack
from dpsr_apex.roles.recycling import Recycling

# Without a handler, Python prints every warning, here one for each candidate; the buffer warns once instead.
logging.getLogger(Recycling.__module__).addHandler(logging.NullHandler())

Act = Callable[[NDArray[Any]], Any]
"""Greedy actions of a batch of observations."""
TdErrors = Callable[[Batch], Any]
"""TD errors of a batch, signed or not."""


class UserEnv:
    """A user's environment with `step`, `snapshot()` and `restore(snapshot, observation)`."""

    def __init__(self, env: Any, codec: ObservationCodec, actions: int) -> None:
        missing = [name for name in ("step", "snapshot", "restore") if not callable(getattr(env, name, None))]
        if missing:
            raise UserError(
                f"env cannot be restored: {type(env).__name__} has no {missing[0]}(); "
                "use dpsr_apex.make_env, or implement snapshot() and restore(snapshot, observation)"
            )
        self._env = env
        self.codec = codec
        self.actions = actions
        self.frames: NDArray[Any] = np.zeros(0)
        self.stack: Stack = ()
        self._known: Known = {}

    def snapshot(self) -> bytes:
        """Serialize the state."""
        return checks.snapshot(self._env.snapshot())

    def restore(self, snapshot: bytes, stack: Stack, frames: NDArray[Any] | None = None) -> None:
        """Return to the state of `snapshot`; a transition that was added without one cannot be re-entered."""
        if not snapshot:
            raise DamagedSnapshot("it was added without a snapshot")
        self.frames = self.codec.decompress_stacks([stack])[0] if frames is None else frames
        self._env.restore(snapshot, self.frames)
        self.stack = stack
        self._known = self.codec.compress(self.frames, {})[1]

    def step(self, action: int) -> Step:
        """Take one action."""
        obs, reward, terminated, truncated, _ = self._env.step(action)
        checked = checks.observations(obs, "the observation of env", self.codec.shape, self.codec.dtype)
        self.frames = checked.copy()  # the environment may write into it
        self.stack, self._known = self.codec.compress(self.frames, self._known)
        paid = float(checks.rewards(reward, "the reward of env", ()))
        return Step(paid, bool(terminated), bool(truncated), paid, bool(terminated or truncated))

    def state_key(self) -> int:
        """Return the key of the current observation."""
        return self.codec.key(self.frames)


class UserScorer:
    """A user's functions in place of an agent."""

    def __init__(self, act: Act, td_errors: TdErrors, actions: int, discount: float) -> None:
        for name, given in (("act", act), ("td_errors", td_errors)):
            if not callable(given):
                raise UserError(f"{name} must be a function (got {given!r})")
        self._act = act
        self._td_errors = td_errors
        self._actions = actions
        self._discount = discount

    def act(self, observations: NDArray[Any]) -> NDArray[np.int64]:
        """Return the user's greedy actions."""
        return checks.actions(self._act(observations), self._actions, (len(observations),))

    def td_errors(self, experience: Experience) -> NDArray[np.float64]:
        """Return the user's |TD errors|."""
        count = len(experience.r_t)
        batch = as_batch(experience, np.ones(count, np.float32), np.full(count, -1), self._discount)
        return np.abs(checks.numbers(self._td_errors(batch), "td_errors", (count,)))


def as_batch(
    experience: Experience, weights: NDArray[np.float32], identities: NDArray[np.int64], discount: float
) -> Batch:
    """Return decompressed transitions as the user gets them."""
    s_tm1, a_tm1, r_t, s_t, terminal, n_steps = experience
    discounts = _powers(discount)[n_steps]
    return Batch(s_tm1, a_tm1, r_t, s_t, terminal.astype(np.float32), discounts, weights, identities)


@lru_cache(maxsize=16)
def _powers(discount: float) -> NDArray[np.float32]:
    """Return discount ** n for every number of steps n that a transition can have."""
    return np.power(np.float32(discount), np.arange(256), dtype=np.float32)
