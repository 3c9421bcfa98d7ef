"""Read run directories: rows, evaluations, and how each run ended. Nothing is written.

Damaged lines, keys of other versions and missing rows are tolerated. A run that cannot be read is listed with the
reason, and does not prevent the report of the others.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from dpsr_apex.config import Config, ConfigError
from dpsr_apex.config_files import load_config
from dpsr_apex.files import BadLine, Row, read_rows
from dpsr_apex.record.ending import read_ending
from dpsr_apex.record.lock import is_served
from dpsr_apex.record.progress import goal_of, is_evaluated
from dpsr_apex.record.provenance import Part, read_provenance
from dpsr_apex.record.run_directory import RunDirectory
from dpsr_apex.report import ReportError

Ending = Literal["finished", "unfinished", "failed", "empty"]

_LISTS = ("age_deciles", "priority_deciles", "scores")  # all other values of a row are single numbers
_GREATEST_INT, _GREATEST_FLOAT = 2**63, 1e100  # larger numbers are not measurements, and would overflow in numpy


class State(NamedTuple):
    """How a run ended or its progress, and a note about it for the reader of the report."""

    ending: Ending
    note: str


class Score(NamedTuple):
    """The mean of one evaluation."""

    t: int
    mean: float


@dataclass(frozen=True)
class RunRecord:
    """One run, as read from its directory."""

    path: Path
    config: Config
    rows: Sequence[Row]
    scores: Sequence[Score]  # of every evaluation, in order of t
    state: State
    torn: int = 0  # lines that are not rows
    parts: Sequence[Part] = ()  # its provenance; empty if it was not recorded

    @property
    def t(self) -> int:
        """The greatest clock of any row or evaluation; 0 if there is none."""
        return _clock(self.rows, self.scores)

    @property
    def final_score(self) -> float | None:
        """The mean of the last evaluation of a finished run; None for any other run."""
        return self.scores[-1].mean if self.state.ending == "finished" and self.scores else None

    def last(self, key: str) -> float | None:
        """The newest number under `key` in the rows."""
        return next((float(row[key]) for row in reversed(self.rows) if _is_number(row.get(key))), None)


class Unreadable(NamedTuple):
    """A folder that looks like a run directory, and the reason why it cannot be read."""

    path: Path
    reason: str


def find_runs(paths: Sequence[Path]) -> list[Path]:
    """Return the run directories at or below these paths, each once, in order; raise ReportError if there is none."""
    found: dict[Path, Path] = {}
    for path in paths:
        if not path.is_dir():
            raise ReportError(f"{path}: no such folder; give run directories, or folders that hold them")
        below = [path] if (path / "config.toml").is_file() else list(_runs_below(path))
        if not below:
            raise ReportError(f"{path}: contains no run; a run directory has config.toml and metrics.jsonl or logs")
        found |= {run.resolve(): run for run in below if run.resolve() not in found}
    return list(found.values())


def read_run(path: Path) -> RunRecord | Unreadable:
    """Return the record of a run directory, or the reason why it cannot be read."""
    run = RunDirectory(path)
    if not run.config.is_file():
        return Unreadable(path, "config.toml is missing")
    try:
        config = load_config(run.config)
        rows, torn_rows = _read_rows(run.metrics)
        evaluations, torn_evaluations = _read_rows(run.evaluations)
        scores = _scores(evaluations)
        state = _state(config, rows, scores, run)
        parts = read_provenance(run)
    except (ConfigError, OSError) as error:
        return Unreadable(path, str(error).replace(f"{run.config}: ", ""))
    return RunRecord(path, config, rows, scores, state, torn_rows + torn_evaluations, parts)


def _runs_below(path: Path) -> Iterator[Path]:
    if _looks_like_a_run(path):
        yield path
        return
    for folder in sorted(entry for entry in path.iterdir() if entry.is_dir() and not entry.is_symlink()):
        yield from _runs_below(folder)


def _looks_like_a_run(path: Path) -> bool:
    run = RunDirectory(path)
    return run.metrics.is_file() or (run.config.is_file() and run.logs.is_dir())


def _read_rows(path: Path) -> tuple[list[Row], int]:
    """Return the rows by clock, each with only its usable values, and the number of lines that are not rows."""
    bad: list[BadLine] = []
    rows = [_usable(row) for row in read_rows(path, bad)]
    return sorted(rows, key=lambda row: int(row["t"])), len(bad)


def _usable(row: Row) -> Row:
    return {name: value for name, value in row.items() if (_is_numbers if name in _LISTS else _is_number)(value)}


def _scores(evaluations: Sequence[Row]) -> list[Score]:
    return [Score(row["t"], float(np.mean(row["scores"]))) for row in evaluations if row.get("scores")]


def _state(config: Config, rows: Sequence[Row], scores: Sequence[Score], run: RunDirectory) -> State:
    goal = goal_of(config.run)
    t = _clock(rows, scores)
    done = max([t, *map(goal.done, rows[-1:])])
    if scores and is_evaluated(run):
        return State("finished", f"at t = {scores[-1].t:,}")
    where = f"at t = {t:,} of {goal.steps:,}" if goal.metric == "t" else f"at {done:,} of {goal.steps:,} {goal.unit}"
    if is_served(run):
        return State("unfinished", f"running, {where}")
    ending = read_ending(run)
    if ending is not None and ending.outcome == "failed":
        return State("failed", f"{where}: {ending.process}: {ending.cause}")
    if not rows and not scores:
        return State("empty", "nothing was logged yet")
    return State("unfinished", where if done < goal.steps else f"{where}: the last evaluation is missing")


def _clock(rows: Sequence[Row], scores: Sequence[Score]) -> int:
    return max([0, *(int(row["t"]) for row in rows[-1:]), *(score.t for score in scores[-1:])])


def _is_number(value: Any) -> bool:
    """Whether it is a usable number: finite, and not too large."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return abs(value) < (_GREATEST_INT if isinstance(value, int) else _GREATEST_FLOAT)


def _is_numbers(value: Any) -> bool:
    return isinstance(value, list) and all(map(_is_number, value))
