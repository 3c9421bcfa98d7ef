"""`dpsr-apex watch`: show a running run in another terminal.

It polls the head of the run, or the files of a single-process run, a few times a second. It changes nothing, and no
process of the run waits for it.
"""

from __future__ import annotations

import signal
import time
from pathlib import Path

from dpsr_apex import timeouts
from dpsr_apex.config_files import load_config
from dpsr_apex.files import Row, RowReader
from dpsr_apex.formatting import pasteable
from dpsr_apex.live.view import LiveView
from dpsr_apex.processes.discovery import FileRegistry, follow_head
from dpsr_apex.processes.statistics import NewNotes, StatsPoller
from dpsr_apex.record.lock import is_served
from dpsr_apex.record.progress import goal_of, is_trained, saved_at
from dpsr_apex.record.run_directory import LOCK, RunDirectory, title_of
from dpsr_apex.wire.messages import OWNER, Stats


def watch_run(path: Path) -> int:
    """Show a run until it ends; return the exit code, 130 after Ctrl-C, which does not affect the run."""
    run = RunDirectory.open(path)
    config = load_config(run.config)
    # A shell makes its background jobs, and the processes that they start, ignore Ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    has_head = config.system.actors != 0
    view = LiveView(goal_of(config.run), title=title_of(config, run.path), is_alone=not has_head)
    try:
        with view:
            watcher = Watcher(run, view, has_head)
            watcher.watch()
    except KeyboardInterrupt:
        view.note(f"No longer watching {run.path}. The run continues")
        return 130
    view.note(f"{'The run has ended' if watcher.saw_it_running else 'Not running'}: {_how_it_ended(run, watcher.t)}")
    return 0


class Watcher:
    """Shows one run; `has_head`: whether it has a head to poll."""

    def __init__(self, run: RunDirectory, view: LiveView, has_head: bool) -> None:
        self.saw_it_running = False
        self.t = 0  # clock of the newest row
        self._run = run
        self._view = view
        registry, key = FileRegistry(run.connection), run.key_of(OWNER)
        self._poller = StatsPoller(lambda: follow_head(registry, key, OWNER)) if has_head else None
        self._notes = NewNotes(skip_first=True)
        self._rows, self._evaluations = RowReader(run.metrics), RowReader(run.evaluations)
        self._served_at = time.monotonic()  # when a process was last known to serve it
        self._reported: float | None = None  # the value of `_served_at` for which a missing server was reported

    def watch(self) -> None:
        """Show the run until it ends; return at once if it is not running."""
        try:
            self.begin()
            while self._is_running():
                self.look()
            self._read()
        finally:
            if self._poller:
                self._poller.close()

    def begin(self) -> None:
        """Show the newest row, and the curve of all earlier rows."""
        rows = self._rows.read()
        self._view.recall(rows[:-1], self._evaluations.read())
        for newest in rows[-1:]:
            self._take(newest, self._age_of_rows())

    def look(self) -> None:
        """Show new rows and statistics; takes WATCH_POLL seconds."""
        if self._poller is None:
            time.sleep(timeouts.WATCH_POLL)
            self._view.advance(self.t)  # draws a row that arrived too soon after the last redraw
        elif stats := self._poller.poll(timeouts.WATCH_POLL):
            self._show(stats)
        self._read()
        self._view.refresh()

    def _is_running(self) -> bool:
        now = time.monotonic()
        if is_served(self._run):
            if not self.saw_it_running and not self.t:
                self._view.note(f"{self._run.path} is running but has not logged anything yet")
            self.saw_it_running = True
            self._served_at = now
            return True
        if not self._may_come_back():
            return False
        if self._reported != self._served_at:
            self._reported = self._served_at
            self._view.note(f"No process serves {self._run.path} now; waiting for {timeouts.WATCH_RETURN:.0f} s")
        return now - self._served_at < timeouts.WATCH_RETURN

    def _may_come_back(self) -> bool:
        """Whether it was never served, or its head crashed: a head that exits cleanly removes its address."""
        return not (self._run.path / LOCK).exists() or self._run.connection.exists()

    def _read(self) -> None:
        rows = self._rows.read()
        if self._rows.was_replaced:
            self._view.recall(rows[:-1], [])
            rows = rows[-1:]
        for evaluation in self._evaluations.read():
            self._view.evaluated(evaluation)
        for row in rows:
            self._take(row)

    def _take(self, row: Row, age: float = 0.0) -> None:
        self.t = row["t"]
        self._view.update(row, age)

    def _age_of_rows(self) -> float:
        """Return the seconds since the newest row of a running run was written; 0 for a run that has ended."""
        return max(time.time() - self._run.metrics.stat().st_mtime, 0.0) if is_served(self._run) else 0.0

    def _show(self, stats: Stats) -> None:
        for text in self._notes.of(stats):
            self._view.note(text)
        self._view.show(stats._replace(row={}))  # rows come from the file, which misses none between two polls


def _how_it_ended(run: RunDirectory, t: int) -> str:
    if is_trained(run):
        return f"finished at t = {t:,}"
    if saved := saved_at(run):
        return f"stopped at t = {saved:,}. To continue: {pasteable('resume', run.path)}"
    return f"stopped at t = {t:,}, before anything was saved"
