from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from dpsr_apex.config import Config, EvaluationConfig
from dpsr_apex.files import append_row, read_rows
from dpsr_apex.record.evaluations import keep_evaluation, keep_random_play, score_line, wants_random_play
from dpsr_apex.record.metrics import truncate_after
from dpsr_apex.record.run_directory import RunDirectory


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    return RunDirectory.create(tmp_path / "run")


def keep(run: RunDirectory, t: int, mean: float) -> dict[str, Any]:
    """With weights that tell when they played; the row."""
    row = {"t": t, "mean": mean}
    keep_evaluation(run, row, {"t": np.array([t])})
    return row


def kept(run: RunDirectory) -> tuple[int, int]:
    """When the best weights played, and the last."""
    best, last = (load_file(path)["t"].item() for path in (run.best_weights, run.last_weights))
    return best, last


def test_the_best_and_the_last_weights_are_kept_and_every_row(run: RunDirectory) -> None:
    rows, weights = [], []
    for t, mean in enumerate([-5.0, 3.0, 1.0, 3.0, 4.0]):
        rows.append(keep(run, t, mean))
        weights.append(kept(run))
    assert weights == [(0, 0), (1, 1), (1, 2), (1, 3), (4, 4)]
    assert read_rows(run.evaluations) == rows
    assert sorted(path.name for path in run.best_weights.parent.iterdir()) == ["best.safetensors", "last.safetensors"]


def test_a_run_that_went_back_is_measured_by_what_it_still_has(run: RunDirectory) -> None:
    keep(run, 1, 10.0)
    keep(run, 2, 30.0)
    truncate_after(run.evaluations, 1)
    keep(run, 2, 20.0)
    assert kept(run) == (2, 2)
    keep(run, 3, 15.0)
    assert kept(run) == (2, 3)


def test_random_play_is_wanted_once_and_only_if_configured(run: RunDirectory) -> None:
    assert not wants_random_play(Config(), run)
    config = Config(evaluation=EvaluationConfig(random_episodes=3))
    assert wants_random_play(config, run)
    keep_random_play(run, {"t": 0, "mean": 310.0})
    assert not wants_random_play(config, run)


def test_the_score_is_shown_beside_that_of_random_play(run: RunDirectory) -> None:
    assert score_line(run) == "Score: not evaluated"
    append_row(run.evaluations, {"t": 1, "mean": 2380.0, "games": 10})
    assert score_line(run) == "Score: 2,380, mean of 10 episodes"
    keep_random_play(run, {"t": 0, "mean": 310.0})
    assert score_line(run) == "Score: 2,380 (random play: 310), mean of 10 episodes"


def test_a_row_is_kept_where_the_weights_find_no_place(run: RunDirectory) -> None:
    run.best_weights.parent.write_text("in the way")
    with pytest.raises(OSError, match="weights"):
        keep(run, 1, 1.0)
    assert [row["t"] for row in read_rows(run.evaluations)] == [1]
