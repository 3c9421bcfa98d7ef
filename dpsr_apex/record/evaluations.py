"""Evaluations in the run directory: one row each, and the evaluated weights. Does not need torch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray
from safetensors.numpy import save

from dpsr_apex.files import append_row, read_rows, write_atomically
from dpsr_apex.record.run_directory import RunDirectory


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
