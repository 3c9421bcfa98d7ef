"""The CSV files beside the page: the data of the pictures and tables, in full precision.

The names of all files of a report are listed here, so that a new report can remove those of the previous one.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dpsr_apex.files import Row, write_atomically
from dpsr_apex.report.comparison import Comparison
from dpsr_apex.report.curves import DECILES
from dpsr_apex.report.groups import Environment, Group
from dpsr_apex.report.page import MARK
from dpsr_apex.report.records import RunRecord
from dpsr_apex.report.success import Outcome
from dpsr_apex.report.tables import Table, recycling_totals, runs_of, throughput_of

_OF_REPLAY = (
    *("age_mean", "priority_mean", "replaced_age_mean", "replaced_priority_mean", "recycled", "recycled_gain"),
    *("rounds_opened", "rounds_closed", "rounds_expired", "answers_late"),
    *("candidates_drawn", "candidates_applied", "candidates_stale", "candidates_lost"),
)
_DECILES = ("age_deciles", "priority_deciles")

_CURVES = ("environment", "group", "seed", "kind", "t", "score")
_FINAL = ("environment", "group", "n", "mean", "median", "least", "greatest", "scores")
_STATISTICS = ("scope", "unit", "statistic", "of", "value", "low", "high")
_THROUGHPUT = (
    *("environment", "group", "runs", "elapsed_seconds"),
    *("steps_per_second", "updates_per_second", "steps_per_update", "policy_age_mean", "policy_age_p95"),
)
_SUCCESS = ("environment", "group", "seeds", "found", "found_low", "found_high", "kept", "kept_low", "kept_high")
_PROVENANCE = (
    *("environment", "group", "seed", "run", "t", "began"),
    *("command", "software", "machine", "ended", "ended_t", "outcome"),
)
_REPLAY = (
    *("environment", "group", "seed", "t", *_OF_REPLAY),
    *(f"{name}_{10 * decile}" for name in _DECILES for decile in range(DECILES)),
)

_WRITTEN = re.compile(
    r"(curves|final|statistics|throughput|replay|recycling|config_differences|provenance|success)\.csv|success\.png"
    r"|(\d+_[a-z0-9-]*|all)_(evaluation|training|iqm|improvement|replay_\d+|gain)\.png"
)


def remove_former(folder: Path) -> None:
    """Remove the pictures and CSV files of an earlier report in this folder."""
    page = folder / "index.html"
    if page.is_file() and MARK.encode() in page.read_bytes():
        for path in folder.iterdir():
            if _WRITTEN.fullmatch(path.name):
                path.unlink()


def write_csvs(
    out: Path,
    environments: Sequence[Environment],
    comparisons: Sequence[Comparison],
    differences: Table | None,
    outcomes: Sequence[Outcome],
) -> list[Path]:
    """Write all files that have content, and return their paths."""
    groups = [group for environment in environments for group in environment.groups]
    files: dict[str, tuple[Sequence[str], Iterable[Sequence[Any]]]] = {
        "curves.csv": (_CURVES, _curves(groups)),
        "final.csv": (_FINAL, map(_final, groups)),
        "statistics.csv": (_STATISTICS, _statistics(comparisons)),
        "throughput.csv": (_THROUGHPUT, map(_throughput, groups)),
        "replay.csv": (_REPLAY, _replay(groups)),
        "recycling.csv": (("environment", "group", "counter", "sum"), _recycling(groups)),
    }
    if differences:
        files["config_differences.csv"] = differences.columns, differences.rows
    if parts := list(_parts(environments)):
        files["provenance.csv"] = _PROVENANCE, parts
    if outcomes:
        files["success.csv"] = _SUCCESS, map(_success, outcomes)
    return [_write(out / name, columns, rows) for name, (columns, rows) in files.items()]


def _write(path: Path, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> Path:
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow(columns)
    writer.writerows([_harmless(cell) for cell in row] for row in rows)
    write_atomically(path, text.getvalue())
    return path


def _harmless(cell: Any) -> Any:
    """Return the cell, with a quote before text that a spreadsheet would interpret as a formula."""
    return f"'{cell}" if isinstance(cell, str) and cell.startswith(("=", "+", "-", "@")) else cell


def _curves(groups: Sequence[Group]) -> Iterable[Sequence[Any]]:
    for group in groups:
        for run in group.runs:
            name = _name(group, run)
            yield from ([*name, "evaluation", score.t, score.mean] for score in run.scores)
            played = [row for row in run.rows if "return_mean" in row]
            yield from ([*name, "training", row["t"], row["return_mean"]] for row in played)


def _final(group: Group) -> Sequence[Any]:
    scores = group.final_scores
    figures = [scores.mean(), np.median(scores), scores.min(), scores.max()] if len(scores) else [""] * 4
    return [group.environment, group.label, len(scores), *figures, " ".join(map(str, scores.tolist()))]


def _statistics(comparisons: Sequence[Comparison]) -> Iterable[Sequence[Any]]:
    for comparison in comparisons:
        for label, estimate in comparison.means.items():
            yield [comparison.scope, comparison.unit, "interquartile mean", label, *estimate]
        for pair in comparison.improvements:
            yield [comparison.scope, "share", "probability of improvement", f"{pair.x} > {pair.y}", *pair.estimate]


def _throughput(group: Group) -> Sequence[Any]:
    return [group.environment, group.label, len(group.runs), *throughput_of(group)]


def _replay(groups: Sequence[Group]) -> Iterable[Sequence[Any]]:
    for group in groups:
        for run in group.runs:
            for row in run.rows:
                deciles = [value for name in _DECILES for value in _deciles(row, name)]
                yield [*_name(group, run), row["t"], *(row.get(name) for name in _OF_REPLAY), *deciles]


def _deciles(row: Row, name: str) -> Sequence[Any]:
    values = row.get(name) or []  # None for an empty replay
    return values if len(values) == DECILES else [None] * DECILES


def _recycling(groups: Sequence[Group]) -> Iterable[Sequence[Any]]:
    for group in groups:
        yield from ([group.environment, group.label, *item] for item in recycling_totals(group).items())


def _parts(environments: Sequence[Environment]) -> Iterable[Sequence[Any]]:
    for group, run in runs_of(environments):
        yield from ([*_name(group, run), run.path.name, *part] for part in run.parts)


def _success(outcome: Outcome) -> Sequence[Any]:
    group = outcome.group
    return [group.environment, group.label, outcome.runs, *outcome.found, *outcome.kept]


def _name(group: Group, run: RunRecord) -> list[Any]:
    return [group.environment, group.label, run.config.run.seed]
