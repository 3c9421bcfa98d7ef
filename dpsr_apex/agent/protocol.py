"""What actor, learner, evaluator, recycling and inspection need from an agent. Nothing here needs torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

Arrays = Mapping[str, NDArray[Any]]
NetworkName = Literal["online", "target"]


class Experience(NamedTuple):
    """A batch of decompressed transitions; observations have shape (batch, stack, *frame)."""

    s_tm1: NDArray[Any]
    a_tm1: NDArray[np.int64]
    r_t: NDArray[np.float32]  # n-step transitions: the discounted sum of the n rewards
    s_t: NDArray[Any]
    terminal: NDArray[np.bool_]  # False for a time limit: the value of s_t is bootstrapped
    n_steps: NDArray[np.uint8]  # environment steps between s_tm1 and s_t


class SharedExperience(NamedTuple):
    """A batch of transitions whose observations refer to frames that are stored once."""

    frames: NDArray[Any]  # (distinct frames, *frame)
    s_tm1: NDArray[np.int64]  # (batch, stack): places in `frames`
    a_tm1: NDArray[np.int64]
    r_t: NDArray[np.float32]
    s_t: NDArray[np.int64]  # (batch, stack)
    terminal: NDArray[np.bool_]
    n_steps: NDArray[np.uint8]

    def stacked(self) -> Experience:
        """Return the batch with observations as arrays."""
        frames, s_tm1, a_tm1, r_t, s_t, terminal, n_steps = self
        return Experience(frames[s_tm1], a_tm1, r_t, frames[s_t], terminal, n_steps)


class Update(NamedTuple):
    """Statistics of one update, computed before the weights change."""

    priorities: NDArray[np.float64]  # of each row: |delta|, or what the agent uses in its place
    loss: float  # weighted, mean over the batch
    mean_q: float  # of the actions taken
    gradient_norm: float  # before clipping


class Agent(Protocol):
    """An agent with a discrete set of actions.

    It is built as `Class(config, observation_shape, pixels, actions, seed, threads)`, where `config` is the
    `LearnerConfig` of the run. Equal seeds must give equal weights. A subclass of `TorchAgent` only has to define its
    loss.
    """

    def act(self, observations: NDArray[Any]) -> NDArray[np.int64]:
        """Return the greedy action for each raw observation of shape (batch, stack, *frame)."""

    def q_values(self, observations: NDArray[Any]) -> NDArray[np.float32]:
        """Return the expected return of each action, of shape (batch, actions)."""

    def td_errors(self, experience: Experience) -> NDArray[np.float64]:
        """Return the priority of each row, |delta|, with the current networks; nothing changes."""

    def stage(self, experience: Experience | SharedExperience, weights: NDArray[np.floating[Any]]) -> Any:
        """Prepare a batch for `update`; may be called from another thread while an update runs."""

    def update(self, staged: Any, learning_rate: float) -> Update:
        """Take one optimizer step; raise FloatingPointError, without changing the weights, if it is not finite."""

    def rows_not_finite(self, staged: Any, /) -> list[int]:
        """Return the rows of a staged batch because of which its loss, or the gradient of it, is not finite."""

    def sync_target(self) -> None:
        """Copy the online network's weights to the target network."""

    def weights(self, network: NetworkName) -> dict[str, NDArray[Any]]:
        """Return copies of one network's weights by name."""

    def load_weights(self, network: NetworkName, arrays: Arrays) -> None:
        """Load arrays returned by `weights`; raise ValueError, without changing anything, if the networks differ."""

    def save(self) -> dict[str, NDArray[Any]]:
        """Return copies of everything that future updates depend on, by name."""

    def load(self, arrays: Arrays) -> None:
        """Load arrays returned by `save`; raise ValueError, without changing anything, if the networks differ."""
