"""The progress of a run according to its run directory: the one definition of trained, evaluated and finished.

It reads files that another process may be writing, and changes nothing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from dpsr_apex.config import RunConfig
from dpsr_apex.config_files import load_config
from dpsr_apex.files import BadLine, read_rows
from dpsr_apex.record.checkpoint import clock_of, list_checkpoints
from dpsr_apex.record.journal.position import journal_t
from dpsr_apex.record.run_directory import RunDirectory
from dpsr_apex.state import State

PART = "progress"  # of a checkpoint of a multi-process run
_FINISHED = "finished"


class Goal(NamedTuple):
    """The number of steps at which a run ends, and the metric that counts them."""

    steps: int
    metric: str = "t"

    @property
    def unit(self) -> str:
        """The steps in words."""
        return "transitions" if self.metric == "t" else "environment steps"

    def done(self, row: Mapping[str, Any]) -> int:
        """Return the steps of a row of metrics; t if the row does not count them."""
        return int(row.get(self.metric, row["t"]))


def goal_of(config: RunConfig) -> Goal:
    """Return the goal of a run: `environment_steps` if it is set, which is reached before `total_steps`."""
    if config.environment_steps is None:
        return Goal(config.total_steps)
    return Goal(config.environment_steps, "environment_steps")


def progress_part(is_finished: bool) -> State:
    """Return the part of a checkpoint that records whether no update was due any more when it was written."""
    return State({_FINISHED: is_finished}, {})


def is_trained(run: RunDirectory) -> bool:
    """Whether the checkpoint after the last step and the last update exists."""
    if not run.config.is_file():
        return False
    last = _last_step(run)
    return any(clock_of(path) == last and _has_all_updates(path) for path in list_checkpoints(run.checkpoints))


def is_evaluated(run: RunDirectory) -> bool:
    """Whether the evaluation of the last step exists, regardless of checkpoints."""
    if not run.config.is_file():
        return False
    damaged: list[BadLine] = []  # another row may still be the last evaluation
    return max((row["t"] for row in read_rows(run.evaluations, damaged)), default=-1) >= _last_step(run)


def is_finished(run: RunDirectory) -> bool:
    """Whether there is nothing left to do: the run is trained and evaluated."""
    return is_evaluated(run) and is_trained(run)


def saved_at(run: RunDirectory) -> int:
    """Return the clock of the newest checkpoint, or after the last record of the journal; 0 if there is neither."""
    saved = list_checkpoints(run.checkpoints)
    return max(clock_of(saved[-1]) if saved else 0, journal_t(run))


def passed(period: int, since: int, t: int) -> bool:
    """Whether a multiple of `period` lies after `since` and up to t; never for a period of 0."""
    return period > 0 and t // period > since // period


def _has_all_updates(checkpoint: Path) -> bool:
    """Whether this checkpoint of the last step has them; those of single-process runs do not record it."""
    try:
        return json.loads((checkpoint / f"{PART}.json").read_bytes())[_FINISHED] is True
    except FileNotFoundError:
        return True
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _last_step(run: RunDirectory) -> int:
    """Return the clock t at which the run ends: that of the row that reaches `run.environment_steps`, if it is set."""
    config = load_config(run.config).run
    goal = goal_of(config)
    if goal.metric == "t":
        return goal.steps
    reached = [row["t"] for row in read_rows(run.metrics, []) if goal.done(row) >= goal.steps]
    return min(reached, default=config.total_steps)
