"""The runs in a folder: find them, open them by name, and describe each in one line.

Names come from outside and never lead to a path outside the folder. Nothing is written.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from dpsr_apex.config import ConfigError
from dpsr_apex.config_files import load_config
from dpsr_apex.errors import UserError
from dpsr_apex.files import Row, read_last_row, read_rows
from dpsr_apex.record.ending import read_ending
from dpsr_apex.record.lock import is_served
from dpsr_apex.record.progress import goal_of, is_evaluated, saved_at
from dpsr_apex.record.run_directory import RunDirectory
from dpsr_apex.report import ReportError
from dpsr_apex.report.records import find_runs
from dpsr_apex.web import Refusal, WebError

SPARK_POINTS = 40
_WHOLE = 256 * 1024  # bytes of a file of rows that is read as a whole


class Runs:
    """The runs at or below `root`, by name: their path from there. A run directory alone has its own name."""

    def __init__(self, root: Path) -> None:
        if not root.is_dir():
            raise WebError(f"{root}: no such folder; give a run directory, or a folder that holds runs")
        self.root = root.resolve()
        self.is_single = (root / "config.toml").is_file()
        self._lines: dict[str, tuple[Any, dict[str, Any]]] = {}  # by name: state of the files, and the line

    def names(self) -> list[str]:
        """Return the names of all runs, the newest first."""
        if self.is_single:
            return [self.root.name]
        try:
            paths = find_runs([self.root])
        except (ReportError, OSError):
            return []
        inside = [path for path in paths if path.resolve().is_relative_to(self.root)]
        return [self.name_of(path) for path in sorted(inside, key=_changed_at, reverse=True)]

    def name_of(self, path: Path) -> str:
        """Return the name of a run directory."""
        return self.root.name if self.is_single else path.resolve().relative_to(self.root).as_posix()

    def open(self, name: str) -> RunDirectory:
        """Return the run of this name; raise Refusal if there is none in the folder, or it leads out of it."""
        run = RunDirectory(self._path(name))
        if not run.config.is_file():
            raise Refusal(404, f"There is no run {name} in {self.root}.")
        return run

    def inside(self, run: RunDirectory, *parts: str) -> Path:
        """Return the path of a file in a run; raise Refusal if it leads out of the run, also by a link."""
        path = run.path.joinpath(*parts)
        if any(part in ("", ".", "..") or "/" in part or "\0" in part for part in parts) or not path.is_file():
            raise Refusal(404, f"There is no such file in the run: {'/'.join(parts)}")
        if not path.resolve().is_relative_to(run.path.resolve()):
            raise Refusal(403, f"{'/'.join(parts)} is outside the run.")
        return path

    def _path(self, name: str) -> Path:
        if self.is_single:
            if name != self.root.name:
                raise Refusal(404, f"There is no run {name} here.")
            return self.root
        if "\0" in name or name.startswith("/"):
            raise Refusal(404, "No such run.")
        path = (self.root / name).resolve()
        if not path.is_relative_to(self.root):
            raise Refusal(403, f"{name} is outside {self.root}.")
        return path

    def lines(self) -> Iterator[dict[str, Any]]:
        """Yield a line for each run, the newest first; lines of runs that have not changed are cached."""
        names = self.names()
        self._lines = {name: self._lines[name] for name in names if name in self._lines}
        for name in names:
            run = RunDirectory(self._path(name))
            state = _file_state(run)
            known = self._lines.get(name)
            if known is None or known[0] != state:
                known = self._lines[name] = (state, describe_run(name, run))
            yield known[1]


class _Progress(NamedTuple):
    state: str
    note: str


def describe_run(name: str, run: RunDirectory) -> dict[str, Any]:
    """Return one line about a run as JSON; one that cannot be read has the state "damaged", and the reason."""
    try:
        config = load_config(run.config)
        goal, last = goal_of(config.run), read_last_row(run.metrics)
        evaluations = read_rows(run.evaluations, [])
        done = goal.done(last) if last else 0
        progress = _progress(run)
        score = evaluations[-1].get("mean") if evaluations else (last or {}).get("return_mean")
    except (ConfigError, OSError, UserError, KeyError, TypeError, ValueError) as error:
        return {"run": name, "state": "damaged", "note": str(error).replace(f"{run.config}: ", "")}
    return {
        "run": name,
        "state": progress.state,
        "note": progress.note,
        "environment": config.env.name,
        "method": config.replay.method,
        "seed": config.run.seed,
        "t": last["t"] if last else 0,
        "done": done,
        "goal": goal.steps,
        "unit": goal.unit,
        "score": score,
        "spark": spark(run),
        "processes": config.system.actors != 0,
        "changed": _changed_at(run.path),
    }


def spark(run: RunDirectory) -> list[list[float]]:
    """Return a few points of the run's scores: of its evaluations, or of its training if there are only a few."""
    evaluations = _points(read_rows(run.evaluations, []), "mean")
    found = evaluations if len(evaluations) > 3 else _points(sample_rows(run.metrics, SPARK_POINTS), "return_mean")
    return found[:: -(-len(found) // SPARK_POINTS)] if found else []


def sample_rows(path: Path, count: int) -> list[Row]:
    """Return about `count` rows, evenly spread over a file of rows that may be large, or all of a small one."""
    try:
        size = path.stat().st_size
        if size <= _WHOLE:
            return read_rows(path, [])
        rows: dict[int, Row] = {}
        with path.open("rb") as file:
            for part in range(count):
                file.seek(size * part // count)
                if part:
                    file.readline()  # the rest of a line
                if row := _parse(file.readline()):
                    rows[row["t"]] = row
    except FileNotFoundError:
        return []
    return [rows[t] for t in sorted(rows)]


def _parse(line: bytes) -> Row | None:
    try:
        row = json.loads(line) if line.endswith(b"\n") else None
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) and type(row.get("t")) is int else None


def _points(rows: list[Row], name: str) -> list[list[float]]:
    return [[row["t"], float(row[name])] for row in rows if isinstance(row.get(name), int | float)]


def _progress(run: RunDirectory) -> _Progress:
    if is_served(run):
        return _Progress("running", "")
    ending, saved = read_ending(run), saved_at(run)
    if is_evaluated(run):
        return _Progress("finished", "")
    if ending and ending.outcome == "failed":
        return _Progress("failed", f"{ending.process}: {ending.cause}")
    at = f"saved at t = {saved:,}" if saved else "nothing was saved"
    return _Progress("stopped" if ending else "killed", at)


def _changed_at(path: Path) -> float:
    run = RunDirectory(path)
    return max((_stat(file)[0] for file in (run.metrics, run.evaluations, run.config)), default=0.0)


def _file_state(run: RunDirectory) -> Any:
    """Return a value that changes whenever the line about a run may change."""
    files = (run.config, run.metrics, run.evaluations, run.ending, run.checkpoints, run.journal)
    return is_served(run), *map(_stat, files)


def _stat(path: Path) -> tuple[float, int]:
    try:
        found = os.stat(path)
    except OSError:
        return 0.0, 0
    return found.st_mtime, found.st_size
