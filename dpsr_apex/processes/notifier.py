"""The events of a run of several processes, for its callbacks; used by the replay process only if there are any."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from dpsr_apex import timeouts
from dpsr_apex.callbacks import Callbacks, LiveRun
from dpsr_apex.config import Config
from dpsr_apex.files import read_rows
from dpsr_apex.protocol.replay_service import ReplayService
from dpsr_apex.record.progress import is_evaluated
from dpsr_apex.record.recorder import Recorder
from dpsr_apex.record.run_directory import RunDirectory


def await_last_evaluation(run: RunDirectory, interrupted: Callable[[], bool]) -> None:
    """Wait for the last evaluation of a finished run, which the evaluator makes after the last checkpoint."""
    deadline = time.monotonic() + timeouts.LAST_EVALUATION
    while not is_evaluated(run) and not interrupted() and time.monotonic() < deadline:
        time.sleep(timeouts.EVALUATOR_POLL)


class Notifier:
    """Calls the callbacks with what has happened since the last call."""

    def __init__(
        self, config: Config, run: RunDirectory, callbacks: Callbacks, service: ReplayService, recorder: Recorder
    ) -> None:
        self._run = run
        self._callbacks = callbacks
        self._service = service
        self._recorder = recorder
        self._live = LiveRun(run.path, config, service.replay, service.rate.batches)
        self._t = service.t
        self._evaluations = len(read_rows(run.evaluations))
        self._size = self._evaluations_size()

    def notify(self) -> None:
        """Deliver the transitions, updates, episodes and evaluations since the last call."""
        service, self._live.updates = self._service, self._service.rate.batches
        if service.t > self._t:
            inserted, self._t = service.t - self._t, service.t
            self._callbacks.call("on_step", self._live, inserted)
        for report in service.learner.drain_reports():
            self._recorder.add_updates(report.recent, report.loss, report.mean_q, report.gradient_norm)
            if not report.recent:
                continue
            means = {"loss": report.loss, "mean_q": report.mean_q, "gradient_norm": report.gradient_norm}
            self._callbacks.call("on_update", self._live, {"updates": report.recent, **means})
        episodes = service.drain_episodes()
        self._recorder.add_episodes(episodes)
        for score, steps in episodes:
            self._callbacks.call("on_episode", self._live, score, steps)
        if self._evaluations_size() != self._size:
            self._deliver_evaluations()

    def saved(self, path: Path) -> None:
        """Deliver a checkpoint."""
        self._callbacks.call("on_checkpoint", self._live, path)

    def end(self, finished: bool) -> None:
        """Deliver the last evaluation and the end of the run."""
        self._deliver_evaluations()
        self._callbacks.call("on_end", self._live, finished)
        self._callbacks.write_ending(self._run, self._t)

    def _deliver_evaluations(self) -> None:
        self._size = self._evaluations_size()
        rows = read_rows(self._run.evaluations)
        for row in rows[self._evaluations :]:
            self._callbacks.call("on_evaluation", self._live, dict(row))
        self._evaluations = len(rows)

    def _evaluations_size(self) -> int:
        return self._run.evaluations.stat().st_size if self._run.evaluations.exists() else 0
