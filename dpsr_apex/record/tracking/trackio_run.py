"""Trackio. The only module that imports trackio."""

from __future__ import annotations

import os
import secrets

import trackio

from dpsr_apex.config import Config
from dpsr_apex.files import Row
from dpsr_apex.record.run_directory import RunDirectory
from dpsr_apex.record.scalars import PROJECT, scalars_of, settings_of


class TrackioRun:
    """A run of Trackio, on this machine or in the Space that TRACKIO_SPACE_ID names."""

    def __init__(self, config: Config, run: RunDirectory, known: str, _resumed_at: int | None) -> None:
        # A run is found again by its name, so that the name must differ from those of all other runs.
        self.id = known or f"{run.path.name}-{secrets.token_hex(4)}"
        project = os.environ.get("TRACKIO_PROJECT", PROJECT)
        self._run = trackio.init(project=project, name=self.id, config=settings_of(config), resume="allow", embed=False)

    def write(self, row: Row) -> None:
        """Log the scalars of a row; their step is t."""
        for t, scalars in scalars_of(row):
            self._run.log(scalars, step=t)

    def close(self) -> None:
        """Write what is pending."""
        self._run.finish()
