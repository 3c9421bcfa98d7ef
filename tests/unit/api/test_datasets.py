"""`export_minari` writes datasets that Minari reads back as they were played."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import minari
import numpy as np
import pytest

import dpsr_apex as da

SMALL = {"replay.capacity": 500, "learner.learning_starts": 200, "evaluation.episodes": 2}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> da.Run:
    return da.train("cartpole", steps=300, set=SMALL, run_dir=tmp_path_factory.mktemp("runs") / "run")


@pytest.fixture(autouse=True)
def datasets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "datasets"))
    return tmp_path / "datasets"


def test_minari_reads_the_episodes_of_an_evaluation(run: da.Run) -> None:
    row = da.export_minari(run.path, "cartpole/dpsr-v0", episodes=3)
    assert row["scores"] == da.evaluate(run.path, episodes=3)["scores"]
    dataset = minari.load_dataset("cartpole/dpsr-v0")
    assert (dataset.total_episodes, dataset.total_steps) == (3, sum(row["steps"]))
    env, policy = dataset.recover_environment(), run.policy()
    assert env.spec.id == "CartPole-v1"
    for episode, score in zip(dataset.iterate_episodes(), row["scores"], strict=True):
        assert episode.rewards.sum() == score
        assert episode.observations.shape == (len(episode.rewards) + 1, 4)
        assert episode.observations.dtype == np.float32
        assert episode.terminations.tolist() == [False] * (len(episode.rewards) - 1) + [True]
        assert not episode.truncations.any()
        assert (policy(episode.observations[:-1]) == episode.actions).mean() > 0.9  # the rest is exploration
        env.reset()
        for t in range(3):
            env.unwrapped.state = tuple(episode.observations[t])
            np.testing.assert_allclose(env.step(episode.actions[t])[0], episode.observations[t + 1], rtol=1e-5)


def test_images_are_stored_without_loss_and_a_cut_episode_is_truncated(tmp_path: Path) -> None:
    settings: dict[str, Any] = {**SMALL, "evaluation.max_steps": 4, "evaluation.random_episodes": 0}
    run = da.train("minatar/breakout", steps=250, set=settings, run_dir=tmp_path / "run")
    da.export_minari(run.path, "minatar/breakout-v0", weights="last", episodes=2)
    for episode in minari.load_dataset("minatar/breakout-v0"):
        assert episode.observations.dtype == np.uint8
        assert set(np.unique(episode.observations)) == {0, 255}
        assert episode.truncations.tolist() == [False, False, False, True]


def test_an_export_that_fails_leaves_nothing(run: da.Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise RuntimeError("disk full")

    monkeypatch.setattr("dpsr_apex.api.datasets.Steps.columns", fail)
    with pytest.raises(RuntimeError, match="disk full"):
        da.export_minari(run.path, "cartpole/dpsr-v0")
    assert minari.list_local_datasets() == {}


def test_a_wrong_dataset_is_refused(run: da.Run) -> None:
    da.export_minari(run.path, "cartpole/dpsr-v0", episodes=1)
    cases: list[tuple[Any, str]] = [("cartpole/dpsr-v0", "exists already"), ("not a name!", "not a name!"), (5, "5")]
    for dataset_id, message in cases:
        with pytest.raises(da.UserError, match=message) as refusal:
            da.export_minari(run.path, dataset_id)
        assert "\n" not in str(refusal.value)
    with pytest.raises(da.UserError, match="episodes must be an integer >= 1"):
        da.export_minari(run.path, "cartpole/dpsr-v1", episodes=0)
    assert list(minari.list_local_datasets()) == ["cartpole/dpsr-v0"]
