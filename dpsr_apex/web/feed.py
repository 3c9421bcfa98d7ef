"""What is new in a run: its rows and evaluations, the statistics of its head, and its notes. Files are only read."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from dpsr_apex.config import Config
from dpsr_apex.files import Row, RowReader
from dpsr_apex.live.pace import Pace
from dpsr_apex.live.view import Speeds
from dpsr_apex.live.words import describe_waits, time_left
from dpsr_apex.processes.head_client import HeadClient
from dpsr_apex.processes.link import RefusedByReplay, ReplayLost
from dpsr_apex.processes.statistics import NewNotes
from dpsr_apex.record.progress import goal_of
from dpsr_apex.record.run_directory import RunDirectory
from dpsr_apex.web.runs import describe_run
from dpsr_apex.wire.messages import Stats, StatsRequest

MOST_ROWS = 1_000  # of the curves; more are thinned
ANSWER = 1.0  # seconds for the head to answer
CURVES: Final = (  # metrics of which the page shows the history
    *("t", "return_mean", "game_steps_mean", "loss", "mean_q", "gradient_norm", "epsilon", "fill"),
    *("steps_per_second", "updates_per_second", "steps_per_update", "policy_age_mean", "policy_age_p95"),
    *("age_deciles", "priority_deciles", "replaced_age_mean", "replaced_priority_mean"),
    *("recycled", "recycled_gain", "chain_reward_mean", "sampled_recycled_share", "elapsed_seconds"),
)


class News(NamedTuple):
    """The state of a run's records at one time; `generation` changes if they were written again from earlier on."""

    generation: int
    rows: Sequence[Row]  # all
    evaluations: Sequence[Row]  # all
    line: Mapping[str, Any]  # as in the table of runs
    facts: Mapping[str, Any]  # about now


class Feed:
    """Reads one run; used by one thread."""

    def __init__(self, name: str, run: RunDirectory, config: Config, client: HeadClient | None) -> None:
        self._name = name
        self._run = run
        self._client = client
        self._goal = goal_of(config.run)
        self._generation = 0
        self._rows: list[Row] = []
        self._evaluations: list[Row] = []
        self._new_rows, self._new_evaluations = RowReader(run.metrics, []), RowReader(run.evaluations, [])
        self._notes = NewNotes()
        self._noted: list[str] = []
        self._speeds = Speeds()

    def read(self) -> News:
        """Read what was added, and return the present state."""
        rows, evaluations = self._new_rows.read(), self._new_evaluations.read()
        if self._new_rows.was_replaced or self._new_evaluations.was_replaced:
            self._generation += 1
        self._rows = rows if self._new_rows.was_replaced else [*self._rows, *rows]
        self._evaluations = evaluations if self._new_evaluations.was_replaced else [*self._evaluations, *evaluations]
        line = describe_run(self._name, self._run)
        stats = self._ask() if line["state"] == "running" else None
        return News(self._generation, self._rows, self._evaluations, line, self._facts(line, stats))

    def _ask(self) -> Stats | None:
        if self._client is None:
            return None
        try:
            for message in self._client.ask(StatsRequest(), ANSWER):
                if isinstance(message, Stats):
                    return message
        except (RefusedByReplay, ReplayLost):
            return None
        return None

    def _facts(self, line: Mapping[str, Any], stats: Stats | None) -> dict[str, Any]:
        pace = Pace(self._goal)
        for row in self._rows[-60:]:
            pace.add(row)
        newest = self._rows[-1] if self._rows else {"t": 0}
        facts: dict[str, Any] = {
            "row": {name: value for name, value in newest.items() if name not in ("age_deciles", "priority_deciles")},
            "left": time_left(newest, self._goal, pace.steps_per_second) if line["state"] == "running" else None,
            "stats": None,
        }
        if stats:
            self._noted = [*self._noted, *self._notes.of(stats)][-200:]
            facts |= {"stats": self._stats(stats), "notes": self._noted}
        return facts

    def _stats(self, stats: Stats) -> dict[str, Any]:
        speeds = self._speeds.look(stats.actors, time.monotonic())
        learner = stats.learner
        return {
            "t": stats.t,
            "stored": stats.stored,
            "capacity": stats.capacity,
            "planned_actors": stats.planned_actors,
            "steps_per_update": stats.rate.steps_per_update,
            "achieved": stats.rate.achieved,
            "waiting": describe_waits(stats.waiting),
            "learner_silent": learner.heard_seconds_ago if learner else None,
            "learner_waiting": learner.report.waiting if learner and learner.report else None,
            "actors": [actor._asdict() | {"speed": speeds.get(actor.name)} for actor in stats.actors],
        }


class Reader:
    """What one viewer has not been sent yet."""

    def __init__(self) -> None:
        self._generation: int | None = None
        self._rows = self._evaluations = 0

    def take(self, news: News) -> dict[str, Any]:
        """Return what is new since the last call, as JSON: everything if the records were written again."""
        is_new = news.generation != self._generation
        self._generation = news.generation
        if is_new:
            self._rows = self._evaluations = 0
        rows, evaluations = news.rows[self._rows :], news.evaluations[self._evaluations :]
        self._rows, self._evaluations = len(news.rows), len(news.evaluations)
        every = max(-(-len(rows) // MOST_ROWS), 1)
        return {
            "reset": is_new,
            "rows": [{name: row[name] for name in CURVES if name in row} for row in rows[::-every][::-1]],
            "every": every,
            "evaluations": [
                {"t": row["t"], "mean": row.get("mean"), "scores": row.get("scores")} for row in evaluations
            ],
            "line": dict(news.line),
            "now": dict(news.facts),
        }
