"""Metrics of a run for TensorBoard: one event file per writing process. The only module that imports tensorboard."""

from __future__ import annotations

import io
import os
import socket
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.histogram_pb2 import HistogramProto
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.plugins.hparams import metadata
from tensorboard.plugins.hparams.api_pb2 import DataType, Experiment, HParamInfo, MetricInfo, MetricName
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData, SessionStartInfo
from tensorboard.summary.writer.record_writer import RecordWriter

from dpsr_apex.config import Config
from dpsr_apex.files import append_whole, to_json
from dpsr_apex.record.metric_table import tag_of
from dpsr_apex.record.scalars import scalars_of, settings_of

SCORES = ("evaluation_mean", "return_best")  # whose last values are shown beside the hyperparameters


class EventFile:
    """A new event file in `folder`; with `resumed_at`, TensorBoard discards earlier data after that clock."""

    def __init__(self, folder: Path, resumed_at: int | None) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        name = f"events.out.tfevents.{time.time():017.6f}.{socket.gethostname()}.{os.getpid()}"
        self._file = (folder / name).open("wb", buffering=0)
        self._append(Event(wall_time=time.time(), file_version="brain.Event:2"))
        if resumed_at is not None:
            started = SessionLog(status=SessionLog.START)
            self._append(Event(wall_time=time.time(), step=resumed_at + 1, session_log=started))

    def write(self, row: Mapping[str, Any]) -> None:
        """Append the scalars and histograms of a row at its clock `t`, an evaluation at its own.

        Raise OSError on a full disk.
        """
        for t, scalars in scalars_of(row):
            self._append_values(t, [Summary.Value(tag=tag, simple_value=value) for tag, value in scalars.items()])
        histograms = {name: value for name, value in to_json(row).items() if name.endswith("_histogram") and value}
        values = [Summary.Value(tag=tag_of(name), histo=_histogram(**value)) for name, value in histograms.items()]
        self._append_values(row["t"], values)

    def describe(self, config: Config) -> None:
        """Append the settings as hyperparameters, with the scores to compare. Raise OSError on a full disk."""
        hparams = settings_of(config)
        infos = [HParamInfo(name=name, type=_type_of(value)) for name, value in hparams.items()]
        scores = [MetricInfo(name=MetricName(tag=tag_of(name)), display_name=name) for name in SCORES]
        experiment = Experiment(time_created_secs=time.time(), hparam_infos=infos, metric_infos=scores)
        session = SessionStartInfo(start_time_secs=time.time())
        for name, value in hparams.items():
            setattr(session.hparams[name], f"{_kind_of(value)}_value", value)
        data = {
            metadata.EXPERIMENT_TAG: HParamsPluginData(experiment=experiment),
            metadata.SESSION_START_INFO_TAG: HParamsPluginData(session_start_info=session),
        }
        self._append_values(0, [_plugin_value(tag, content) for tag, content in data.items()])

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _append_values(self, step: int, values: Iterable[Summary.Value]) -> None:
        if values := list(values):
            self._append(Event(wall_time=time.time(), step=step, summary=Summary(value=values)))

    def _append(self, event: Event) -> None:
        record = io.BytesIO()
        RecordWriter(record).write(event.SerializeToString())
        append_whole(self._file, record.getvalue())


def _histogram(edges: list[float], counts: list[int]) -> HistogramProto:
    """Return a histogram; its sums are those of the middles of the bins."""
    limits, sizes = np.array(edges), np.array(counts)
    middles = (limits[1:] + limits[:-1]) / 2
    return HistogramProto(
        min=edges[0],
        max=edges[-1],
        num=sizes.sum(),
        sum=sizes @ middles,
        sum_squares=sizes @ middles**2,
        bucket_limit=edges[1:],
        bucket=counts,
    )


def _kind_of(value: bool | int | float | str) -> str:
    if isinstance(value, bool):
        return "bool"
    return "string" if isinstance(value, str) else "number"


def _type_of(value: bool | int | float | str) -> Any:
    names = {"bool": "DATA_TYPE_BOOL", "string": "DATA_TYPE_STRING", "number": "DATA_TYPE_FLOAT64"}
    return DataType.Value(names[_kind_of(value)])


def _plugin_value(tag: str, content: HParamsPluginData) -> Summary.Value:
    return Summary.Value(tag=tag, metadata=metadata.create_summary_metadata(content), tensor=metadata.NULL_TENSOR)
