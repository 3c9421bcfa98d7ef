"""The replay of a run, out of one of its checkpoints: of a run of one process or of many, also while it goes on.

It only reads: neither the run nor its checkpoints are touched, and torch is not needed.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import NamedTuple

import numpy as np

from dpsr_apex.config import Config
from dpsr_apex.config_files import load_config
from dpsr_apex.processes.lock import is_served
from dpsr_apex.replay.memory import DpsrReplay
from dpsr_apex.run.checkpoint import MANIFEST, Checkpoint
from dpsr_apex.run.choice import read_checkpoint
from dpsr_apex.run.run_directory import RunDirectory, title_of
from dpsr_apex.state import State


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
        return title_of(self.config, self.run.path)


def open_run(path: Path, chosen: Path | None = None) -> Opened:
    """The run in `path` with the replay of its newest checkpoint, or of the one given."""
    run = RunDirectory.open(path)
    config = load_config(run.config)
    where, checkpoint = read_checkpoint(run, chosen)
    return Opened(run, config, checkpoint, _saved_at(where), replay_of(config, checkpoint.parts["replay"]))


def replay_of(config: Config, state: State) -> DpsrReplay:
    """The replay in that part of a checkpoint; among many processes it lies one level deeper than in one."""
    replay = DpsrReplay(config.replay, config.run.total_steps, np.random.default_rng(0))
    replay.load(state.facts.get("server", state.facts)["replay"], state.arrays)
    return replay


def seconds_behind(opened: Opened) -> float | None:
    """How old the checkpoint is, by the wall clock, while its run goes on; None for a run that does not."""
    return max(time.time() - opened.saved_at, 0.0) if is_served(opened.run) else None


def _saved_at(checkpoint: Path) -> float:
    try:
        return (checkpoint / MANIFEST).stat().st_mtime
    except FileNotFoundError:  # replaced by a newer one since it was read
        return time.time()
