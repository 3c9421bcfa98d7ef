"""Choose and read a checkpoint of a run: the newest or a given one, even while the run writes others."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from dpsr_apex.config_files import load_config
from dpsr_apex.record.checkpoint import Checkpoint, DamagedCheckpoint, list_checkpoints, load_checkpoint
from dpsr_apex.record.run_directory import RunDirectory, RunDirectoryError
from dpsr_apex.record.settings import ensure_fits

TRIES = 10  # attempts to read the newest checkpoint, which may be removed while it is read


def read_checkpoint(run: RunDirectory, chosen: Path | None = None) -> tuple[Path, Checkpoint]:
    """Return the path and the content of a run's newest checkpoint, or of the chosen one.

    Raise DamagedCheckpoint if it cannot be used, RunDirectoryError if there is none, and ConfigError if the config of
    the run was edited so that it does not fit.
    """
    path, found = (checked(run, chosen), load_checkpoint(chosen)) if chosen else _newest(run)
    ensure_fits(load_config(run.config), found, run.config)
    return path, found


def _newest(run: RunDirectory) -> tuple[Path, Checkpoint]:
    for _ in range(TRIES):
        present = _present(run)
        if not present:
            raise RunDirectoryError(_no_checkpoint(run))
        newest = list(present)[-1]
        try:
            return newest, load_checkpoint(newest)
        except DamagedCheckpoint:
            # A running run may remove older checkpoints while they are read here.
            if _present(run) == present:
                raise
    raise RunDirectoryError(f"{run.path}: checkpoints are removed faster than they can be read. Try again")


def checked(run: RunDirectory, chosen: Path) -> Path:
    """Return a chosen checkpoint; raise RunDirectoryError if it is not one of this run."""
    if chosen.resolve().parent != run.checkpoints.resolve():
        raise RunDirectoryError(f"{chosen} is not a checkpoint of this run. Its checkpoints are in {run.checkpoints}")
    return chosen


def _present(run: RunDirectory) -> dict[Path, int]:
    """Return the existing checkpoints, oldest first, with their inodes, because a name may be reused."""
    inodes: dict[Path, int] = {}
    for path in list_checkpoints(run.checkpoints):
        with suppress(FileNotFoundError):
            inodes[path] = path.stat().st_ino
    return inodes


def _no_checkpoint(run: RunDirectory) -> str:
    period = load_config(run.config).run.checkpoint_period
    when = f"every {period:,} transitions and when the run ends" if period else "when the run ends or is stopped"
    return (
        f"{run.path} has no checkpoint yet: one is written {when}. "
        f"If it is not running, start it again with its config {run.config}"
    )
