"""MLflow. The only module that imports mlflow; the package `mlflow-skinny` is enough."""

from __future__ import annotations

import os
import time

from mlflow import MlflowClient
from mlflow.entities import Metric, Param

from dpsr_apex.config import Config
from dpsr_apex.files import Row
from dpsr_apex.record.run_directory import RunDirectory
from dpsr_apex.record.scalars import PROJECT, scalars_of, settings_of

MOST_PARAMS = 100  # that MLflow accepts in one request


class MlflowRun:
    """A run of MLflow, in the store that MLFLOW_TRACKING_URI names."""

    def __init__(self, config: Config, run: RunDirectory, known: str, _resumed_at: int | None) -> None:
        self._client = MlflowClient()
        self.id = known or self._create(config, run)
        self._client.set_terminated(self.id, "RUNNING")

    def write(self, row: Row) -> None:
        """Log the scalars of a row; their step is t."""
        now = int(time.time() * 1000)
        for t, scalars in scalars_of(row):
            self._client.log_batch(self.id, [Metric(tag, value, now, t) for tag, value in scalars.items()])

    def close(self) -> None:
        """Mark the run as ended."""
        self._client.set_terminated(self.id)

    def _create(self, config: Config, run: RunDirectory) -> str:
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)
        found = self._client.get_experiment_by_name(name)
        experiment = found.experiment_id if found else self._client.create_experiment(name)
        made: str = self._client.create_run(experiment, run_name=run.path.name).info.run_id
        params = [Param(key, str(value)) for key, value in settings_of(config).items()]
        for start in range(0, len(params), MOST_PARAMS):
            self._client.log_batch(made, params=params[start : start + MOST_PARAMS])
        return made
