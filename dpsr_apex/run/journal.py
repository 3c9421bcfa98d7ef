"""The record of a run: what happened since the last row, and the rows. One process and many keep the same.

It only counts and writes; it decides nothing, and a disk that is full never ends a run.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

from dpsr_apex.config import Config
from dpsr_apex.replay.memory import DpsrReplay
from dpsr_apex.replay.records import Counters
from dpsr_apex.run.census import take_census
from dpsr_apex.run.metrics import Interval, Metrics
from dpsr_apex.run.run_directory import RunDirectory
from dpsr_apex.state import State, join, split

log = logging.getLogger(__name__)


@dataclass
class Diary:
    """What the record must remember to continue as if the run had never stopped."""

    logged_at: int = 0  # clock t
    games: int = 0
    best_return: float | None = None
    evaluation_mean: float | None = None
    elapsed_seconds: float = 0.0  # of wall clock, over all continuations
    # Of what had made room at the last row: how many, and the sums of their ages and priorities.
    replaced: list[float] = field(default_factory=lambda: [0, 0, 0.0])


class Journal:
    """The rows of one run; `say` is told what a person should know. Use it in a `with` block around `metrics`."""

    def __init__(self, config: Config, run: RunDirectory, say: Callable[[str], None]) -> None:
        self.diary = Diary()
        self._config = config
        self._run = run
        self._say = say
        self._interval = Interval()
        self._progress = (time.monotonic(), 0, 0)  # when, t and updates of the last row

    def open(self, resumed_at: int | None, updates: int = 0) -> Metrics:
        """Where the rows go; a run that continues at a clock drops those that came after it."""
        self._progress = (time.monotonic(), resumed_at or 0, updates)
        self._metrics = Metrics(self._run, resumed_at)
        return self._metrics

    def is_due(self, t: int) -> bool:
        """Whether a row is due: at every multiple of the log period that was passed, and at the end."""
        last = t >= self._config.run.total_steps
        return (passed(self._config.run.log_period, self.diary.logged_at, t) or last) and self.diary.logged_at < t

    def games(self, games: Iterable[tuple[float, int]]) -> None:
        """Count games that ended: the score and the steps of each."""
        for score, steps in games:
            self._interval.add("return", score)
            self._interval.add("game_steps", steps)
            self.diary.games += 1
            best = self.diary.best_return
            self.diary.best_return = score if best is None else max(best, score)

    def updates(self, count: int, loss: float, mean_q: float, gradient_norm: float) -> None:
        """Count so many updates with these means."""
        self._interval.add("loss", loss, count)
        self._interval.add("mean_q", mean_q, count)
        self._interval.add("gradient_norm", gradient_norm, count)

    def pass_over(self, seconds: float) -> None:
        """Time that counts for the run as a whole, but not for its speed."""
        self.diary.elapsed_seconds += seconds
        since, t, updates = self._progress
        self._progress = (since + seconds, t, updates)

    def write(self, replay: DpsrReplay, updates: int, epsilon: float | None, more: dict[str, Any]) -> dict[str, Any]:
        """Write one row and begin the next interval; the row is returned."""
        self.diary.logged_at = replay.t
        row = self._row(replay, updates, epsilon) | more
        self.guard(lambda: self._metrics.write(row))
        return row

    def guard(self, writing: Callable[[], None]) -> None:
        """What is only for reading must never end a run: a disk that is full is said."""
        try:
            writing()
        except OSError as error:
            self._say(f"Could not write ({error}); the run goes on.")

    def save(self) -> State:
        """What `load` needs to go on in the middle of an interval."""
        return join({"diary": State(asdict(self.diary), {}), "interval": self._interval.save()})

    def load(self, state: State) -> None:
        """Go on from where `save` was called."""
        parts = split(state)
        self.diary = Diary(**parts["diary"].facts)
        self._interval.load(parts["interval"])

    def _row(self, replay: DpsrReplay, updates: int, epsilon: float | None) -> dict[str, Any]:
        config, t, total = self._config, replay.t, self._config.run.total_steps
        means = self._interval.drain()
        return {
            "t": t,
            "episodes": self.diary.games,
            "return_mean": means.get("return"),
            "return_best": self.diary.best_return,
            "game_steps_mean": means.get("game_steps"),
            "evaluation_mean": self.diary.evaluation_mean,
            "epsilon": epsilon,
            "alpha": config.replay.alpha.at(t, total),
            "beta": config.replay.bias_annealing.at(t, total),
            "gamma": config.replay.replacing_exponent.at(t, total),
            "fill": replay.size / config.replay.capacity,
            "stored": replay.size,
            **take_census(replay),
            **self._replaced(replay.counters),
            **asdict(replay.counters),
            "updates": updates,
            "steps_per_update": (t - config.learner.learning_starts + 1) / updates if updates else None,
            "loss": means.get("loss"),
            "mean_q": means.get("mean_q"),
            "gradient_norm": means.get("gradient_norm"),
            **self._speeds(t, updates),
        }

    def _replaced(self, counters: Counters) -> dict[str, float | None]:
        """What made room since the last row: mean age and priority, None where nothing did."""
        now = [counters.replaced, counters.replaced_age, counters.replaced_priority]
        count, age, priority = (new - old for new, old in zip(now, self.diary.replaced, strict=True))
        self.diary.replaced = now
        return {
            "replaced_age_mean": age / count if count else None,
            "replaced_priority_mean": priority / count if count else None,
        }

    def _speeds(self, t: int, updates: int) -> dict[str, float]:
        now = (time.monotonic(), t, updates)
        seconds, steps, updates_since = (new - old for new, old in zip(now, self._progress, strict=True))
        self._progress = now
        self.diary.elapsed_seconds += seconds
        return {
            "steps_per_second": steps / seconds,
            "updates_per_second": updates_since / seconds,
            "elapsed_seconds": self.diary.elapsed_seconds,
        }


def passed(period: int, since: int, t: int) -> bool:
    """Whether a multiple of `period` lies after `since` and up to t; a period of 0 is never."""
    return period > 0 and t // period > since // period
