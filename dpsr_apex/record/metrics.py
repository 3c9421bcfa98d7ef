"""Metrics: rows of numbers in `metrics.jsonl`, and the same numbers for TensorBoard. Does not need torch.

A row belongs to a clock t and is written completely or not at all. Numbers that depend on the wall clock have keys that
end in `_per_second` or `_seconds`; all others are identical when a run is repeated, which `fingerprint` can verify.
`metric_table.py` lists every key with its unit and its meaning.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, SupportsFloat

from dpsr_apex.config import Config
from dpsr_apex.files import append_row, encode_row, read_rows, write_atomically
from dpsr_apex.record.run_directory import RunDirectory
from dpsr_apex.record.tracking.background import BackgroundTracker
from dpsr_apex.state import State

if TYPE_CHECKING:
    from dpsr_apex.record.tensorboard import EventFile

WALL_CLOCK = ("_per_second", "_seconds")


class Metrics:
    """The rows of a run. For a run that continues from a checkpoint, rows after its clock are dropped."""

    def __init__(
        self, run: RunDirectory, resumed_at: int | None = None, trackers: Sequence[BackgroundTracker] = ()
    ) -> None:
        from dpsr_apex.record.tensorboard import EventFile  # loaded only by processes that write rows

        self._path = run.metrics
        if resumed_at is not None:
            truncate_after(self._path, resumed_at)
        self._events: EventFile = EventFile(run.tensorboard, resumed_at)
        self._trackers = trackers

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def write(self, row: Mapping[str, Any]) -> None:
        """Append `row`, which must have a `t`; non-finite numbers become null. Raise OSError on a full disk."""
        self.track(row)
        append_row(self._path, row)
        self._events.write(row)

    def describe(self, config: Config) -> None:
        """Write the settings of a new run for TensorBoard. Raise OSError on a full disk."""
        self._events.describe(config)

    def track(self, row: Mapping[str, Any]) -> None:
        """Send `row` to the trackers only."""
        for tracker in self._trackers:
            tracker.write(dict(row))

    def report_trackers(self) -> None:
        """Report trackers that have failed without waiting for the next row."""
        for tracker in self._trackers:
            tracker.report()

    def close(self) -> None:
        """Close the TensorBoard file and the trackers; the JSON file is closed after every row."""
        self._events.close()
        for tracker in self._trackers:
            tracker.close()


class Interval:
    """Means over a logging interval, by name."""

    def __init__(self) -> None:
        self._totals: dict[str, float] = {}
        self._counts: dict[str, int] = {}

    def add(self, name: str, value: SupportsFloat, count: int = 1) -> None:
        """Add a value of `name`, or the mean of `count` values."""
        self._totals[name] = self._totals.get(name, 0.0) + float(value) * count
        self._counts[name] = self._counts.get(name, 0) + count

    def drain(self) -> dict[str, float]:
        """Return the mean of each name that had a value, and begin a new interval."""
        means = {name: total / self._counts[name] for name, total in self._totals.items() if self._counts[name]}
        self._totals.clear()
        self._counts.clear()
        return means

    def save(self) -> State:
        """Return the state that `load` needs to continue in the middle of an interval."""
        return State({"totals": dict(self._totals), "counts": dict(self._counts)}, {})

    def load(self, state: State) -> None:
        """Continue from a state returned by `save`."""
        self._totals = dict(state.facts["totals"])
        self._counts = dict(state.facts["counts"])


def add_last_evaluation(run: RunDirectory, t: int, mean: float) -> None:
    """Add the evaluation of the final weights, at clock `t`, to the last row, which was written before it was made.

    Call it only when no process writes rows any more. Raise OSError on a full disk.
    """
    from dpsr_apex.record.tensorboard import EventFile

    rows = read_rows(run.metrics)
    if not rows or rows[-1]["t"] != t:
        return
    evaluation = {"evaluation_t": t, "evaluation_mean": mean}
    write_atomically(run.metrics, b"".join(map(encode_row, [*rows[:-1], rows[-1] | evaluation])))
    events = EventFile(run.tensorboard, None)
    events.write({"t": t} | evaluation)
    events.close()


def truncate_after(path: Path, t: int) -> None:
    """Drop the rows after clock `t`, because a run that continues from there writes them again."""
    if path.exists():
        write_atomically(path, b"".join(encode_row(row) for row in read_rows(path) if row["t"] <= t))


def fingerprint(path: Path) -> str:
    """Return a hash of all rows without wall-clock numbers: equal for two runs with identical results."""
    digest = hashlib.sha256()
    for row in read_rows(path):
        lasting = {name: value for name, value in row.items() if not name.endswith(WALL_CLOCK)}
        digest.update(encode_row(lasting))
    return digest.hexdigest()
