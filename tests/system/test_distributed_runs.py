"""Runs of many processes from beginning to end: everything is accounted for, and a run can be stopped and continued."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from dpsr_apex.replay.memory import Counters
from dpsr_apex.run.metrics import fingerprint, read_metrics
from tests.system.runs import (
    Run,
    assert_counters_add_up,
    assert_finished,
    last_checkpoint,
    running,
    sent_by_actors,
    training,
)

STEPS = 2_000


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A small run that has ended; not to be changed."""
    with training(tmp_path_factory.mktemp("finished") / "run", steps=STEPS) as run:
        assert_finished(run, STEPS)
    return run


def test_everything_that_an_actor_sent_is_accounted_for(finished: Run) -> None:
    traffic = assert_counters_add_up(finished.directory, STEPS)
    assert sent_by_actors(finished) == traffic["sent"] == traffic["received"]
    assert last_checkpoint(finished.directory).parts["replay"].facts["server"]["replay"]["counters"]["recycled"] > 0


def test_the_last_row_tells_how_the_run_ended(finished: Run) -> None:
    row = read_metrics(finished.directory.metrics)[-1]
    facts = last_checkpoint(finished.directory).parts["replay"].facts
    counters = facts["server"]["replay"]["counters"]
    assert {name: row[name] for name in Counters.__dataclass_fields__} == counters
    assert {name: row[f"traffic_{name}"] for name in facts["traffic"]} == facts["traffic"]
    assert row["updates"] == facts["server"]["rate"]["batches"]
    assert f"t {STEPS:,}/{STEPS:,}" in finished.said


def test_the_rate_of_updates_is_kept(finished: Run) -> None:
    assert read_metrics(finished.directory.metrics)[-1]["steps_per_update"] == pytest.approx(4, rel=0.05)


def test_a_finished_run_that_is_resumed_lacks_nothing_but_its_last_evaluation(finished: Run, tmp_path: Path) -> None:
    path = Path(shutil.copytree(finished.directory.path, tmp_path / "run"))
    (path / "evaluations.jsonl").unlink()
    for is_missing in (True, False):
        with running(path, "resume", path) as run:
            assert_finished(run, STEPS)
            assert ("the last evaluation is being played" in run.said) == is_missing
    assert fingerprint(path / "evaluations.jsonl") == fingerprint(finished.directory.evaluations)
    assert fingerprint(path / "metrics.jsonl") == fingerprint(finished.directory.metrics)


@pytest.mark.slow
def test_breakout_is_recycled_by_its_actors(tmp_path: Path) -> None:
    settings = (
        *("env.name=Breakout", "learner.steps_per_update=16", "learner.batch_size=8", "replay.recycle_period=100"),
        *("evaluation.episodes=1", "evaluation.max_steps=30", "run.checkpoint_period=1000"),
    )
    with training(tmp_path / "run", *settings, steps=2_000, config="breakout_short") as run:
        row = assert_finished(run, 2_000)
        traffic = assert_counters_add_up(run.directory, 2_000)
        assert sent_by_actors(run) == traffic["sent"] == traffic["received"]
    assert row["rounds_closed"] > 0
    assert row["candidates_applied"] > 0
    assert row["recycled"] > 0
    assert row["traffic_candidates_failed"] == 0
