"""Publish the results of experiments in docs/results/ and docs/results.md: `python -m docs.publish FOLDER...`.

Each folder is that of a finished experiment; the small CSV files of its report, and the pictures that the page shows,
are kept under its name. The tables of the page are generated from those files alone, and a test compares them. Without
a folder, only the page is written.
"""

from __future__ import annotations

import csv
import re
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from dpsr_apex.formatting import in_order, interval, number, probability
from dpsr_apex.report.command import report_runs

DOCS = Path(__file__).parent
PUBLISHED = DOCS / "results"
PAGE = DOCS / "results.md"

KEPT_FILES = ("curves.csv", "final.csv", "statistics.csv", "throughput.csv", "recycling.csv", "success.csv")
_MARKED = re.compile(r"(<!-- results: (\w+) (\w+) -->\n).*?(<!-- end of results -->)", re.DOTALL)

Rows = list[dict[str, str]]


def publish(folder: Path) -> None:
    """Copy the small files of the report on the experiment in `folder` to docs/results/, under its name."""
    kept = PUBLISHED / folder.name
    shutil.rmtree(kept, ignore_errors=True)
    kept.mkdir(parents=True)
    shutil.copy(folder / "experiment.toml", kept)
    page = PAGE.read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory() as report:
        report_runs([folder], Path(report))
        for path in Path(report).iterdir():
            if path.name in KEPT_FILES or f"(results/{folder.name}/{path.name})" in page:
                shutil.copy(path, kept)


def fill_in(text: str) -> str:
    """Return the page `text` with every marked table regenerated from the published files."""
    return _MARKED.sub(lambda marked: f"{marked[1]}{_table(marked[2], marked[3])}{marked[4]}", text)


def _table(kind: str, experiment: str) -> str:
    tables = {"scores": _scores, "improvements": _improvements, "success": _success}
    return tables[kind](PUBLISHED / experiment)


def _scores(folder: Path) -> str:
    """Return the final evaluation scores of every group."""
    intervals = {
        (row["scope"], row["of"]): row
        for row in _read(folder / "statistics.csv")
        if row["statistic"] == "interquartile mean"
    }
    lines = []
    for row in _read(folder / "final.csv"):
        estimate = intervals[row["environment"], row["group"]]
        iqm = [number(float(estimate["value"])), _interval(estimate)]
        others = [number(float(row[name])) for name in ("mean", "median", "least", "greatest")]
        lines.append([row["environment"], f"`{row['group']}`", row["n"], *iqm, *others])
    columns = ["environment", "method", "seeds", "IQM", "95% interval", "mean", "median", "min", "max"]
    return _markdown(columns, lines)


def _improvements(folder: Path) -> str:
    """Return the probability that a seed of dpsr scores higher than one of another method, for each method."""
    lines = [
        [row["scope"], f"`{row['of']}`", probability(float(row["value"])), _interval(row, 2)]
        for row in _read(folder / "statistics.csv")
        if row["statistic"] == "probability of improvement" and row["of"].startswith("dpsr ")
    ]
    return _markdown(["environment", "pair", "probability", "95% interval"], lines)


def _success(folder: Path) -> str:
    """Return the fractions of seeds that reached the goal in training, and in the final evaluation."""
    lines = [
        [row["environment"], f"`{row['group']}`", row["seeds"], *_share(row, "found"), *_share(row, "kept")]
        for row in sorted(_read(folder / "success.csv"), key=lambda row: in_order(row["environment"]))
    ]
    return _markdown(["environment", "method", "seeds", "found", "95% interval", "kept", "95% interval"], lines)


def _share(row: dict[str, str], name: str) -> list[str]:
    value, low, high = (probability(float(row[key])) for key in (name, f"{name}_low", f"{name}_high"))
    return [value, f"{low} – {high}"]


def _interval(row: dict[str, str], decimals: int | None = None) -> str:
    low, high = (float(row[end] or "nan") for end in ("low", "high"))
    return interval(low, high, number if decimals is None else probability)


def _read(path: Path) -> Rows:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def _markdown(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        publish(Path(argument))
    PAGE.write_text(fill_in(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
