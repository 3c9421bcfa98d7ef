"""Scalars of a run for TensorBoard: one event file per writing process. The only module that imports tensorboard."""

from __future__ import annotations

import io
import os
import socket
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.record_writer import RecordWriter

from dpsr_apex.files import append_whole, to_json


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
        """Append the scalars of a row at its clock `t`, an evaluation at its own. Raise OSError on a full disk."""
        scalars = dict(_scalars(row))
        evaluation = scalars.pop("evaluation_mean", None)
        if evaluation is not None:
            self._append_scalars(int(scalars.pop("evaluation_t")), {"evaluation_mean": evaluation})
        self._append_scalars(row["t"], scalars)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _append_scalars(self, step: int, scalars: Mapping[str, float]) -> None:
        if scalars:
            values = [Summary.Value(tag=name, simple_value=value) for name, value in scalars.items()]
            self._append(Event(wall_time=time.time(), step=step, summary=Summary(value=values)))

    def _append(self, event: Event) -> None:
        record = io.BytesIO()
        RecordWriter(record).write(event.SerializeToString())
        append_whole(self._file, record.getvalue())


def _scalars(row: Mapping[str, Any]) -> Iterable[tuple[str, float]]:
    numbers = ((name, value) for name, value in to_json(row).items() if isinstance(value, int | float))
    return ((name, float(value)) for name, value in numbers if name != "t")
