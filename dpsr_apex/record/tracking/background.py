"""Trackers in threads: a slow server never delays a run, and one that fails never ends it.

A tracker is opened, fed and closed by a thread of its own. The id that it gives to the run is stored in the run
directory, so that a process that continues the run also continues its record in the tracker.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from queue import SimpleQueue
from threading import Thread
from typing import Protocol, cast

from dpsr_apex import timeouts
from dpsr_apex.config import Config
from dpsr_apex.files import Row, write_atomically
from dpsr_apex.imports import load_class
from dpsr_apex.record.run_directory import RunDirectory
from dpsr_apex.trackers import TRACKERS

log = logging.getLogger(__name__)


class Tracker(Protocol):
    """A run in a tracker. Its methods may raise anything, and are called by one thread."""

    id: str  # by which `open` finds the run again; empty if it does not need one

    def write(self, row: Row) -> None:
        """Add a row of metrics. One that was written before, at the same `t`, may come again with more values."""

    def close(self) -> None:
        """Write what is pending."""


class OpenTracker(Protocol):
    """Opens a run in a tracker: the one with this id, or a new one if it is empty.

    `resumed_at` is the clock at which the run continues, None for a new run.
    """

    def __call__(self, config: Config, run: RunDirectory, known: str, resumed_at: int | None) -> Tracker:
        """Return the open run."""


class BackgroundTracker:
    """One tracker in its thread. `note` is called with a message for the user if the tracker fails, once."""

    def __init__(
        self, name: str, config: Config, run: RunDirectory, resumed_at: int | None, note: Callable[[str], None]
    ) -> None:
        self._name = name
        self._note = note
        self._failure = ""  # written by the thread; reported by the thread that writes rows
        self._has_noted = False
        self._rows: SimpleQueue[Row | None] = SimpleQueue()  # None is the end
        arguments = (config, run, resumed_at)
        self._thread = Thread(target=self._work, args=arguments, name=f"track-{name}", daemon=True)
        self._thread.start()

    def write(self, row: Row) -> None:
        """Queue a row; does not wait."""
        if not self._failure:
            self._rows.put(row)
        self.report()

    def close(self) -> None:
        """Wait for the tracker to write what is queued, but not forever."""
        self._rows.put(None)
        self._thread.join(timeouts.TRACKER_LEAVE)
        if self._thread.is_alive():
            self._failure = f"it did not finish within {timeouts.TRACKER_LEAVE:g} s"
        self.report()

    def report(self) -> None:
        """Call `note` if the tracker has failed since; does not wait."""
        if self._failure and not self._has_noted:
            self._has_noted = True
            self._note(f"Tracking with {self._name} failed ({self._failure}); the run continues without it.")

    def _work(self, config: Config, run: RunDirectory, resumed_at: int | None) -> None:
        try:
            tracker = _open(self._name, config, run, resumed_at)
            try:
                while (row := self._rows.get()) is not None:
                    tracker.write(row)
            finally:
                tracker.close()
        except Exception as error:  # of a library, or of a server that it uses
            log.exception("tracking with %s failed", self._name)
            self._failure = f"{type(error).__name__}: {' '.join(str(error).split())}"


def _open(name: str, config: Config, run: RunDirectory, resumed_at: int | None) -> Tracker:
    run.tracking.mkdir(exist_ok=True)
    path = run.tracking / f"{name}.id"
    known = path.read_text(encoding="utf-8") if path.exists() else ""
    open_tracker = cast(OpenTracker, load_class(TRACKERS[name].cls))
    tracker = open_tracker(config, run, known, resumed_at)
    if tracker.id != known:
        write_atomically(path, tracker.id)
    return tracker
