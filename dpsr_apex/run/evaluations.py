"""What an evaluation leaves behind in the run directory: its row, and the weights that played. No torch here."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from numpy.typing import NDArray
from safetensors.numpy import save

from dpsr_apex.run.metrics import append_row, read_metrics
from dpsr_apex.run.run_directory import RunDirectory


def keep_evaluation(run: RunDirectory, row: Mapping[str, Any], weights: Mapping[str, NDArray[Any]]) -> None:
    """Write the row, and the weights as the last ones, and as the best if no earlier row is as good.

    OSError on a full disk, where the row may still have found its place.
    """
    content = save(dict(weights))
    best = max((earlier["mean"] for earlier in read_metrics(run.evaluations)), default=-math.inf)
    try:  # the row comes last: a run that is killed in between does this evaluation again
        _write(run.last_weights, content)
        if row["mean"] > best:
            _write(run.best_weights, content)
    finally:
        append_row(run.evaluations, row)


def _write(path: Path, content: bytes) -> None:
    """Whole or not at all."""
    path.parent.mkdir(exist_ok=True)
    temporary = path.with_name(f".unfinished-{path.name}")
    try:
        temporary.write_bytes(content)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
