"""Datasets of trained policies for offline learning: `export_minari`. The only module that imports minari."""

from __future__ import annotations

import warnings
from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec
from numpy.typing import NDArray

from dpsr_apex.api import checks
from dpsr_apex.api.policy import Trained, Weights, load_trained
from dpsr_apex.config import Config
from dpsr_apex.envs.stacked import Step
from dpsr_apex.errors import MissingPackage, UserError
from dpsr_apex.files import StrPath
from dpsr_apex.roles.evaluator import evaluate


class Steps:
    """The steps of one episode."""

    def __init__(self) -> None:
        self.observations: list[NDArray[Any]] = []  # one more than there are steps
        self.actions: list[int] = []
        self.rewards: list[float] = []
        self.terminations: list[bool] = []
        self.truncations: list[bool] = []

    def add(self, observation: NDArray[Any], action: int, step: Step, next_observation: NDArray[Any]) -> None:
        """Add a step; a lost life after which the game continues ends nothing."""
        self.observations[-1:] = [observation, next_observation]
        self.actions.append(action)
        self.rewards.append(step.score)
        self.terminations.append(step.game_over and not step.truncated)
        self.truncations.append(step.truncated)

    def columns(self, shape: tuple[int, ...]) -> dict[str, Any]:
        """Return the episode as Minari stores it; if `evaluation.max_steps` ended it, it is truncated."""
        observations = np.stack(self.observations).reshape(-1, *shape)
        truncations = [*self.truncations[:-1], not self.terminations[-1]]
        return {
            "observations": observations,
            "actions": np.array(self.actions),
            "rewards": self.rewards,
            "terminations": self.terminations,
            "truncations": truncations,
        }


def export_minari(
    run_dir: StrPath, dataset_id: str, *, weights: Weights = "best", episodes: int | None = None
) -> dict[str, Any]:
    """Play full episodes with a run's weights, and store them as a new local Minari dataset; return their scores.

    The episodes are those of `evaluate`, with the observations of `make_env` and unclipped rewards.
    `minari.load_dataset(dataset_id)` reads them. Images are stored without loss.
    """
    minari = _minari()
    count = None if episodes is None else checks.positive(episodes, "episodes")
    try:
        minari.dataset.minari_dataset.parse_dataset_id(dataset_id)
    except (TypeError, ValueError) as error:
        raise UserError(f"dataset_id must be such as 'cartpole/dpsr-v0' (got {dataset_id!r})") from error
    if dataset_id in minari.list_local_datasets():
        raise UserError(f"dataset_id {dataset_id!r} exists already; choose another name or version")
    trained = load_trained(checks.path(run_dir, "run_dir"), weights)
    shape = trained.env.observation_space.shape or ()
    dataset = _new_dataset(minari, dataset_id, trained)
    steps = Steps()

    def store(_score: float) -> None:
        """Write an episode when it has ended, because many do not fit into memory."""
        nonlocal steps
        dataset.storage.update_episodes([minari.data_collector.EpisodeBuffer(**steps.columns(shape))])
        steps = Steps()

    try:
        config, agent, t, _ = trained
        return evaluate(config, agent, t, count, after_episode=store, record=lambda *step: steps.add(*step)).row()
    except BaseException:
        minari.delete_dataset(dataset_id)
        raise


def _new_dataset(minari: Any, dataset_id: str, trained: Trained) -> Any:
    """Return a new dataset without episodes."""
    config, env = trained.config, trained.env
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # about an author and others, which a run does not have
        return minari.create_dataset_from_buffers(
            dataset_id,
            [],
            env=_spec_of(config, env.observation_space),
            algorithm_name=f"{config.learner.agent}, {config.replay.method}",
            description=f"Episodes of {config.env.name}, played by dpsr_apex with the weights of t = {trained.t:,}",
            action_space=env.action_space,
            observation_space=env.observation_space,
            jpeg_encoding=False,
        )


def _minari() -> Any:
    try:
        import h5py  # noqa: F401  # Minari's file format, which it imports late
        import minari
        import minari.data_collector
        import minari.dataset.minari_dataset
    except ModuleNotFoundError as error:
        raise MissingPackage("export_minari", f"{error.name}", "minari[hdf5]>=0.5.4", "minari") from error
    return minari


def _spec_of(config: Config, space: gymnasium.Space[Any]) -> EnvSpec | None:
    """Return Gymnasium's specification of the environment; None if its observations are not those of the dataset."""
    if config.env.wrappers:
        return None
    try:
        env = gymnasium.make(config.env.name, **config.env.arguments)
    except gymnasium.error.Error:
        return None
    env.close()
    return env.spec if env.observation_space == space else None
