"""Labels of the states of one environment: for the replay's choice of states to re-enter, and for people."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from dpsr_apex.config import ReplayConfig
from dpsr_apex.roles.n_step import Labels
from dpsr_apex.state import State


class HasStateKey(Protocol):
    """An environment, or a lane of a buffer, that identifies its current state."""

    def state_key(self) -> int:
        """Return a 64-bit key of the current state: equal for states that count as the same place."""


class Labeller:
    """Labels the states of `env`: the step in the episode always, keys and numbers of episodes where they are needed.

    A label that `replay.recycle_choice` does not need is 0, and costs nothing.
    """

    def __init__(self, config: ReplayConfig, env: HasStateKey, rng: np.random.Generator) -> None:
        choice = config.recycle_choice if config.recycles else ""
        self._has_keys = choice == "novel"
        self._has_episodes = choice == "failure"
        self._env = env
        self._rng = rng
        self._episode = 0
        self._step = 0
        self.begin_episode()

    def begin_episode(self, step: int = 0) -> None:
        """Give the states from now on the number of another episode, or of a chain that continues from `step`."""
        self._step = step
        if self._has_episodes:
            self._episode = int(self._rng.integers(2**64 - 1, dtype=np.uint64, endpoint=True))

    def label(self) -> Labels:
        """Return the labels of the current state; to be called once per step."""
        key = self._env.state_key() if self._has_keys else 0
        labels = Labels(key, self._episode, self._step)
        self._step += 1
        return labels

    def save(self) -> State:
        """Return the position in the current episode."""
        return State({"episode": self._episode, "step": self._step}, {})

    def load(self, state: State) -> None:
        """Restore a state returned by `save`."""
        self._episode, self._step = state.facts["episode"], state.facts["step"]
