"""An experiment's folder: a run directory for each of its runs, and how far each has come. It starts nothing."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from dpsr_apex.config import ConfigError, settings
from dpsr_apex.config_files import dump_config, load_config
from dpsr_apex.experiment.grid import Experiment, Plan
from dpsr_apex.run.checkpoint import has_checkpoint
from dpsr_apex.run.metrics import read_metrics
from dpsr_apex.run.run_directory import RunDirectory

_TAIL = 8192  # bytes; more than one row


@dataclass(frozen=True)
class Folder:
    """The places in one experiment's folder."""

    path: Path

    @property
    def logs(self) -> Path:
        """What the runs print."""
        return self.path / "logs"

    def run(self, plan: Plan) -> RunDirectory:
        """Where a run is, or will be."""
        return RunDirectory(self.path / plan.name)

    def config(self, plan: Plan) -> Path:
        """The config that a run is started with."""
        return self.path / "configs" / f"{plan.name}.toml"

    def state(self, plan: Plan) -> Literal["waiting", "unfinished", "finished"]:
        """How far a run has come: finished is one whose last evaluation and last checkpoint are there."""
        run = self.run(plan)
        if not run.config.is_file():
            return "waiting"
        last = plan.config.run.total_steps
        evaluations = read_metrics(run.evaluations)
        is_evaluated = bool(evaluations) and evaluations[-1]["t"] >= last
        return "finished" if is_evaluated and has_checkpoint(run.checkpoints, last) else "unfinished"

    def clock(self, plan: Plan) -> int:
        """The clock t of a run's last row, 0 where there is none."""
        return int(last_row(self.run(plan).metrics).get("t", 0))

    def prepare(self, experiment: Experiment) -> None:
        """Write the experiment and the config of each run; a ConfigError where other runs are in their places.

        The folder itself must be there, and nobody else at work in it.
        """
        faults = [fault for plan in experiment.plans if (fault := self._difference(plan))]
        if faults:
            raise ConfigError(f"{self.path} holds another experiment; choose another --dir.", *faults[:5])
        for folder in (self.logs, self.path / "configs"):
            folder.mkdir(exist_ok=True)
        _write(self.path / "experiment.toml", experiment.source.read_text(encoding="utf-8"))
        for plan in experiment.plans:
            _write(self.config(plan), dump_config(plan.config))

    def _difference(self, plan: Plan) -> str:
        """How the run that is there differs from what is planned; empty where it does not, or there is none."""
        run = self.run(plan)
        if not run.config.is_file():
            return ""
        there, planned = settings(load_config(run.config)), settings(plan.config)
        differing = [key for key in there if there[key] != planned[key]]
        shown = [f"{key} = {there[key]!r} there, {planned[key]!r} here" for key in differing]
        return f"{plan.name}: {'; '.join(shown)}" if shown else ""


def last_row(path: Path) -> dict[str, Any]:
    """The last whole row of a file of JSON lines, read without the others; {} where there is none."""
    try:
        with path.open("rb") as file:
            file.seek(max(os.fstat(file.fileno()).st_size - _TAIL, 0))
            lines = file.read().split(b"\n")[:-1]
        row: dict[str, Any] = json.loads(lines[-1]) if lines else {}
    except (OSError, ValueError):
        return {}
    return row


def _write(path: Path, text: str) -> None:
    """Whole or not at all."""
    temporary = path.with_name(f".unfinished-{path.name}")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)
