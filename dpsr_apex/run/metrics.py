"""Metrics: rows of numbers as JSON lines, and the same numbers for TensorBoard. No torch here.

A row belongs to a clock t and is written whole or not at all. Figures that depend on the wall clock have keys that end
in `_per_second` or `_seconds`; everything else is the same whenever a run is repeated, and `fingerprint` proves it.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import os
import socket
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self, SupportsFloat

import numpy as np
from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.record_writer import RecordWriter

from dpsr_apex.run.run_directory import RunDirectory
from dpsr_apex.state import State

Row = dict[str, Any]
WALL_CLOCK = ("_per_second", "_seconds")


class Metrics:
    """The rows of a run. One that continues from a checkpoint says its clock, and later rows are dropped."""

    def __init__(self, run: RunDirectory, resumed_at: int | None = None) -> None:
        self._path = run.metrics
        if resumed_at is not None:
            truncate_after(self._path, resumed_at)
        run.tensorboard.mkdir(parents=True, exist_ok=True)
        self._events = (run.tensorboard / _event_file_name()).open("wb", buffering=0)
        self._record(Event(wall_time=time.time(), file_version="brain.Event:2"))
        if resumed_at is not None:
            # Tells TensorBoard to forget what an earlier file says about later steps.
            started = SessionLog(status=SessionLog.START)
            self._record(Event(wall_time=time.time(), step=resumed_at + 1, session_log=started))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def write(self, row: Mapping[str, Any]) -> None:
        """Append `row`, which must have a `t`; a number that is not finite becomes null. OSError on a full disk."""
        append_row(self._path, row)
        scalars = [Summary.Value(tag=name, simple_value=value) for name, value in _scalars(row)]
        self._record(Event(wall_time=time.time(), step=row["t"], summary=Summary(value=scalars)))

    def close(self) -> None:
        """Close the TensorBoard file; the JSON lines are closed after every row."""
        self._events.close()

    def _record(self, event: Event) -> None:
        record = io.BytesIO()
        RecordWriter(record).write(event.SerializeToString())
        _append(self._events, record.getvalue())


class Interval:
    """Means over a logging interval, of any number of names."""

    def __init__(self) -> None:
        self._totals: dict[str, float] = {}
        self._counts: dict[str, int] = {}

    def add(self, name: str, value: SupportsFloat, count: int = 1) -> None:
        """Count one more value of `name`, or a mean of `count` values."""
        self._totals[name] = self._totals.get(name, 0.0) + float(value) * count
        self._counts[name] = self._counts.get(name, 0) + count

    def drain(self) -> dict[str, float]:
        """The mean of each name that had a value; begins a new interval."""
        means = {name: total / self._counts[name] for name, total in self._totals.items() if self._counts[name]}
        self._totals.clear()
        self._counts.clear()
        return means

    def save(self) -> State:
        """What `load` needs to go on in the middle of an interval."""
        return State({"totals": dict(self._totals), "counts": dict(self._counts)}, {})

    def load(self, state: State) -> None:
        """Go on from where `save` was called."""
        self._totals = dict(state.facts["totals"])
        self._counts = dict(state.facts["counts"])


def append_row(path: Path, row: Mapping[str, Any]) -> None:
    """Add one line to a file of JSON lines: whole, or not at all and an OSError."""
    line = _encode(row)
    with path.open("ab", buffering=0) as file:
        _append(file, line)


def read_metrics(path: Path) -> list[Row]:
    """The rows of a file of JSON lines, [] where there is none; a last line that was torn by a kill is left out."""
    return list(_read(path))


def truncate_after(path: Path, t: int) -> None:
    """Drop the rows after clock `t`, so that a run that continues from there does not repeat them."""
    if not path.exists():
        return
    temporary = path.with_name(f".unfinished-{path.name}")
    try:
        with temporary.open("wb") as file:
            file.writelines(_encode(row) for row in _read(path) if row["t"] <= t)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def fingerprint(path: Path) -> str:
    """A hash of all rows without the wall clock's figures: equal for two runs that did the same."""
    digest = hashlib.sha256()
    for row in _read(path):
        lasting = {name: value for name, value in row.items() if not name.endswith(WALL_CLOCK)}
        digest.update(_encode(lasting))
    return digest.hexdigest()


def _append(file: io.FileIO, content: bytes) -> None:
    start = file.seek(0, os.SEEK_END)
    try:
        written = 0
        while written < len(content):  # a disk that is nearly full takes a part first, and fails then
            written += file.write(content[written:])
    except OSError:
        file.truncate(start)
        raise


def _read(path: Path) -> Iterator[Row]:
    if not path.exists():
        return
    *lines, _torn = path.read_bytes().split(b"\n")
    for number, line in enumerate(lines, start=1):
        try:
            yield json.loads(line)
        except ValueError as error:
            raise ValueError(f"{path}: line {number} is not JSON") from error


def _encode(row: Mapping[str, Any]) -> bytes:
    ordered = {"t": row["t"]} | {name: row[name] for name in sorted(row)}
    return json.dumps(_finite(ordered), allow_nan=False).encode() + b"\n"


def _finite(value: Any) -> Any:
    """`value` with Python's numbers where numpy's were, and None for a number that JSON does not have."""
    if isinstance(value, Mapping):
        return {name: _finite(item) for name, item in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        return _finite(value.tolist())
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _scalars(row: Mapping[str, Any]) -> Iterable[tuple[str, float]]:
    numbers = ((name, value) for name, value in _finite(row).items() if isinstance(value, int | float))
    return ((name, float(value)) for name, value in numbers if name != "t")


def _event_file_name() -> str:
    return f"events.out.tfevents.{time.time():017.6f}.{socket.gethostname()}.{os.getpid()}"
