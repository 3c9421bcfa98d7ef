"""Episodes from moments in real runs: `eval --from`, and `train --start-from` in one process and in several."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from dpsr_apex.cli import main
from dpsr_apex.inspection.opening import open_run
from dpsr_apex.inspection.stored import StoredTransition, find_transitions
from dpsr_apex.record.moments import Fact, Moments, read_moments, write_moments
from dpsr_apex.roles.build import build_env
from tests.system.runs import training

SETTINGS = (
    *("replay.capacity=2000", "replay.replace_candidates=16", "replay.recycle_period=0", "learner.learning_starts=200"),
    *("learner.batch_size=16", "learner.steps_per_update=40", "evaluation.episodes=1", "evaluation.max_steps=20"),
    *("run.threads=1", "run.checkpoint_period=0", "actor.exploration=1.0"),
)
COUNT = 3


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("starts") / "played"
    settings = [f"--set={setting}" for setting in SETTINGS]
    assert main(["train", "cartpole", "--solo", "--steps", "600", "--run-dir", str(path), *settings]) == 0
    return path


@pytest.fixture(scope="module")
def failures(played: Path) -> Path:
    """The moments directly before the last failures."""
    opened = open_run(played)
    env = build_env(opened.config, 0, training=True)
    replay = opened.replay
    ends = [one for one in find_transitions(replay, replay.identities) if one.terminal][-COUNT:]
    identities = np.array([one.identity for one in ends])
    facts = [Fact(one.identity, replay.t, one.priority, None, 0, 0, f"fall {row}") for row, one in enumerate(ends)]
    file = played.with_name("failures.safetensors")
    write_moments(file, Moments(env.description, facts, replay.read(identities)))
    env.close()
    return file


def stored(path: Path) -> list[StoredTransition]:
    replay = open_run(path).replay
    return find_transitions(replay, replay.identities)


def begun_at(path: Path, failures: Path) -> float:
    """Return the share of the episodes in a run's replay that began at one of the moments."""
    states = set(read_moments(failures).transitions.s_tm1)
    firsts = [one for one in stored(path) if one.episode_step == 0]
    return sum(one.s_tm1 in states for one in firsts) / len(firsts)


def test_eval_plays_one_episode_from_every_moment(
    played: Path, failures: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["eval", str(played), "--from", str(failures), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["games"] == COUNT
    assert found["scores"][0] == found["steps"][0] < 20, "it falls soon, from where it fell before"
    assert [one["note"] for one in found["moments"]] == ["fall 0", "fall 1", "fall 2"]
    assert main(["eval", str(played), "--from", str(failures), "--episodes", "4"]) == 0
    assert capsys.readouterr().out.count("from moment") == 4


def test_a_single_process_begins_episodes_at_moments(played: Path, failures: Path, tmp_path: Path) -> None:
    options = ["--solo", "--steps", "900", "--run-dir", str(tmp_path / "run"), "--start-from", str(failures)]
    settings = [f"--set={setting}" for setting in (*SETTINGS, "actor.start_share=0.6")]
    assert main(["train", "cartpole", *options, *settings]) == 0
    assert 0.4 < begun_at(tmp_path / "run", failures) < 0.8
    assert begun_at(played, failures) == 0.0
    assert main(["resume", str(tmp_path / "run"), "--steps", "1000"]) == 0


def test_moments_of_another_environment_are_refused_before_anything_is_written(
    failures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for file, reason in ((failures, "has moments of CartPole-v1"), (Path(__file__), "not a file of moments")):
        options = ["--solo", "--run-dir", str(tmp_path / "run"), "--start-from", str(file)]
        assert main(["train", "corridor", *options]) == 2
        assert reason in capsys.readouterr().err
        assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_actors_get_the_moments_from_the_head(failures: Path, tmp_path: Path) -> None:
    settings = ("env.name=CartPole-v1", "actor.start_share=1.0", f"actor.start_from={failures}")
    with training(tmp_path / "run", *settings, steps=600, config="cartpole") as run:
        assert run.wait() == 0
    assert begun_at(tmp_path / "run", failures) == 1.0
