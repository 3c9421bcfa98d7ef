"""Evaluations in the run directory: one row each, and the evaluated weights. Does not need torch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray
from safetensors.numpy import save

from dpsr_apex.config import Config
from dpsr_apex.files import append_row, encode_row, read_last_row, read_rows, write_atomically
from dpsr_apex.formatting import counted, number
from dpsr_apex.record.run_directory import RunDirectory


def wants_random_play(config: Config, run: RunDirectory) -> bool:
    """Whether the config asks for episodes of a random policy that have not been played yet."""
    return config.evaluation.random_episodes > 0 and not run.random_play.exists()


def keep_random_play(run: RunDirectory, row: Mapping[str, Any]) -> None:
    """Write the evaluation of a random policy; raise OSError on a full disk."""
    write_atomically(run.random_play, encode_row(row))


def random_score(run: RunDirectory) -> float | None:
    """Return the mean score of a random policy; None if it has not been played."""
    row = read_last_row(run.random_play)
    return row["mean"] if row else None


def score_line(run: RunDirectory) -> str:
    """Describe the last evaluation in one line, with the score of a random policy if it has been played."""
    row = read_last_row(run.evaluations)
    if row is None:
        return "Score: not evaluated"
    score = random_score(run)
    compared = "" if score is None else f" (random play: {number(score, 3)})"
    return f"Score: {number(row['mean'], 3)}{compared}, mean of {counted(row['games'], 'episode')}"


def keep_evaluation(run: RunDirectory, row: Mapping[str, Any], weights: Mapping[str, NDArray[Any]]) -> None:
    """Write the row and the weights as the last ones, and as the best ones if no earlier mean is as high.

    Raise OSError on a full disk; the row may have been written nevertheless.
    """
    content = save(dict(weights))
    best = max((earlier["mean"] for earlier in read_rows(run.evaluations)), default=-math.inf)
    try:  # the row is written last, so that a run that is killed in between repeats this evaluation
        run.last_weights.parent.mkdir(exist_ok=True)
        write_atomically(run.last_weights, content)
        if row["mean"] > best:
            write_atomically(run.best_weights, content)
    finally:
        append_row(run.evaluations, row)
