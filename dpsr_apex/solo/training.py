"""A single-process run from its first step to its last: metrics, evaluations, checkpoints and stopping."""

from __future__ import annotations

import logging
import time
from dataclasses import asdict, dataclass
from functools import partial

from dpsr_apex.agent.protocol import Update
from dpsr_apex.callbacks import Callbacks, LiveRun
from dpsr_apex.config import Config
from dpsr_apex.interrupt import Interrupt
from dpsr_apex.live.curve import draw_run
from dpsr_apex.live.view import LiveView
from dpsr_apex.record import settings
from dpsr_apex.record.checkpoint import Checkpoint, save_checkpoint
from dpsr_apex.record.evaluations import keep_evaluation, keep_random_play, wants_random_play
from dpsr_apex.record.metrics import truncate_after
from dpsr_apex.record.moments import decode_moments, starts_of
from dpsr_apex.record.progress import passed
from dpsr_apex.record.quarantine import QuarantineFolder
from dpsr_apex.record.recorder import Recorder
from dpsr_apex.record.run_directory import RunDirectory
from dpsr_apex.roles.evaluator import Evaluation, EvaluationStopped, evaluate, play_randomly
from dpsr_apex.roles.starts import NO_STARTS
from dpsr_apex.solo.algorithm import Solo
from dpsr_apex.state import State, join, split

log = logging.getLogger(__name__)


@dataclass
class Done:
    """Clock t at which each periodic task was last done."""

    evaluated_at: int = 0
    saved_at: int = 0


class Training:
    """One run in its run directory, new or continued from a checkpoint."""

    def __init__(
        self,
        config: Config,
        run: RunDirectory,
        view: LiveView,
        checkpoint: Checkpoint | None = None,
        callbacks: Callbacks | None = None,
    ) -> None:
        starts = starts_of(config, run)
        self.solo = Solo(config, decode_moments(starts, str(run.starts)).transitions if starts else NO_STARTS)
        self._callbacks = callbacks or Callbacks()
        self._live = LiveRun(run.path, config, self.solo.replay)
        self._config = config
        self._run = run
        self._view = view
        self._recorder = Recorder(config, run, self._say)
        self._done = Done()
        self._quarantine = QuarantineFolder(run.quarantine)
        if checkpoint:
            self._load(checkpoint)
            truncate_after(run.evaluations, checkpoint.t)
        self._live.updates = self.solo.learner.updates
        self._metrics = self._recorder.open(checkpoint.t if checkpoint else None, self.solo.learner.updates)

    def run(self, interrupt: Interrupt) -> None:
        """Run to the last step, or until interrupted; in both cases write a checkpoint and a curve at the end."""
        with self._metrics:
            if wants_random_play(self._config, self._run):
                self._play_randomly(interrupt)
            while not interrupt.asked:
                self._do_what_is_due(interrupt)
                if interrupt.asked or self._callbacks.wants_end or self.solo.replay.is_over:
                    break
                before = self.solo.t
                updates = self.solo.step()
                self._keep_quarantined()
                for update in updates:
                    self._recorder.add_updates(1, update.loss, update.mean_q, update.gradient_norm)
                if self._callbacks:
                    self._notify(self.solo.t - before, updates)
                self._view.advance(self.solo.t, self.solo.replay.environment_steps)
            self.save()
        self._callbacks.call("on_end", self._live, self.finished)
        self._callbacks.write_ending(self._run, self._done.saved_at)
        self._recorder.guard(lambda: draw_run(self._config, self._run))
        self.solo.close()

    @property
    def finished(self) -> bool:
        """Whether the last step is done and evaluated."""
        return self.solo.replay.is_over and self._done.evaluated_at == self.solo.t

    def save(self) -> None:
        """Write a checkpoint; if the disk is full, report it, keep the last good one and continue."""
        t = self.solo.t
        self._done.saved_at = t  # even if it fails: the next attempt is one period later, not at every step
        parts = self.solo.save() | {"training": self._save_own(), settings.PART: settings.settings_part(self._config)}
        try:
            path = save_checkpoint(self._run.checkpoints, t, parts, self._config.run.checkpoints_kept)
        except OSError as error:
            self._run.ensure_present()
            self._say(f"The checkpoint at t = {t:,} could not be written ({error}); the last good one is kept.")
        else:
            log.info("saved %s", path)
            self._callbacks.call("on_checkpoint", self._live, path)

    def _keep_quarantined(self) -> None:
        """Write what was quarantined in a step; if the disk is full, it is only counted."""
        for quarantined in self.solo.quarantine.drain():
            names = quarantined.rows.slots.identities.tolist()
            self._say(f"Quarantined transition {', '.join(map(str, names))}: {quarantined.reason}")
            self._recorder.guard(partial(self._quarantine.keep, quarantined))

    def _notify(self, transitions: int, updates: list[Update]) -> None:
        """Call the callbacks with what has happened in a step."""
        self._live.updates = self.solo.learner.updates
        if transitions:
            self._callbacks.call("on_step", self._live, transitions)
        for update in updates:
            means = {"loss": update.loss, "mean_q": update.mean_q, "gradient_norm": update.gradient_norm}
            self._callbacks.call("on_update", self._live, {"updates": 1, **means})
        episodes = self.solo.actor.drain_episodes()
        self._recorder.add_episodes(episodes)
        for score, steps in episodes:
            self._callbacks.call("on_episode", self._live, score, steps)

    def _do_what_is_due(self, interrupt: Interrupt) -> None:
        """Do the periodic tasks that are due after a step; none is repeated at the same t, even after a resume."""
        config, t = self._config, self.solo.t
        last = self.solo.replay.is_over
        if (passed(config.evaluation.period, self._done.evaluated_at, t) or last) and self._done.evaluated_at < t:
            self._evaluate(interrupt)
        if interrupt.asked:
            return
        if self._recorder.is_due(self.solo.replay):
            self._log()
        if passed(config.run.checkpoint_period, self._done.saved_at, t) and not last:
            self.save()

    def _play_randomly(self, interrupt: Interrupt) -> None:
        began = time.monotonic()
        try:
            row = play_randomly(self._config, self.solo.agent, stopped=lambda: self._is_stopped(interrupt)).row()
        except EvaluationStopped:
            return
        self._recorder.exclude_time(time.monotonic() - began)
        self._recorder.guard(lambda: keep_random_play(self._run, row))

    def _evaluate(self, interrupt: Interrupt) -> None:
        began = time.monotonic()
        try:
            evaluation = evaluate(
                self._config, self.solo.agent, self.solo.t, stopped=lambda: self._is_stopped(interrupt)
            )
        except EvaluationStopped:
            return
        self._done.evaluated_at = self.solo.t
        self._recorder.exclude_time(time.monotonic() - began)
        self._report(evaluation)

    def _is_stopped(self, interrupt: Interrupt) -> bool:
        """Whether an evaluation should end; called at each of its steps, so that the view does not freeze meanwhile."""
        self._view.refresh()
        return interrupt.asked

    def _report(self, evaluation: Evaluation) -> None:
        row = evaluation.row()
        self._recorder.add_evaluation(row["t"], row["mean"])
        self._recorder.guard(lambda: keep_evaluation(self._run, row, self.solo.agent.weights("online")))
        self._view.evaluated(row)
        self._say(evaluation.summary())
        self._callbacks.call("on_evaluation", self._live, row)

    def _log(self) -> None:
        self._recorder.add_episodes(self.solo.actor.drain_episodes())
        epsilon = float(self.solo.actor.epsilons.mean())
        row = self._recorder.write(self.solo.replay, self.solo.learner.updates, epsilon, {})
        self._view.update(row)

    def _say(self, text: str) -> None:
        log.info(text)
        self._view.note(text)

    def _save_own(self) -> State:
        return join({"done": State(asdict(self._done), {}), "recorder": self._recorder.save()})

    def _load(self, checkpoint: Checkpoint) -> None:
        self.solo.load(checkpoint.parts)
        own = split(checkpoint.parts["training"])
        self._done = Done(**own["done"].facts)
        self._recorder.load(own["recorder"])
