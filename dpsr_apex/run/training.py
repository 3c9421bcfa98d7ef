"""A single-process run from its first step to its last: metrics, evaluations, checkpoints, and the ways to stop it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from dpsr_apex.config import Config
from dpsr_apex.roles.evaluator import Evaluation, EvaluationStopped, evaluate
from dpsr_apex.run.checkpoint import Checkpoint, save_checkpoint
from dpsr_apex.run.curve import draw_curve
from dpsr_apex.run.interrupt import Interrupt
from dpsr_apex.run.live import LiveView
from dpsr_apex.run.metrics import Interval, Metrics, append_row, read_metrics, truncate_after
from dpsr_apex.run.run_directory import RunDirectory
from dpsr_apex.run.solo import Solo
from dpsr_apex.state import State, join, split

log = logging.getLogger(__name__)


@dataclass
class Diary:
    """What a run must remember of itself to continue as if it had never stopped."""

    logged_at: int = 0  # clock t
    evaluated_at: int = 0
    saved_at: int = 0
    games: int = 0
    best_return: float | None = None
    evaluation_mean: float | None = None
    elapsed_seconds: float = 0.0  # of wall clock, over all continuations


class Training:
    """One run in its run directory, new or continued from a checkpoint."""

    def __init__(self, config: Config, run: RunDirectory, view: LiveView, checkpoint: Checkpoint | None = None) -> None:
        self.solo = Solo(config)
        self._config = config
        self._run = run
        self._view = view
        self._interval = Interval()
        self._diary = Diary()
        if checkpoint:
            self._load(checkpoint)
            truncate_after(run.evaluations, checkpoint.t)
        self._metrics = Metrics(run, checkpoint.t if checkpoint else None)
        self._clocked = self._progress()

    def run(self, interrupt: Interrupt) -> None:
        """Go on to the last step, or until interrupted; either way a checkpoint and a curve are left behind."""
        with self._metrics:
            while not interrupt.asked:
                self._do_what_is_due(interrupt)
                if interrupt.asked or self.solo.t >= self._config.run.total_steps:
                    break
                for update in self.solo.step():
                    self._interval.add("loss", update.loss)
                    self._interval.add("mean_q", update.mean_q)
                    self._interval.add("gradient_norm", update.gradient_norm)
                self._view.advance(self.solo.t)
            self.save()
        self._draw_curve()
        self.solo.close()

    @property
    def finished(self) -> bool:
        """Whether the last step is done and evaluated."""
        return self.solo.t >= self._config.run.total_steps and self._diary.evaluated_at == self.solo.t

    def save(self) -> None:
        """Write a checkpoint; a disk that is full is said, and the run goes on with the last good one in place."""
        t = self.solo.t
        self._diary.saved_at = t  # also if it fails: the next try comes a period later, not at every step
        parts = self.solo.save() | {"training": self._save_own()}
        try:
            path = save_checkpoint(self._run.checkpoints, t, parts, self._config.run.checkpoints_kept)
        except OSError as error:
            self._say(f"The checkpoint at t = {t:,} could not be written ({error}); the last good one is kept.")
        else:
            log.info("saved %s", path)

    def _do_what_is_due(self, interrupt: Interrupt) -> None:
        """After a step; nothing is done twice at the same t, also when a run is continued there."""
        config, t = self._config, self.solo.t
        last = t >= config.run.total_steps
        if (_passed(config.evaluation.period, self._diary.evaluated_at, t) or last) and self._diary.evaluated_at < t:
            self._evaluate(interrupt)
        if interrupt.asked:
            return
        if (_passed(config.run.log_period, self._diary.logged_at, t) or last) and self._diary.logged_at < t:
            self._log()
        if _passed(config.run.checkpoint_period, self._diary.saved_at, t) and not last:
            self.save()

    def _evaluate(self, interrupt: Interrupt) -> None:
        began = time.monotonic()
        try:
            evaluation = evaluate(self._config, self.solo.agent, self.solo.t, stopped=lambda: interrupt.asked)
        except EvaluationStopped:
            return
        self._diary.evaluated_at = self.solo.t
        self._pass_over(time.monotonic() - began)
        self._report(evaluation)

    def _pass_over(self, seconds: float) -> None:
        """Time that counts for the run as a whole, but not for its speed."""
        self._diary.elapsed_seconds += seconds
        since, t, updates = self._clocked
        self._clocked = (since + seconds, t, updates)

    def _report(self, evaluation: Evaluation) -> None:
        row = evaluation.row()
        self._diary.evaluation_mean = row["mean"]
        self._write(lambda: append_row(self._run.evaluations, row))
        self._say(
            f"evaluation at t = {evaluation.t:,}: mean {row['mean']:.1f}, median {row['median']:.1f} "
            f"over {row['games']} games"
        )

    def _log(self) -> None:
        games = self.solo.actor.drain_games()
        for game in games:
            self._interval.add("return", game.score)
            self._interval.add("game_steps", game.steps)
        self._diary.games += len(games)
        known = [self._diary.best_return] if self._diary.best_return is not None else []
        self._diary.best_return = max([*known, *(game.score for game in games)], default=None)
        self._diary.logged_at = self.solo.t
        row = self._row()
        self._write(lambda: self._metrics.write(row))
        self._view.update(row)

    def _row(self) -> dict[str, Any]:
        config, server, t = self._config, self.solo.replay, self.solo.t
        replay, total = server.replay, config.run.total_steps
        means = self._interval.drain()
        return {
            "t": t,
            "episodes": self._diary.games,
            "return_mean": means.get("return"),
            "return_best": self._diary.best_return,
            "game_steps_mean": means.get("game_steps"),
            "evaluation_mean": self._diary.evaluation_mean,
            "epsilon": float(self.solo.actor.epsilons.mean()),
            "alpha": config.replay.alpha.at(t, total),
            "beta": config.replay.bias_annealing.at(t, total),
            "gamma": config.replay.replacing_exponent.at(t, total),
            "fill": replay.size / config.replay.capacity,
            "stored": replay.size,
            "age_mean": float(t - replay.births.mean()),
            "priority_mean": float(replay.priorities.mean()),
            **asdict(replay.counters),
            "updates": self.solo.learner.updates,
            "steps_per_update": self._steps_per_update(),
            "loss": means.get("loss"),
            "mean_q": means.get("mean_q"),
            "gradient_norm": means.get("gradient_norm"),
            **self._speeds(),
        }

    def _steps_per_update(self) -> float | None:
        """As achieved since learning started."""
        steps = self.solo.t - self._config.learner.learning_starts + 1
        return steps / self.solo.learner.updates if self.solo.learner.updates else None

    def _progress(self) -> tuple[float, int, int]:
        return time.monotonic(), self.solo.t, self.solo.learner.updates

    def _speeds(self) -> dict[str, float]:
        now = self._progress()
        seconds, steps, updates = (new - old for new, old in zip(now, self._clocked, strict=True))
        self._clocked = now
        self._diary.elapsed_seconds += seconds
        return {
            "steps_per_second": steps / seconds,
            "updates_per_second": updates / seconds,
            "elapsed_seconds": self._diary.elapsed_seconds,
        }

    def _draw_curve(self) -> None:
        rows, evaluations = read_metrics(self._run.metrics), read_metrics(self._run.evaluations)
        title = f"{self._config.env.name}, {self._config.replay.method}, seed {self._config.run.seed}"
        self._write(lambda: draw_curve(rows, evaluations, self._run.curve, title))

    def _write(self, writing: Callable[[], None]) -> None:
        """What is only for reading must never end a run: a disk that is full is said."""
        try:
            writing()
        except OSError as error:
            self._say(f"Could not write ({error}); the run goes on.")

    def _say(self, text: str) -> None:
        log.info(text)
        self._view.note(text)

    def _save_own(self) -> State:
        return join({"diary": State(asdict(self._diary), {}), "interval": self._interval.save()})

    def _load(self, checkpoint: Checkpoint) -> None:
        self.solo.load(checkpoint.parts)
        own = split(checkpoint.parts["training"])
        self._diary = Diary(**own["diary"].facts)
        self._interval.load(own["interval"])


def _passed(period: int, since: int, t: int) -> bool:
    """Whether a multiple of `period` lies after `since` and up to t; a period of 0 is never."""
    return period > 0 and t // period > since // period
