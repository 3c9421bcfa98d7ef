"""An experiment's folder: a run directory for each of its runs, and their progress. It does not start runs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from dpsr_apex.config import ConfigError, settings
from dpsr_apex.config_files import dump_config, load_config
from dpsr_apex.experiment.grid import Experiment, Plan
from dpsr_apex.files import read_last_row, write_atomically
from dpsr_apex.record.progress import is_evaluated
from dpsr_apex.record.run_directory import RunDirectory


@dataclass(frozen=True)
class Folder:
    """The paths in one experiment's folder."""

    path: Path

    @property
    def logs(self) -> Path:
        """The folder of the runs' output."""
        return self.path / "logs"

    def run(self, plan: Plan) -> RunDirectory:
        """Return the run directory of a plan, which need not exist yet."""
        return RunDirectory(self.path / plan.name)

    def config(self, plan: Plan) -> Path:
        """Return the path of the config with which a run is started."""
        return self.path / "configs" / f"{plan.name}.toml"

    def state(self, plan: Plan) -> Literal["waiting", "unfinished", "finished"]:
        """Return the state of a run; one that was evaluated at its end is finished, even without its checkpoints."""
        run = self.run(plan)
        if not run.config.is_file():
            return "waiting"
        return "finished" if is_evaluated(run) else "unfinished"

    def steps_done(self, plan: Plan) -> int:
        """Return how many of the steps of its goal a run has, by its last row; 0 if there is none."""
        row = read_last_row(self.run(plan).metrics)
        return plan.goal.done(row) if row else 0

    def prepare(self, experiment: Experiment) -> None:
        """Write the experiment's file and the config of each run; raise ConfigError if the folder has other runs.

        The folder must exist, and no other process may write to it.
        """
        faults = [fault for plan in experiment.plans if (fault := self._difference(plan))]
        if faults:
            raise ConfigError(f"{self.path} holds another experiment; choose another --dir.", *faults[:5])
        for folder in (self.logs, self.path / "configs"):
            folder.mkdir(exist_ok=True)
        write_atomically(self.path / "experiment.toml", experiment.source.read_text(encoding="utf-8"))
        for plan in experiment.plans:
            write_atomically(self.config(plan), dump_config(plan.config))

    def _difference(self, plan: Plan) -> str:
        """Return how the existing run differs from the plan; empty if it does not differ or does not exist."""
        run = self.run(plan)
        if not run.config.is_file():
            return ""
        there, planned = settings(load_config(run.config)), settings(plan.config)
        differing = [key for key in there if there[key] != planned[key]]
        shown = [f"{key} = {there[key]!r} there, {planned[key]!r} here" for key in differing]
        return f"{plan.name}: {'; '.join(shown)}" if shown else ""
