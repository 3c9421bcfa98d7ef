"""Puts what experiments brought into docs/results/ and docs/results.md: `python -m docs.publish FOLDER...`.

Each folder is that of a finished experiment; small CSV files and pictures of its report are kept under its name. The
tables in the page are made from those files alone, and a test holds the page to them.
"""

from __future__ import annotations

import csv
import re
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from dpsr_apex.report.command import report_runs
from dpsr_apex.report.numbers import duration, plain, probability

DOCS = Path(__file__).parent
PUBLISHED = DOCS / "results"
PAGE = DOCS / "results.md"

KEPT_FILES = ("curves.csv", "final.csv", "statistics.csv", "throughput.csv", "recycling.csv", "success.csv")
KEPT_PICTURES = re.compile(r"(\d+_.*_(evaluation|training|iqm|improvement|gain)|all_improvement|success)\.png")
_MARKED = re.compile(r"(<!-- results: (\w+) (\w+) -->\n).*?(<!-- end of results -->)", re.DOTALL)

Rows = list[dict[str, str]]


def publish(folder: Path) -> None:
    """Keep the small files of an experiment's report under its name."""
    kept = PUBLISHED / folder.name
    shutil.rmtree(kept, ignore_errors=True)
    kept.mkdir(parents=True)
    shutil.copy(folder / "experiment.toml", kept)
    with tempfile.TemporaryDirectory() as made:
        report_runs([folder], Path(made))
        for path in Path(made).iterdir():
            if path.name in KEPT_FILES or KEPT_PICTURES.fullmatch(path.name):
                shutil.copy(path, kept)


def fill_in(text: str) -> str:
    """The page with every marked table made anew from the published files."""
    return _MARKED.sub(lambda marked: f"{marked[1]}{_table(marked[2], marked[3])}{marked[4]}", text)


def _table(kind: str, experiment: str) -> str:
    tables = {"scores": _scores, "improvements": _improvements, "success": _success, "time": _time}
    return tables[kind](PUBLISHED / experiment)


def _scores(folder: Path) -> str:
    """The final evaluations of every group."""
    intervals = {
        (row["scope"], row["of"]): row
        for row in _read(folder / "statistics.csv")
        if row["statistic"] == "interquartile mean"
    }
    lines = []
    for row in _read(folder / "final.csv"):
        estimate = intervals[row["environment"], row["group"]]
        middle = [plain(float(estimate["value"])), _interval(estimate)]
        others = [plain(float(row[name])) for name in ("mean", "median", "least", "greatest")]
        lines.append([row["environment"], f"`{row['group']}`", row["n"], *middle, *others])
    columns = ["environment", "method", "seeds", "IQM", "95% interval", "mean", "median", "least", "greatest"]
    return _markdown(columns, lines)


def _improvements(folder: Path) -> str:
    """How likely a seed of dpsr scores higher than one of another method."""
    lines = [
        [row["scope"], f"`{row['of']}`", probability(float(row["value"])), _interval(row, 2)]
        for row in _read(folder / "statistics.csv")
        if row["statistic"] == "probability of improvement" and row["of"].startswith("dpsr ")
    ]
    return _markdown(["environment", "pair", "probability", "95% interval"], lines)


def _success(folder: Path) -> str:
    """How many seeds found the way, and how many kept it."""
    lines = [
        [row["environment"], f"`{row['group']}`", row["seeds"], *_share(row, "found"), *_share(row, "kept")]
        for row in _read(folder / "success.csv")
    ]
    return _markdown(["environment", "method", "seeds", "found", "95% interval", "kept", "95% interval"], lines)


def _share(row: dict[str, str], name: str) -> list[str]:
    value, low, high = (probability(float(row[key])) for key in (name, f"{name}_low", f"{name}_high"))
    return [value, f"{low} – {high}"]


def _time(folder: Path) -> str:
    """What it took."""
    lines = [
        [row["environment"], f"`{row['group']}`", row["runs"], duration(float(row["elapsed_seconds"])),
         plain(float(row["steps_per_second"]))]
        for row in _read(folder / "throughput.csv")
    ]  # fmt: skip
    return _markdown(["environment", "method", "runs", "wall clock a run", "steps/s"], lines)


def _interval(row: dict[str, str], decimals: int | None = None) -> str:
    if "nan" in (row["low"], row["high"]) or not row["low"]:
        return "–"
    shown = plain if decimals is None else probability
    return f"{shown(float(row['low']))} – {shown(float(row['high']))}"


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
