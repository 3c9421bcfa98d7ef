"""The experiment trackers that can be named in a config, as data; `dpsr_apex.record.tracking` writes to them."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.util import find_spec
from typing import Final, NamedTuple

from dpsr_apex.errors import MissingPackage


class TrackerEntry(NamedTuple):
    """One tracker."""

    cls: str  # "package.module:Class", a `dpsr_apex.record.tracking.background.Tracker`
    module: str  # that must be importable; empty if none is needed
    requirement: str  # what pip installs it from; the extra of this package has the name of the tracker


TRACKERS: Final = {
    "csv": TrackerEntry("dpsr_apex.record.tracking.csv_file:CsvFile", "", ""),
    "wandb": TrackerEntry("dpsr_apex.record.tracking.wandb_run:WandbRun", "wandb", "wandb>=0.19"),
    "mlflow": TrackerEntry("dpsr_apex.record.tracking.mlflow_run:MlflowRun", "mlflow", "mlflow-skinny>=2.16"),
    "trackio": TrackerEntry("dpsr_apex.record.tracking.trackio_run:TrackioRun", "trackio", "trackio>=0.20"),
}


def ensure_installed(names: Iterable[str]) -> None:
    """Raise MissingPackage for the first of these trackers whose package is not installed."""
    for name in names:
        entry = TRACKERS[name]
        if entry.module and find_spec(entry.module) is None:
            raise MissingPackage(f"run.track = '{name}'", entry.module, entry.requirement, name)
