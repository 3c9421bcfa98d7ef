"""Recording of a run, single-process or multi-process: counters and means since the last row, and the rows.

It only counts and writes; a full disk never ends a run.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

from dpsr_apex.config import Config
from dpsr_apex.files import Row, read_rows, to_json
from dpsr_apex.record.census import take_census
from dpsr_apex.record.metrics import Interval, Metrics
from dpsr_apex.record.progress import passed
from dpsr_apex.record.run_directory import RunDirectory
from dpsr_apex.record.tracking.background import BackgroundTracker
from dpsr_apex.replay.records import Counters
from dpsr_apex.replay.replay import Replay
from dpsr_apex.state import State, join, split

log = logging.getLogger(__name__)


@dataclass
class Totals:
    """The state needed to continue recording as if the run had never stopped."""

    logged_at: int = 0  # clock t of the last row
    episodes: int = 0
    best_return: float | None = None
    evaluation_t: int = 0  # clock of the newest evaluation
    evaluation_mean: float | None = None
    evaluation_logged: int = 0  # clock of the newest evaluation that is in a row
    elapsed_seconds: float = 0.0  # wall-clock time, across resumes
    counters: dict[str, float] = field(default_factory=lambda: asdict(Counters()))  # of the replay, at the last row


class Recorder:
    """Writes the rows of one run; `note` is called with messages for the user. Use `with recorder.open(...)`."""

    def __init__(self, config: Config, run: RunDirectory, note: Callable[[str], None]) -> None:
        self.totals = Totals()
        self._config = config
        self._run = run
        self._note = note
        self._interval = Interval()
        self._progress = (time.monotonic(), 0, 0)  # time, t and updates of the last row

    def open(self, resumed_at: int | None, updates: int = 0, t: int | None = None) -> Metrics:
        """Open the files of rows; if the run continues after the rows of clock `resumed_at`, later rows are dropped.

        `t` is the clock at which the run continues, if that is later.
        """
        self._progress = (time.monotonic(), (resumed_at or 0) if t is None else t, updates)
        names = self._config.run.track
        trackers = [BackgroundTracker(name, self._config, self._run, resumed_at, self._note) for name in names]
        self._metrics = Metrics(self._run, resumed_at, trackers)
        if resumed_at is None:
            self.guard(lambda: self._metrics.describe(self._config))
        # The evaluator adds the last evaluation after the checkpoint of the last step.
        logged = (row.get("evaluation_t") or 0 for row in read_rows(self._run.metrics))
        self.totals.evaluation_logged = max(self.totals.evaluation_logged, *logged, 0)
        return self._metrics

    def is_due(self, replay: Replay) -> bool:
        """Whether a row is due: after every multiple of the log period, and at the end."""
        since, t = self.totals.logged_at, replay.t
        return (passed(self._config.run.log_period, since, t) or replay.is_over) and since < t

    def add_episodes(self, episodes: Iterable[tuple[float, int]]) -> None:
        """Add the score and the length of each episode that ended."""
        for score, steps in episodes:
            self._interval.add("return", score)
            self._interval.add("game_steps", steps)
            self.totals.episodes += 1
            best = self.totals.best_return
            self.totals.best_return = score if best is None else max(best, score)

    def add_updates(self, count: int, loss: float, mean_q: float, gradient_norm: float) -> None:
        """Add `count` updates with these means."""
        self._interval.add("loss", loss, count)
        self._interval.add("mean_q", mean_q, count)
        self._interval.add("gradient_norm", gradient_norm, count)

    def add_evaluation(self, t: int, mean: float) -> None:
        """Add the newest evaluation, of the weights at clock `t`; the next row contains it, if no row does yet."""
        self.totals.evaluation_t, self.totals.evaluation_mean = t, mean

    def track_evaluation(self, t: int, mean: float) -> None:
        """Send the last evaluation, of the weights at clock `t`, to the trackers, unless a row has it."""
        if t > self.totals.evaluation_logged:
            self._metrics.track({"t": t, "evaluation_t": t, "evaluation_mean": mean})

    def exclude_time(self, seconds: float) -> None:
        """Exclude time from the speed since the last row; it still counts as time of the run."""
        self.totals.elapsed_seconds += seconds
        since, t, updates = self._progress
        self._progress = (since + seconds, t, updates)

    def write(self, replay: Replay, updates: int, epsilon: float | None, more: dict[str, Any]) -> Row:
        """Write one row, begin the next interval, and return the row."""
        self.totals.logged_at = replay.t
        row: Row = to_json(self._row(replay, updates, epsilon) | more)
        self.guard(lambda: self._metrics.write(row))
        return row

    def guard(self, writing: Callable[[], None]) -> None:
        """Execute a write that the run does not depend on: if it fails, as on a full disk, note it and continue."""
        try:
            writing()
        except OSError as error:
            self._note(f"Could not write ({error}); the run continues.")

    def save(self) -> State:
        """Return the state that `load` needs to continue in the middle of an interval."""
        return join({"totals": State(asdict(self.totals), {}), "interval": self._interval.save()})

    def load(self, state: State) -> None:
        """Continue from a state returned by `save`."""
        parts = split(state)
        self.totals = Totals(**parts["totals"].facts)
        self._interval.load(parts["interval"])

    def _row(self, replay: Replay, updates: int, epsilon: float | None) -> dict[str, Any]:
        config, t, total = self._config, replay.t, self._config.run.total_steps
        means = self._interval.drain()
        alpha, gamma = replay.exponents
        return {
            "t": t,
            "environment_steps": replay.environment_steps,
            "episodes": self.totals.episodes,
            "return_mean": means.get("return"),
            "return_best": self.totals.best_return,
            "game_steps_mean": means.get("game_steps"),
            **self._new_evaluation(),
            "epsilon": epsilon,
            "alpha": alpha,
            "beta": config.replay.bias_annealing.at(t, total),
            "gamma": gamma,
            "fill": replay.size / config.replay.capacity,
            "stored": replay.size,
            **take_census(replay),
            **self._means(asdict(replay.counters)),
            **asdict(replay.counters),
            "updates": updates,
            "steps_per_update": (t - config.learner.learning_starts + 1) / updates if updates else None,
            "loss": means.get("loss"),
            "mean_q": means.get("mean_q"),
            "gradient_norm": means.get("gradient_norm"),
            **self._speeds(t, updates),
        }

    def _new_evaluation(self) -> dict[str, float | None]:
        """Return the newest evaluation; None if an earlier row has it."""
        totals = self.totals
        if totals.evaluation_t <= totals.evaluation_logged:
            return {"evaluation_t": None, "evaluation_mean": None}
        totals.evaluation_logged = totals.evaluation_t
        return {"evaluation_t": totals.evaluation_t, "evaluation_mean": totals.evaluation_mean}

    def _means(self, counters: dict[str, float]) -> dict[str, float | None]:
        """Return means over what the replay has counted since the last row; None where there was nothing."""
        since = {name: count - self.totals.counters[name] for name, count in counters.items()}
        self.totals.counters = counters

        def mean(total: str, count: str) -> float | None:
            return since[total] / since[count] if since[count] else None

        return {
            "replaced_age_mean": mean("replaced_age", "replaced"),
            "replaced_priority_mean": mean("replaced_priority", "replaced"),
            "chain_reward_mean": mean("chain_reward", "chains"),
            "sampled_recycled_share": mean("sampled_recycled", "sampled"),
        }

    def _speeds(self, t: int, updates: int) -> dict[str, float]:
        now = (time.monotonic(), t, updates)
        seconds, steps, updates_since = (new - old for new, old in zip(now, self._progress, strict=True))
        self._progress = now
        self.totals.elapsed_seconds += seconds
        return {
            "steps_per_second": steps / seconds,
            "updates_per_second": updates_since / seconds,
            "elapsed_seconds": self.totals.elapsed_seconds,
        }
