"""Which checkpoint of a run is used: the newest, or one that was named; also while the run goes on. It only reads."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from dpsr_apex.config_files import load_config
from dpsr_apex.run.checkpoint import Checkpoint, DamagedCheckpoint, list_checkpoints, load_checkpoint
from dpsr_apex.run.run_directory import RunDirectory, RunDirectoryError

TRIES = 10  # of the newest checkpoint, each after the one before was replaced while it was read


def read_checkpoint(run: RunDirectory, chosen: Path | None = None) -> tuple[Path, Checkpoint]:
    """The newest checkpoint of a run, or the one given, and where it is; DamagedCheckpoint where it cannot be used.

    A RunDirectoryError says what to do where there is none.
    """
    if chosen:
        return _checked(run, chosen), load_checkpoint(chosen)
    for _ in range(TRIES):
        there = _standing(run)
        if not there:
            raise RunDirectoryError(_nothing_yet(run))
        newest = list(there)[-1]
        try:
            return newest, load_checkpoint(newest)
        except DamagedCheckpoint:
            # A run that goes on removes what is no longer among its newest, also while it is read here.
            if _standing(run) == there:
                raise
    raise RunDirectoryError(f"{run.path}: checkpoints are replaced faster than they can be read; try again")


def _checked(run: RunDirectory, chosen: Path) -> Path:
    if chosen.resolve().parent != run.checkpoints.resolve():
        raise RunDirectoryError(f"{chosen} is not a checkpoint of this run: they are in {run.checkpoints}")
    return chosen


def _standing(run: RunDirectory) -> dict[Path, int]:
    """The checkpoints of now, the oldest first, each with what tells it from another of the same name."""
    there: dict[Path, int] = {}
    for path in list_checkpoints(run.checkpoints):
        with suppress(FileNotFoundError):
            there[path] = path.stat().st_ino
    return there


def _nothing_yet(run: RunDirectory) -> str:
    period = load_config(run.config).run.checkpoint_period
    when = f"every {period:,} transitions and when the run ends" if period else "when the run ends or is stopped"
    return (
        f"{run.path} has no checkpoint yet: one is written {when}. "
        f"If it does not go on, start it again with its config {run.config}"
    )
