"""`dpsr-apex report`: from run directories to a folder with a page, its pictures and its tables.

It writes into that folder alone, and changes nothing of what it reports about.
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
from dpsr_apex.console import make_console
from dpsr_apex.report import ReportError
from dpsr_apex.report.chapters import Chapter, common_chapter, environment_chapter
from dpsr_apex.report.comparison import Comparison, conclusions, figures
from dpsr_apex.report.files import remove_former, write_csvs
from dpsr_apex.report.groups import METHODS, Environment, group_runs
from dpsr_apex.report.numbers import counted, duration, interval, plain
from dpsr_apex.report.page import Page, RunLine, render
from dpsr_apex.report.records import RunRecord, Unreadable, find_runs, read_run
from dpsr_apex.report.success import Outcome, outcomes_of, success_chapter, success_of
from dpsr_apex.report.tables import describe_run, differences_table, runs_of

SEED = 0  # of the bootstrap: a report made again has the same numbers
_FEW = 2  # up to so many comparisons, or runs that did not finish, are all spoken of at the top


@dataclass(frozen=True)
class _Material:
    """Everything that was read, sorted."""

    environments: Sequence[Environment]
    records: Sequence[RunRecord]
    unreadable: Sequence[Unreadable]


def report_runs(paths: Sequence[Path], out: Path | None) -> int:
    """Make the report of the runs at or below `paths`, print where its page is, and give 0; else a ReportError."""
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
        (folder / f"{picture.name}.png").write_bytes(picture.png())
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
        runs=[
            RunLine(os.path.relpath(run.path, folder), _shown(run.path, root), describe_run(group, run))
            for group, run in runs_of(material.environments)
        ],
        unreadable=[(_shown(path, root), reason) for path, reason in material.unreadable],
        files=[file.name for file in files],
    )
    return _write_whole(folder / "index.html", render(page))


def _write_whole(path: Path, text: str) -> Path:
    """Whole or not at all: somebody may be reading the page of before."""
    temporary = path.with_name(f".unfinished-{path.name}")
    try:
        temporary.write_text(text, encoding="utf-8")
        return temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _common_folder(paths: Sequence[Path]) -> str:
    return os.path.commonpath([path.resolve().parent for path in paths])


def _shown(path: Path, root: str) -> str:
    return os.path.relpath(path.resolve(), root)


def _title(environments: Sequence[Environment]) -> str:
    names = [environment.name for environment in environments]
    where = " and ".join(names) if len(names) <= 2 else f"{len(names)} environments"
    methods = list(dict.fromkeys(group.method for environment in environments for group in environment.groups))
    *others, last = sorted(methods, key=METHODS.index)
    return f"{', '.join(others)} and {last} in {where}" if others else f"{last} in {where}"


def _summary(material: _Material, comparisons: Sequence[Comparison]) -> list[tuple[str, list[str]]]:
    """By heading; of many environments what is common to them alone, for each has its own in its chapter."""
    common = [comparison for comparison in comparisons if comparison.is_common]
    spoken = comparisons if len(comparisons) <= _FEW else common
    said = [(_heading(spoke), [*figures(spoke), *conclusions(spoke)]) for spoke in spoken]
    return [("", [_endings(material), *_unfinished(material)]), *said]


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
    said = ", ".join(f"{count} {ending}" for ending, count in endings.most_common())
    return f"{total}: {said}." + (" Final figures are of the finished ones alone." if endings["finished"] else "")


def _unfinished(material: _Material) -> list[str]:
    """What became of the runs that did not finish, where they are few."""
    open_runs = [record for record in material.records if record.state.ending != "finished"]
    said = [f"{record.path.resolve().name}: {record.state.ending}, {record.state.note}." for record in open_runs]
    return said if len(said) <= _FEW else []


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
            table.add_row(comparison.scope, label, seeds, plain(estimate.value), interval(estimate))
    if table.row_count:
        console.print(table, highlight=False)
    for path, reason in unreadable:
        console.print(f"left out {path}: {reason}", markup=False, highlight=False, soft_wrap=True)
    console.print(f"report {page}", markup=False, highlight=False, soft_wrap=True)
