"""When a run is trained, evaluated and finished: one definition for everybody who asks."""

from __future__ import annotations

from pathlib import Path

import pytest

from dpsr_apex.config_files import load_config
from dpsr_apex.files import append_row
from dpsr_apex.record.checkpoint import save_checkpoint
from dpsr_apex.record.progress import (
    PART,
    Goal,
    goal_of,
    is_evaluated,
    is_finished,
    is_trained,
    passed,
    progress_part,
)
from dpsr_apex.record.run_directory import RunDirectory, write_config

TOTAL = 1_000


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    run = RunDirectory.create(tmp_path / "run")
    write_config(load_config("cartpole", overrides=[f"run.total_steps={TOTAL}"]), run)
    return run


def facts(run: RunDirectory) -> tuple[bool, bool, bool]:
    return is_trained(run), is_evaluated(run), is_finished(run)


def test_a_run_is_finished_when_its_last_step_is_saved_and_evaluated(run: RunDirectory) -> None:
    assert facts(run) == (False, False, False)
    save_checkpoint(run.checkpoints, TOTAL - 1, {}, keep=2)
    append_row(run.evaluations, {"t": TOTAL - 1})
    assert facts(run) == (False, False, False)
    save_checkpoint(run.checkpoints, TOTAL, {}, keep=2)
    assert facts(run) == (True, False, False)
    append_row(run.evaluations, {"t": TOTAL})
    assert facts(run) == (True, True, True)


def test_a_checkpoint_of_the_last_step_is_not_the_last_one_while_updates_are_owed(run: RunDirectory) -> None:
    for is_owed in (True, False):
        save_checkpoint(run.checkpoints, TOTAL, {PART: progress_part(not is_owed)}, keep=2)
        assert is_trained(run) is not is_owed
    (run.checkpoints / f"step_{TOTAL:012d}" / f"{PART}.json").write_text("{")
    assert not is_trained(run)


def test_a_run_that_is_made_longer_is_not_finished_any_more(run: RunDirectory) -> None:
    save_checkpoint(run.checkpoints, TOTAL, {}, keep=2)
    append_row(run.evaluations, {"t": TOTAL})
    write_config(load_config("cartpole", overrides=[f"run.total_steps={TOTAL + 1}"]), run)
    assert facts(run) == (False, False, False)


def test_an_evaluation_counts_also_behind_a_damaged_line_and_without_checkpoints(run: RunDirectory) -> None:
    run.evaluations.write_text(f'{{"t": \n{{"t": {TOTAL}}}\n')
    assert facts(run) == (False, True, False)


def test_the_goal_of_a_run_is_its_environment_steps_if_it_has_them() -> None:
    solo = ["system.actors=0", "run.total_steps=2000", "run.environment_steps=1500"]
    assert goal_of(load_config("cartpole", overrides=solo[:2]).run) == Goal(2_000)
    goal = goal_of(load_config("cartpole", overrides=solo).run)
    assert (goal.steps, goal.unit, goal.done({"t": 7, "environment_steps": 9})) == (1_500, "environment steps", 9)


def test_a_folder_without_a_config_is_nothing(tmp_path: Path) -> None:
    assert facts(RunDirectory(tmp_path)) == (False, False, False)


@pytest.mark.parametrize(
    ("period", "since", "t", "expected"),
    [(10, 0, 9, False), (10, 0, 10, True), (10, 10, 19, False), (10, 9, 35, True), (0, 0, 100, False)],
)
def test_a_period_has_passed_when_a_multiple_of_it_was_reached(period: int, since: int, t: int, expected: bool) -> None:
    assert passed(period, since, t) is expected
