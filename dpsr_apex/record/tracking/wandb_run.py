"""Weights & Biases. The only module that imports wandb."""

from __future__ import annotations

import os
import secrets

import wandb

from dpsr_apex.config import Config
from dpsr_apex.files import Row
from dpsr_apex.record.run_directory import RunDirectory
from dpsr_apex.record.scalars import PROJECT, scalars_of, settings_of


class WandbRun:
    """A run of Weights & Biases; its local files are in the run directory. WANDB_MODE=offline works."""

    def __init__(self, config: Config, run: RunDirectory, known: str, _resumed_at: int | None) -> None:
        self.id = known or secrets.token_hex(8)
        # Silent, so that it neither disturbs the live view nor asks for a key; the output is in the log already.
        wandb.setup(wandb.Settings(silent=True, console="off", disable_git=True))
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            name=run.path.name,
            id=self.id,
            resume="allow",
            dir=run.tracking,
            config=settings_of(config),
            allow_val_change=True,  # a continued run may be longer
        )
        self._run.define_metric("t")
        self._run.define_metric("*", step_metric="t")

    def write(self, row: Row) -> None:
        """Log the scalars of a row; their axis is t."""
        for t, scalars in scalars_of(row):
            self._run.log({"t": t, **scalars})

    def close(self) -> None:
        """Upload what is pending."""
        self._run.finish()
