"""The trained policy of a run: `load_policy`, and its scores: `evaluate`."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file

from dpsr_apex.agent.protocol import Agent
from dpsr_apex.api import checks
from dpsr_apex.api.environments import SnapshotEnv
from dpsr_apex.config import Config
from dpsr_apex.config_files import load_config
from dpsr_apex.errors import UserError
from dpsr_apex.files import StrPath, read_rows
from dpsr_apex.record.choice import read_checkpoint
from dpsr_apex.record.run_directory import RunDirectory
from dpsr_apex.roles.build import build_agent, build_env, load_agent
from dpsr_apex.roles.evaluator import evaluate as play_episodes

Weights = Literal["best", "last"]
"""The weights of the best evaluation, or of the newest checkpoint."""

_WEIGHTS: Final = get_args(Weights)


class Policy:
    """The greedy policy of a trained network: a function from observations, as `make_env` returns them, to actions."""

    def __init__(self, agent: Agent, shape: tuple[int, ...], dtype: np.dtype[Any], stacked: tuple[int, ...]) -> None:
        self.agent = agent
        self._shape = shape  # of an observation, as the user has it
        self._dtype = dtype
        self._stacked = stacked  # of an observation, as the network gets it

    @property
    def network(self) -> Any:
        """The online network, a `torch.nn.Module`, on batches of shape (batch, stack, *frame shape)."""
        network = getattr(self.agent, "online", None)
        if network is None:
            raise UserError(f"{type(self.agent).__name__} has no attribute `online` with its network")
        return network

    def __call__(self, obs: Any) -> Any:
        """Return the greedy action of one observation as an int, or those of a batch as an array."""
        actions = self.q_values(obs).argmax(axis=-1)
        return actions if actions.ndim else int(actions)

    def q_values(self, obs: Any) -> NDArray[np.float32]:
        """Return the value of each action, of shape (actions,) or (batch, actions)."""
        array = checks.to_array(obs, "obs")
        is_single = array.ndim == len(self._shape)
        batch = self._shape if is_single else (*array.shape[:1], *self._shape)
        values = self.agent.q_values(checks.observations(array, "obs", batch, self._dtype).reshape(-1, *self._stacked))
        return values[0] if is_single else values


def load_policy(run_dir: StrPath, weights: Weights = "best") -> Policy:
    """Return the policy of a run: with the weights of its best evaluation, or of its newest checkpoint."""
    loaded = load_trained(checks.path(run_dir, "run_dir"), weights)
    env = loaded.env.stacked
    shape = loaded.env.observation_space.shape or ()
    return Policy(loaded.agent, shape, env.codec.dtype, env.observation_shape)


def evaluate(run_dir: StrPath, weights: Weights = "best", episodes: int | None = None) -> dict[str, Any]:
    """Play full episodes with a run's weights; return their scores, mean and median, as in `evaluations.jsonl`.

    `episodes`: their number, by default that of the run's evaluations. The best weights repeat their evaluation
    exactly.
    """
    count = None if episodes is None else checks.positive(episodes, "episodes")
    loaded = load_trained(checks.path(run_dir, "run_dir"), weights)
    return play_episodes(loaded.config, loaded.agent, loaded.t, count).row()


class Trained(NamedTuple):
    """An agent with weights of a run."""

    config: Config
    agent: Agent
    t: int  # clock of the weights
    env: SnapshotEnv  # of an evaluation, closed: its spaces can be read


def load_trained(path: Path, weights: str) -> Trained:
    """Return the agent of a run with the chosen weights."""
    if weights not in _WEIGHTS:
        raise UserError(f"weights must be one of {', '.join(map(repr, _WEIGHTS))} (got {weights!r})")
    run = RunDirectory.open(path)
    config = load_config(run.config)
    if weights == "best" and not run.best_weights.is_file():
        raise UserError(f"{path} has not been evaluated yet, so that no weights are the best; use weights='last'")
    env = build_env(config, 0, training=False)
    env.close()
    if weights == "last":
        _, checkpoint = read_checkpoint(run)
        agent = load_agent(config, env, checkpoint.parts["learner"])
        return Trained(config, agent, checkpoint.t, SnapshotEnv(env))
    agent = build_agent(config, env, 0)
    agent.load_weights("online", load_file(run.best_weights))
    agent.sync_target()
    best = max(read_rows(run.evaluations), key=lambda row: float(row["mean"]))  # the first one, if several are equal
    return Trained(config, agent, int(best["t"]), SnapshotEnv(env))
