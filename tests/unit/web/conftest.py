"""One small run of CartPole that all tests of the explorer read."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from dpsr_apex.cli import main

SETTINGS = (
    *("replay.capacity=200", "replay.replace_candidates=8", "replay.recycle_candidates=8", "replay.recycle_period=20"),
    *("learner.learning_starts=100", "learner.batch_size=16", "learner.steps_per_update=20", "learner.hidden=[8]"),
    *("learner.head=8", "evaluation.episodes=2", "evaluation.max_steps=60", "evaluation.period=200", "run.threads=1"),
    *("run.checkpoint_period=200", "run.log_period=50", "learner.device=cpu", "actor.exploration=0.6"),
)


def train(path: Path, *more: str, config: str = "cartpole", steps: int = 600) -> None:
    settings = [f"--set={setting}" for setting in (*SETTINGS, *more)]
    assert main(["train", config, "--solo", "--steps", str(steps), "--run-dir", str(path), *settings]) == 0


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run, which no test changes."""
    path = tmp_path_factory.mktemp("trained") / "cart pole"
    train(path)
    return path


@pytest.fixture
def run_dir(trained: Path, tmp_path: Path) -> Path:
    """A copy of the finished run, in a folder of its own."""
    return shutil.copytree(trained, tmp_path / "runs" / "cart pole")
