"""What run directories hold, as records: rows, evaluations, and how each run ended. It reads and never writes.

It must take every run directory as it finds it: torn lines, keys of other versions, no rows at all. What cannot be
read is said by name, and never ends the report of the others.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from dpsr_apex.config import Config, ConfigError
from dpsr_apex.config_files import load_config
from dpsr_apex.processes.lock import is_served
from dpsr_apex.report import ReportError
from dpsr_apex.run.run_directory import RunDirectory

Row = dict[str, Any]
Ending = Literal["finished", "unfinished", "failed", "empty"]

_LOGGED = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d+ (?P<level>[A-Z]+) [^ ]+ (?P<text>.*)")
_TRACEBACK = "Traceback (most recent call last)"
_LISTS = ("age_deciles", "priority_deciles", "scores")  # all else in a row is a single number
_GREATEST_INT, _GREATEST_FLOAT = 2**63, 1e100  # what is beyond was not measured, and numpy could not reckon with it


class State(NamedTuple):
    """How far a run came, and what a person should know about it."""

    ending: Ending
    note: str


class Score(NamedTuple):
    """The mean of one evaluation."""

    t: int
    mean: float


@dataclass(frozen=True)
class RunRecord:
    """One run as its directory tells it."""

    path: Path
    config: Config
    rows: Sequence[Row]
    scores: Sequence[Score]  # of every evaluation, in order of t
    state: State
    torn: int = 0  # lines that could not be read

    @property
    def t(self) -> int:
        """The greatest clock that was logged or evaluated; 0 if there is none."""
        return _clock(self.rows, self.scores)

    @property
    def final_score(self) -> float | None:
        """The mean of the last evaluation of a finished run; None for any other run."""
        return self.scores[-1].mean if self.state.ending == "finished" and self.scores else None

    def last(self, key: str) -> float | None:
        """The newest number under `key` in the rows."""
        return next((float(row[key]) for row in reversed(self.rows) if _is_number(row.get(key))), None)


class Unreadable(NamedTuple):
    """A folder that looks like a run and cannot be read as one."""

    path: Path
    reason: str


def find_runs(paths: Sequence[Path]) -> list[Path]:
    """The run directories at or below these paths, each once, in order; a ReportError where there is none."""
    found: dict[Path, Path] = {}
    for path in paths:
        if not path.is_dir():
            raise ReportError(f"{path}: no such folder; give run directories, or folders that hold them")
        below = [path] if (path / "config.toml").is_file() else list(_runs_below(path))
        if not below:
            raise ReportError(
                f"{path}: no run in it or below; a run directory has config.toml and metrics.jsonl or logs"
            )
        found |= {run.resolve(): run for run in below if run.resolve() not in found}
    return list(found.values())


def read_run(path: Path) -> RunRecord | Unreadable:
    """The record of a run directory, or why there can be none."""
    run = RunDirectory(path)
    if not run.config.is_file():
        return Unreadable(path, "config.toml is missing")
    try:
        config = load_config(run.config)
        rows, torn_rows = _read_rows(run.metrics)
        evaluations, torn_evaluations = _read_rows(run.evaluations)
        scores = _scores(evaluations)
        state = _state(config, rows, scores, run)
    except (ConfigError, OSError) as error:
        return Unreadable(path, str(error).replace(f"{run.config}: ", ""))
    return RunRecord(path, config, rows, scores, state, torn_rows + torn_evaluations)


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
    """The rows that are whole, by clock, and the number of lines that are not; the last line may be in the making."""
    if not path.is_file():
        return [], 0
    *lines, _unfinished = path.read_bytes().split(b"\n")
    parsed = [_parse(line) for line in lines if line.strip()]
    rows = [row for row in parsed if row is not None]
    return sorted(rows, key=lambda row: int(row["t"])), len(parsed) - len(rows)


def _parse(line: bytes) -> Row | None:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(row, dict) or type(row.get("t")) is not int or not _is_number(row["t"]):
        return None
    return {name: value for name, value in row.items() if (_is_numbers if name in _LISTS else _is_number)(value)}


def _scores(evaluations: Sequence[Row]) -> list[Score]:
    return [Score(row["t"], float(np.mean(row["scores"]))) for row in evaluations if row.get("scores")]


def _state(config: Config, rows: Sequence[Row], scores: Sequence[Score], run: RunDirectory) -> State:
    total = config.run.total_steps
    t = _clock(rows, scores)
    if scores and scores[-1].t >= total:
        return State("finished", f"at t = {scores[-1].t:,}")
    where = f"at t = {t:,} of {total:,}"
    if is_served(run):
        return State("unfinished", f"going on, {where}")
    if failure := _failure(run.logs):
        return State("failed", f"{where}: {failure}")
    if not rows and not scores:
        return State("empty", "nothing was logged yet")
    return State("unfinished", where if t < total else f"{where}: the last evaluation is missing")


def _failure(logs: Path) -> str | None:
    """The last error of a process that said nothing more after it; None if there is none."""
    if not logs.is_dir():
        return None
    endings = [_last_words(path) for path in sorted(logs.glob("*.log"))]
    return next((words for words in endings if words), None)


def _last_words(log: Path) -> str | None:
    words = None
    for line in log.read_text(encoding="utf-8", errors="replace").splitlines():
        logged = _LOGGED.match(line)
        if logged and logged["level"] not in ("ERROR", "CRITICAL"):
            words = None  # it went on
        elif logged:
            words = logged["text"]
        elif line.startswith(_TRACEBACK) or (words and line.strip() and not line.startswith(" ")):
            words = line.strip()
    return f"{log.name}: {words[:300]}" if words else None


def _clock(rows: Sequence[Row], scores: Sequence[Score]) -> int:
    return max([0, *(int(row["t"]) for row in rows[-1:]), *(score.t for score in scores[-1:])])


def _is_number(value: Any) -> bool:
    """Whether it is one that can be reckoned with: neither NaN nor infinite, nor beyond all measure."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return abs(value) < (_GREATEST_INT if isinstance(value, int) else _GREATEST_FLOAT)


def _is_numbers(value: Any) -> bool:
    return isinstance(value, list) and all(map(_is_number, value))
