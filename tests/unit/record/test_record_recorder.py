"""The rows that are written have the keys that are documented, and only those."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest

from dpsr_apex.config import Config, ReplayConfig
from dpsr_apex.files import Row, read_rows
from dpsr_apex.record.metric_table import EVALUATION_METRICS, METRICS, metric_names
from dpsr_apex.record.metrics import add_last_evaluation
from dpsr_apex.record.recorder import Recorder
from dpsr_apex.record.run_directory import RunDirectory
from dpsr_apex.replay.replay import Replay
from dpsr_apex.roles.evaluator import Evaluation
from dpsr_apex.wire.statistics import Traffic
from tests.unit.replay.naive import transitions_of
from tests.unit.replay.twins import make_rows

CONFIG = Config(replay=ReplayConfig(capacity=50, replace_candidates=4, recycle_candidates=4))


@pytest.fixture
def recorder(tmp_path: Path) -> Recorder:
    return Recorder(CONFIG, RunDirectory.create(tmp_path / "run"), pytest.fail)


def filled() -> Replay:
    replay = Replay(CONFIG.replay, CONFIG.run.total_steps, np.random.default_rng(0))
    replay.insert(transitions_of(make_rows(0, 60)))
    return replay


def write(recorder: Recorder, **more: object) -> Row:
    with recorder.open(None):
        return recorder.write(filled(), 3, 0.5, more)


def test_every_key_of_a_row_is_in_the_table_of_metrics(recorder: Recorder, tmp_path: Path) -> None:
    traffic = {f"traffic_{field.name}" for field in fields(Traffic)}
    of_processes = {"actors", "learner_waiting", "policy_age_mean", "policy_age_p95", *traffic}
    assert {metric.name for metric in METRICS["Processes"]} == of_processes - {"learner_waiting"}
    row = write(recorder)
    assert row.keys() == metric_names() - of_processes
    assert [set(row)] == [set(written) for written in read_rows(tmp_path / "run" / "metrics.jsonl")]


def test_every_key_of_an_evaluation_is_in_its_table() -> None:
    assert Evaluation(5, [1.0], [2]).row().keys() == {metric.name for metric in EVALUATION_METRICS}


def test_a_row_is_returned_as_it_was_written(recorder: Recorder, tmp_path: Path) -> None:
    recorder.add_updates(2, float("nan"), 1.0, 2.0)
    row = write(recorder, actors=np.int64(3))
    assert (row["loss"], row["mean_q"], row["actors"]) == (None, 1.0, 3)
    assert read_rows(tmp_path / "run" / "metrics.jsonl") == [row]


def test_episodes_and_updates_are_means_since_the_last_row(recorder: Recorder) -> None:
    replay = filled()
    recorder.add_episodes([(10.0, 5), (20.0, 7)])
    recorder.add_updates(1, 1.0, 0.0, 0.0)
    recorder.add_updates(3, 5.0, 0.0, 0.0)
    with recorder.open(None):
        first = recorder.write(replay, 4, 0.5, {})
        recorder.add_episodes([(12.0, 1)])
        second = recorder.write(replay, 4, 0.5, {})
    assert (first["episodes"], first["return_mean"], first["game_steps_mean"]) == (2, 15.0, 6.0)
    assert (first["return_best"], first["loss"]) == (20.0, 4.0)
    assert (second["episodes"], second["return_mean"], second["return_best"], second["loss"]) == (3, 12.0, 20.0, None)
    assert second["replaced_age_mean"] is None


def evaluations_in(rows: list[Row]) -> list[tuple[int | None, float | None]]:
    return [(row["evaluation_t"], row["evaluation_mean"]) for row in rows]


def test_an_evaluation_is_in_one_row_with_its_own_clock(recorder: Recorder, tmp_path: Path) -> None:
    replay = filled()
    with recorder.open(None):
        recorder.write(replay, 1, 0.5, {})
        recorder.add_evaluation(20, 108.95)
        recorder.write(replay, 2, 0.5, {})
        recorder.add_evaluation(20, 108.95)  # a file of evaluations is read again for every row
        recorder.write(replay, 3, 0.5, {})
    rows = read_rows(tmp_path / "run" / "metrics.jsonl")
    assert evaluations_in(rows) == [(None, None), (20, 108.95), (None, None)]


def test_an_evaluation_survives_a_checkpoint_and_is_not_repeated_after_the_last_one_was_added(
    recorder: Recorder, tmp_path: Path
) -> None:
    replay, run = filled(), RunDirectory(tmp_path / "run")
    with recorder.open(None):
        recorder.write(replay, 1, 0.5, {})
        recorder.add_evaluation(30, 7.0)
    state = recorder.save()
    add_last_evaluation(run, replay.t, 9.0)
    resumed = {True: Recorder(CONFIG, run, pytest.fail), False: Recorder(CONFIG, run, pytest.fail)}
    for has_last, again in resumed.items():
        again.load(state)
        if not has_last:
            run.metrics.unlink()
        with again.open(replay.t):
            again.add_evaluation(*((replay.t, 9.0) if has_last else (30, 7.0)))
            again.write(replay, 2, 0.5, {})
        found = evaluations_in(read_rows(run.metrics))
        assert found == ([(replay.t, 9.0), (None, None)] if has_last else [(30, 7.0)])
