"""Load the replay of a run from one of its checkpoints, also while the run is in progress.

Works for single-process and multi-process runs. Nothing is written, and torch is not imported.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import NamedTuple

import numpy as np

from dpsr_apex.config import Config
from dpsr_apex.config_files import load_config
from dpsr_apex.record.checkpoint import MANIFEST, Checkpoint
from dpsr_apex.record.choice import read_checkpoint
from dpsr_apex.record.lock import is_served
from dpsr_apex.record.run_directory import RunDirectory, title_of
from dpsr_apex.replay.replay import Replay
from dpsr_apex.state import State


class OpenedRun(NamedTuple):
    """A run with one of its checkpoints and the replay in it."""

    run: RunDirectory
    config: Config
    checkpoint: Checkpoint
    saved_at: float  # seconds since the epoch
    replay: Replay

    @property
    def title(self) -> str:
        """One line that names the run."""
        return title_of(self.config, self.run.path)


def open_run(path: Path, chosen: Path | None = None) -> OpenedRun:
    """Open the run in `path` with the replay of its newest checkpoint, or of checkpoint `chosen`."""
    run = RunDirectory.open(path)
    config = load_config(run.config)
    folder, checkpoint = read_checkpoint(run, chosen)
    return OpenedRun(run, config, checkpoint, _saved_at(folder), load_replay(config, checkpoint.parts["replay"]))


def load_replay(config: Config, state: State) -> Replay:
    """Rebuild the replay from the "replay" part of a checkpoint."""
    replay = Replay(config.replay, config.run.total_steps, np.random.default_rng(0))
    replay.load(state.facts["replay"], state.arrays)
    return replay


def checkpoint_age(opened: OpenedRun) -> float | None:
    """Return the age of the checkpoint in seconds while the run is in progress; None if it is not running."""
    return max(time.time() - opened.saved_at, 0.0) if is_served(opened.run) else None


def _saved_at(checkpoint: Path) -> float:
    try:
        return (checkpoint / MANIFEST).stat().st_mtime
    except FileNotFoundError:  # deleted in favour of a newer one since it was read
        return time.time()
