"""The replay of a run, out of one of its checkpoints: of a run of one process or of many, also while it goes on.

It only reads: neither the run nor its checkpoints are touched, and torch is not needed.
"""

from __future__ import annotations

import shlex
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np

from dpsr_apex.config import Config
from dpsr_apex.config_files import load_config
from dpsr_apex.inspection import InspectionError
from dpsr_apex.processes.lock import is_served
from dpsr_apex.replay.memory import DpsrReplay
from dpsr_apex.run.checkpoint import MANIFEST, Checkpoint, DamagedCheckpoint, list_checkpoints, load_checkpoint
from dpsr_apex.run.commands import typed_command
from dpsr_apex.run.run_directory import RunDirectory
from dpsr_apex.state import State

TRIES = 10  # of the newest checkpoint, each after the one before was replaced while it was read


class Opened(NamedTuple):
    """A run as one of its checkpoints knows it."""

    run: RunDirectory
    config: Config
    checkpoint: Checkpoint
    saved_at: float  # seconds since the epoch
    replay: DpsrReplay

    @property
    def title(self) -> str:
        """One line for a person."""
        config = self.config
        return f"{config.env.name} · {config.replay.method} · seed {config.run.seed} · {self.run.path}"


def open_run(path: Path, chosen: Path | None = None) -> Opened:
    """The run in `path` with the replay of its newest checkpoint, or of the one given."""
    run = RunDirectory.open(path)
    config = load_config(run.config)
    where, checkpoint = read_checkpoint(run, chosen)
    return Opened(run, config, checkpoint, _saved_at(where), replay_of(config, checkpoint.parts["replay"]))


def read_checkpoint(run: RunDirectory, chosen: Path | None = None) -> tuple[Path, Checkpoint]:
    """The newest checkpoint of a run, or the one given, and where it is."""
    if chosen:
        return _checked(run, chosen), load_checkpoint(chosen)
    for _ in range(TRIES):
        there = _standing(run)
        if not there:
            raise InspectionError(_nothing_yet(run))
        newest = list(there)[-1]
        try:
            return newest, load_checkpoint(newest)
        except DamagedCheckpoint:
            # A run that goes on removes what is no longer among its newest, also while it is read here.
            if _standing(run) == there:
                raise
    raise InspectionError(f"{run.path}: checkpoints are replaced faster than they can be read; try again")


def replay_of(config: Config, state: State) -> DpsrReplay:
    """The replay in that part of a checkpoint; among many processes it lies one level deeper than in one."""
    replay = DpsrReplay(config.replay, config.run.total_steps, np.random.default_rng(0))
    replay.load(state.facts.get("server", state.facts)["replay"], state.arrays)
    return replay


def seconds_behind(opened: Opened) -> float | None:
    """How old the checkpoint is, by the wall clock, while its run goes on; None for a run that does not."""
    return max(time.time() - opened.saved_at, 0.0) if is_served(opened.run) else None


def pasteable(*words: str | Path) -> str:
    """A command of ours as it can be typed into a shell."""
    return " ".join([typed_command(), *(shlex.quote(str(word)) for word in words)])


def _checked(run: RunDirectory, chosen: Path) -> Path:
    if chosen.resolve().parent != run.checkpoints.resolve():
        raise InspectionError(f"{chosen} is not a checkpoint of this run: they are in {run.checkpoints}")
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
    return f"{run.path} has no checkpoint yet, and only there a replay can be looked into: one is written {when}"


def _saved_at(checkpoint: Path) -> float:
    try:
        return (checkpoint / MANIFEST).stat().st_mtime
    except FileNotFoundError:  # replaced by a newer one since it was read
        return time.time()
