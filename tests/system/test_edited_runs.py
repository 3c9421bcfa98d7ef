"""Run directories that were edited by hand before a run is resumed."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from dpsr_apex.cli import main
from dpsr_apex.config import CHANGEABLE
from dpsr_apex.config_files import load_config
from dpsr_apex.inspection.opening import open_run
from dpsr_apex.record.progress import is_finished
from dpsr_apex.record.run_directory import RunDirectory, write_config
from tests.system.test_cli import train_small

CHANGES = {  # another value for every setting that may change
    "replay.sampling_exponent": "0.4",
    "replay.bias_annealing": "0.5",
    "replay.replacing_exponent": "{ start = 0.2, end = 0.9 }",
    "replay.replace_candidates": "8",
    "replay.recycle_candidates": "4",
    "replay.recycle_at_max_priority": "true",
    "replay.recycle_steps": "3",
    "replay.recycle_exploration": "0.5",
    "replay.priority_floor": "0.001",
    "replay.initial_priority": "td_error",
    "replay.exponent_tolerance": "0.1",
    "env.reward_limit": "1000.0",
    "actor.exploration": "0.5",
    "actor.start_share": "0.25",
    "actor.ladder": "true",
    "learner.double": "false",
    "learner.quantile_priority": "loss",
    "learner.batch_size": "8",
    "learner.learning_rate": "0.01",
    "learner.adam_epsilon": "0.001",
    "learner.target_period": "50",
    "learner.gradient_clip": "1.0",
    "evaluation.period": "70",
    "evaluation.episodes": "1",
    "evaluation.epsilon": "0.1",
    "evaluation.max_steps": "20",
    "evaluation.random_episodes": "1",
    "evaluation.video": "true",
    "system.chunk": "7",
    "system.in_flight": "30",
    "system.in_flight_ahead": "10",
    "system.in_flight_behind": "10",
    "system.weights_period": "10",
    "system.weights_age": "2",
    "system.prefetch": "2",
    "system.rate_tolerance": "20",
    "system.recycle_deadline": "5",
    "system.lease": "4",
    "system.memory_check": "false",
    "system.memory_limit": "4000",
    "run.total_steps": "360",
    "run.environment_steps": "330",
    "run.log_period": "30",
    "run.checkpoint_period": "90",
    "run.checkpoints_kept": "3",
    "run.durability": '"power"',
    "run.learner_state_period": "50",
    "run.track": '["csv"]',
    "run.threads": "2",
}
LEFT = {"learner.device", "learner.precision", "learner.compile", "system.actors"}  # need more
EDITS = {  # of settings on which a checkpoint depends, with what the run had
    "replay.capacity": ("200", "60"),
    "replay.method": ("per_rank", '"dpsr"'),
    "env.stack": ("2", "left out"),
    "learner.head": ("64", "32"),
    "learner.agent": ("quantile", '"dqn"'),
    "actor.environments": ("2", "1"),
}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run; tests must not change it."""
    path = tmp_path_factory.mktemp("finished") / "run"
    assert main(train_small("--run-dir", path)) == 0
    return path


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> RunDirectory:
    """A copy of a finished run."""
    return RunDirectory(Path(shutil.copytree(finished, tmp_path / "run")))


def edit(run: RunDirectory, **values: str) -> None:
    """Change settings in the config of a run."""
    write_config(load_config(run.config, overrides=[f"{key}={value}" for key, value in values.items()]), run)


def test_everything_that_may_change_can_be_changed_at_once(run: RunDirectory) -> None:
    assert CHANGES.keys() | LEFT == set(CHANGEABLE)
    edit(run, **CHANGES)
    assert main(["resume", str(run.path)]) == 0
    assert is_finished(run)
    opened = open_run(run.path)
    assert opened.replay.check_valid() == (True, "")
    assert opened.replay.environment_steps == 330
    log = (run.logs / "solo.log").read_text()
    for key in CHANGES:
        assert f"{key} was " in log, "the change is reported"


@pytest.mark.parametrize("key", EDITS)
def test_a_setting_on_which_the_checkpoint_depends_is_refused_with_the_way_out(
    key: str, run: RunDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    value, was = EDITS[key]
    edit(run, **{key: value, "run.total_steps": "300"})
    before = sorted(path.stat().st_mtime_ns for path in run.path.rglob("*") if "lock" not in path.name)
    for command in ("resume", "inspect", "eval"):
        assert main([command, str(run.path)]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert f"{key} = " in line
        assert str(run.config) in line
        assert f"written with {was}: set it back" in line
    assert before == sorted(path.stat().st_mtime_ns for path in run.path.rglob("*") if "lock" not in path.name)


@pytest.mark.parametrize("line", ["garbage", '{"updates": 3}', "[]"])
def test_a_bad_line_in_the_middle_of_the_records_is_refused_with_its_number(
    line: str, run: RunDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    for rows in (run.evaluations, run.metrics):
        lines = rows.read_text().splitlines()
        lines[1:1] = [line]
        rows.write_text("\n".join(lines) + "\n")
        before = rows.read_bytes()
        assert main(["resume", str(run.path), "--steps", "400"]) == 2
        (complaint,) = capsys.readouterr().err.splitlines()
        assert f"{rows}, line 2: " in complaint
        assert "Remove this line" in complaint
        assert rows.read_bytes() == before
        rows.write_text("\n".join(lines[:1] + lines[2:]) + "\n")
    assert main(["resume", str(run.path), "--steps", "400"]) == 0
