"""The checkpoints of a replay process: a forked copy of it writes them while the service continues.

After each one, the journal loses what no checkpoint needs any more.
"""

from __future__ import annotations

import logging
import os
import time
import warnings
from collections.abc import Callable
from pathlib import Path

from dpsr_apex.processes.journaling import Journaling
from dpsr_apex.processes.weights import opened_state
from dpsr_apex.protocol.replay_service import ReplayService
from dpsr_apex.record import progress, settings
from dpsr_apex.record.checkpoint import list_checkpoints, save_checkpoint
from dpsr_apex.record.journal import position
from dpsr_apex.record.recorder import Recorder
from dpsr_apex.record.run_directory import RunDirectory
from dpsr_apex.state import State

MOST_JOURNAL = 2**30  # bytes since the last checkpoint, after which another one is due, whatever the clock

log = logging.getLogger(__name__)


def collect(service: ReplayService, recorder: Recorder) -> None:
    """Add to the next row of metrics what has come in since the last call."""
    recorder.add_episodes(service.drain_episodes())
    for report in service.learner.drain_reports():
        recorder.add_updates(report.recent, report.loss, report.mean_q, report.gradient_norm)


class Saving:
    """Writes the checkpoints of one replay process, one at a time; the newest one so far is that of clock `t`."""

    def __init__(
        self, run: RunDirectory, service: ReplayService, recorder: Recorder, journaling: Journaling, t: int
    ) -> None:
        self.t = t
        self._run = run
        self._service = service
        self._recorder = recorder
        self._journaling = journaling
        self._copy: int | None = None  # process id of the forked copy
        self._began = 0.0
        self._covered = 0  # bytes of the journal that were written before the last checkpoint

    def is_due(self, period: int) -> bool:
        """Whether to write a checkpoint: `period` steps after the last one, or when the journal has become large."""
        is_large = self._journaling.bytes_written - self._covered > MOST_JOURNAL
        return is_large or progress.passed(period, self.t, self._service.t)

    @property
    def is_busy(self) -> bool:
        """Whether a copy is writing a checkpoint."""
        return self._copy is not None

    def fork(self) -> None:
        """Fork a copy of this process that writes a checkpoint; every change must have been committed."""
        began = time.monotonic()
        next_ = self._journaling.begin_segment()
        self.t, self._covered = self._service.t, self._journaling.bytes_written
        with warnings.catch_warnings():
            # Newer Python versions warn about forking with threads; the copy uses no thread, and no lock of one.
            warnings.simplefilter("ignore", DeprecationWarning)
            try:
                self._copy = os.fork()
            except OSError as error:
                self._service.notes.add(f"No checkpoint at t = {self.t:,}: {error}. The last one is kept.")
                return
        if self._copy == 0:
            os._exit(self._write_in_copy(next_))
        self._began = began
        log.info("saving at t = %d; the service was paused for %.3f s", self.t, time.monotonic() - began)

    def reap(self) -> Path | None:
        """Return the new checkpoint if the copy has written it; None if it is not done, or has failed."""
        assert self._copy is not None
        done, status = os.waitpid(self._copy, os.WNOHANG)
        if not done:
            return None
        self._copy = None
        if status:
            self._service.notes.add(f"The checkpoint at t = {self.t:,} could not be written; the last one is kept.")
            return None
        log.info("saved t = %d in %.1f s", self.t, time.monotonic() - self._began)
        return self._newest()

    def write_last(self, is_finished: bool) -> Path:
        """Write the last checkpoint, in this process and after the journal was closed; raise OSError on a full disk.

        `is_finished`: it has the state of the learner after the last update.
        """
        self._write(self._journaling.begin_segment(), is_finished)
        return self._newest()

    def _newest(self) -> Path:
        """Return the newest checkpoint, after the journal has lost what it and those before it cover."""
        saved = list_checkpoints(self._run.checkpoints)
        self._journaling.saved(map(position.position_of, saved))
        return saved[-1]

    def _write_in_copy(self, next_: int) -> int:
        try:
            # Mainly the sockets: if the parent crashes, the next process must be able to listen there at once.
            os.closerange(3, os.sysconf("SC_OPEN_MAX"))
            os.nice(5)
            parent = os.getppid()
            # A restarted replay continues from an earlier checkpoint, and must not find this one later.
            self._write(next_, is_finished=False, still_wanted=lambda: os.getppid() == parent)
        except BaseException:
            log.exception("the checkpoint at t = %d could not be written", self._service.t)
            return 1
        return 0

    def _write(self, next_: int, is_finished: bool, still_wanted: Callable[[], bool] = lambda: True) -> None:
        service = self._service
        collect(service, self._recorder)
        parts = {
            "replay": service.save(),
            "learner": opened_state(service.learner.state) if service.learner.state.arrays else State({}, {}),
            "recorder": self._recorder.save(),
            position.PART: position.journal_part(next_),
            progress.PART: progress.progress_part(is_finished),
            settings.PART: settings.settings_part(service.config),
        }
        kept = service.config.run.checkpoints_kept
        save_checkpoint(self._run.checkpoints, service.t, parts, kept, still_wanted)
