"""The journal of a run as tables."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from rich.console import Console
from rich.table import Table

from dpsr_apex.config_files import load_config
from dpsr_apex.live.console import make_console
from dpsr_apex.record.checkpoint import clock_of, list_checkpoints, newest_complete
from dpsr_apex.record.journal.disk import RealDisk
from dpsr_apex.record.journal.position import position_of
from dpsr_apex.record.journal.summary import Summary, summarize
from dpsr_apex.record.lock import is_served
from dpsr_apex.record.run_directory import RunDirectory, RunDirectoryError

TRIES = 5  # to read a journal whose segments are removed meanwhile


def show_journal(path: Path) -> int:
    """Print what the journal of the run in `path` contains; return the exit code: 1 if it is damaged."""
    run = RunDirectory.open(path)
    config, console = load_config(run.config), make_console()
    if config.system.actors == 0:
        console.print(
            "A single-process run has no journal: it continues bit for bit from its newest checkpoint.", soft_wrap=True
        )
        return 0
    newest, found = _summary(run)
    t = clock_of(newest) if newest else 0
    head = f"Durability: {config.run.durability}. Newest checkpoint: {newest or 'none'} (t = {t:,})"
    console.print(head, soft_wrap=True)
    _show_segments(console, found)
    _show_recovery(console, found, t)
    if found.tail and not is_served(run):
        size = f"{found.tail.size:,} bytes"
        console.print(f"The last write was interrupted: {size}, which nobody depends on, will be removed")
    for aside in found.set_aside:
        console.print(f"Damaged, and given up: {aside}. Remove it when you do not need it any more", soft_wrap=True)
    if found.damage:
        console.print(str(found.damage), soft_wrap=True)
    return 1 if found.damage else 0


def _summary(run: RunDirectory) -> tuple[Path | None, Summary]:
    """Return the newest complete checkpoint, and the journal with what follows it.

    A run may complete a checkpoint meanwhile, and remove what it covers; then everything is read again.
    """
    for _ in range(TRIES):
        checkpoints, newest = list_checkpoints(run.checkpoints), newest_complete(run.checkpoints)
        place = (position_of(newest), clock_of(newest)) if newest else (0, 0)
        with suppress(FileNotFoundError):
            found = summarize(RealDisk(), run.journal, *place)
            if checkpoints == list_checkpoints(run.checkpoints):
                return newest, found
    raise RunDirectoryError(f"{run.path}: checkpoints are written faster than the journal can be read. Try again")


def _show_segments(console: Console, found: Summary) -> None:
    table = Table("segment", "MB", "records", "first", "t", box=None, pad_edge=False)
    for segment in found.segments:
        first, last = segment.t
        size, clocks = f"{segment.size / 1e6:,.1f}", f"{first:,} – {last:,}"
        table.add_row(segment.path.name, size, f"{segment.records:,}", f"{segment.first:,}", clocks)
    console.print(table if found.segments else "There are no segments.")


def _show_recovery(console: Console, found: Summary, t: int) -> None:
    learner = "none" if found.learner_updates is None else f"{found.learner_updates:,} updates"
    console.print(f"State of the learner beside the journal: {learner}")
    console.print(
        f"A recovery would apply {found.applied:,} records with {found.transitions:,} transitions: "
        f"t = {t:,} → {found.t:,}"
    )
    if found.events:
        table = Table("event", "count", box=None, pad_edge=False)
        for name, count in found.events.most_common():
            table.add_row(name, f"{count:,}")
        console.print(table)
