"""`dpsr-apex report`: generate a folder with a page, its pictures and its tables from run directories.

It writes only to that folder, and does not change the runs.
"""

from __future__ import annotations

import os
import platform
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import matplotlib as mpl
import numpy as np
from rich.console import Console
from rich.progress import Progress
from rich.table import Table as TerminalTable

from dpsr_apex import __version__
from dpsr_apex.files import write_atomically
from dpsr_apex.formatting import counted, duration, interval, number
from dpsr_apex.live.console import make_console
from dpsr_apex.methods import METHODS
from dpsr_apex.report import ReportError
from dpsr_apex.report.chapters import Chapter, common_chapter, environment_chapter
from dpsr_apex.report.comparison import Comparison, conclusions, figures
from dpsr_apex.report.files import remove_former, write_csvs
from dpsr_apex.report.groups import Environment, group_runs
from dpsr_apex.report.page import Page, RunLine, render
from dpsr_apex.report.records import RunRecord, Unreadable, find_runs, read_run
from dpsr_apex.report.success import Outcome, outcomes_of, success_chapter, success_of
from dpsr_apex.report.tables import describe_run, differences_table, provenance_table, runs_of

SEED = 0  # of the bootstrap, so that a repeated report has the same numbers
_FEW = 2  # up to this number, comparisons and unfinished runs are described one by one at the top


@dataclass(frozen=True)
class _Material:
    """Everything that was read, in groups."""

    environments: Sequence[Environment]
    records: Sequence[RunRecord]
    unreadable: Sequence[Unreadable]


def report_runs(paths: Sequence[Path], out: Path | None) -> int:
    """Generate the report of the runs at or below `paths` and print its path; return the exit code.

    Raise ReportError if there is no readable run, or the report cannot be written.
    """
    console = make_console()
    found = find_runs(paths)
    folder = out if out is not None else paths[0] / "report" if len(paths) == 1 else Path("report")
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        material = _read(progress.track(found, description="reading"))
        rng = np.random.default_rng(SEED)
        numbered = list(enumerate(material.environments, start=1))
        chapters = [
            environment_chapter(number, environment, rng)
            for number, environment in progress.track(numbered, description="comparing")
        ]
        goal = success_of(paths)
        outcomes = outcomes_of(goal, material.environments) if goal is not None else []
        successes = success_chapter(goal, material.environments, outcomes) if goal is not None and outcomes else None
        chapters = [*filter(None, [common_chapter(material.environments, rng), successes]), *chapters]
        try:
            page = _write(folder, material, chapters, outcomes, progress)
        except OSError as error:
            raise ReportError(f"{folder}: the report cannot be written there: {error.strerror or error}") from error
    _print_summary(console, page, chapters, material.unreadable)
    return 0


def _read(paths: Iterable[Path]) -> _Material:
    read = [read_run(path) for path in paths]
    records = [record for record in read if isinstance(record, RunRecord)]
    unreadable = [record for record in read if isinstance(record, Unreadable)]
    if not records:
        reasons = "; ".join(f"{path}: {reason}" for path, reason in unreadable)
        raise ReportError(f"no run can be read: {reasons}")
    return _Material(group_runs(records), records, unreadable)


def _write(
    folder: Path, material: _Material, chapters: Sequence[Chapter], outcomes: Sequence[Outcome], progress: Progress
) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    remove_former(folder)
    pictures = [picture for chapter in chapters for picture in chapter.pictures]
    drawn = {}
    for picture in progress.track(pictures, description="drawing"):
        write_atomically(folder / f"{picture.name}.png", picture.png())
        drawn[picture.name] = picture.svg()
    comparisons = [chapter.comparison for chapter in chapters if chapter.comparison]
    differences = differences_table(material.environments)
    files = write_csvs(folder, material.environments, comparisons, differences, outcomes)
    root = _common_folder([*(record.path for record in material.records), *(path for path, _ in material.unreadable)])
    page = Page(
        title=_title(material.environments),
        summary=_summary(material, comparisons),
        facts=_facts(material),
        made=_made(),
        chapters=chapters,
        drawn=drawn,
        differences=differences,
        provenance=provenance_table(material.records),
        runs=[
            RunLine(os.path.relpath(run.path, folder), _shown(run.path, root), describe_run(group, run))
            for group, run in runs_of(material.environments)
        ],
        unreadable=[(_shown(path, root), reason) for path, reason in material.unreadable],
        files=[file.name for file in files],
    )
    write_atomically(folder / "index.html", render(page))
    return folder / "index.html"


def _common_folder(paths: Sequence[Path]) -> str:
    return os.path.commonpath([path.resolve().parent for path in paths])


def _shown(path: Path, root: str) -> str:
    return os.path.relpath(path.resolve(), root)


def _title(environments: Sequence[Environment]) -> str:
    names = [environment.name for environment in environments]
    where = " and ".join(names) if len(names) <= 2 else f"{len(names)} environments"
    used = {group.method for environment in environments for group in environment.groups}
    *others, last = [method for method in METHODS if method in used]
    return f"{', '.join(others)} and {last} in {where}" if others else f"{last} in {where}"


def _summary(material: _Material, comparisons: Sequence[Comparison]) -> list[tuple[str, list[str]]]:
    """Return sentences by heading; with many environments only those about all, because each has its own chapter."""
    common = [comparison for comparison in comparisons if comparison.is_common]
    chosen = comparisons if len(comparisons) <= _FEW else common
    sentences = [(_heading(one), [*figures(one), *conclusions(one)]) for one in chosen]
    return [("", [_endings(material), *_unfinished(material)]), *sentences]


def _heading(comparison: Comparison) -> str:
    return f"{comparison.scope}, {comparison.unit}" if comparison.unit else comparison.scope


def _endings(material: _Material) -> str:
    endings: Counter[str] = Counter(record.state.ending for record in material.records)
    if material.unreadable:
        endings["unreadable"] = len(material.unreadable)
    total = counted(endings.total(), "run")
    if len(endings) == 1:
        ending = next(iter(endings))
        return f"{total}, {ending}." if endings.total() == 1 else f"{total}, all {ending}."
    listed = ", ".join(f"{count} {ending}" for ending, count in endings.most_common())
    return f"{total}: {listed}." + (" Final scores are of the finished runs only." if endings["finished"] else "")


def _unfinished(material: _Material) -> list[str]:
    """Return a sentence for each unfinished run, if there are few."""
    open_runs = [record for record in material.records if record.state.ending != "finished"]
    states = [f"{record.path.resolve().name}: {record.state.ending}, {record.state.note}." for record in open_runs]
    return states if len(states) <= _FEW else []


def _facts(material: _Material) -> dict[str, str]:
    seconds = sum(record.last("elapsed_seconds") or 0.0 for record in material.records)
    return {
        "runs": f"{len(material.records) + len(material.unreadable):,}",
        "environments": f"{len(material.environments):,}",
        "transitions": f"{sum(record.t for record in material.records):,}",
        "wall clock, all runs": duration(seconds),
    }


def _made() -> str:
    versions = f"dpsr_apex {__version__}, Python {platform.python_version()}, numpy {np.__version__}"
    return f"Made on {datetime.now():%Y-%m-%d at %H:%M} with {versions} and matplotlib {mpl.__version__}."


def _print_summary(console: Console, page: Path, chapters: Sequence[Chapter], unreadable: Sequence[Unreadable]) -> None:
    table = TerminalTable("", "group", "seeds", "IQM", "95% interval", box=None, pad_edge=False)
    for comparison in (chapter.comparison for chapter in chapters if chapter.comparison):
        for label, estimate in comparison.means.items():
            seeds = str(comparison.seeds[label])
            table.add_row(comparison.scope, label, seeds, number(estimate.value), interval(estimate.low, estimate.high))
    if table.row_count:
        console.print(table, highlight=False)
    for path, reason in unreadable:
        console.print(f"Skipped {path}: {reason}", markup=False, highlight=False, soft_wrap=True)
    console.print(f"Report: {page}", markup=False, highlight=False, soft_wrap=True)
