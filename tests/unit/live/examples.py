"""A run half way through: a row of metrics, and statistics."""

from __future__ import annotations

from typing import Any

from dpsr_apex.replay.records import Counters
from dpsr_apex.wire.messages import LearnerStats, Learning, Stats
from dpsr_apex.wire.statistics import ActorsPaused, ActorStats, RateStats, Traffic

ROW: dict[str, Any] = {
    "t": 240_000,
    "episodes": 720,
    "return_mean": 19.94,
    "return_best": 34.0,
    "epsilon": 0.02,
    "fill": 0.87,
    "stored": 43_500,
    "age_mean": 21_234.0,
    "priority_mean": 0.343,
    "age_histogram": {"edges": [2_500.0 * i for i in range(21)], "counts": list(range(20, 0, -1))},
    "priority_histogram": {"edges": [10 ** (-4 + 0.25 * i) for i in range(21)], "counts": [1] * 10 + [5] * 10},
    "replaced_age_mean": 31_000.0,
    "replaced_priority_mean": 0.0123,
    "rounds_opened": 20,
    "rounds_closed": 19,
    "rounds_expired": 1,
    "candidates_applied": 300,
    "candidates_stale": 4,
    "candidates_lost": 16,
    "recycled": 300,
    "recycled_gain": 9.3,
    "updates": 59_000,
    "steps_per_update": 4.01,
    "loss": 0.01234,
    "mean_q": 1.5,
    "evaluation_mean": 21.25,
    "steps_per_second": 1234.5,
    "updates_per_second": 308.2,
    "elapsed_seconds": 431.0,
}


def stats_of(actors: int) -> Stats:
    """Those of a run with this number of actors, every second one on another machine, and the fourth one silent."""
    return Stats(
        era=1,
        t=240_000,
        total_steps=1_000_000,
        finished=False,
        ending=False,
        stored=43_500,
        capacity=50_000,
        replay=Counters(),
        traffic=Traffic(),
        queued=0,
        rate=RateStats(steps_per_update=4, achieved=4.01, batches=59_000, owed=13),
        planned_actors=actors,
        actors=[
            ActorStats(
                name=f"actor-{place}",
                place=place,
                host="far.example" if place % 2 else "",
                epsilon_low=0.4 ** (2 + place),
                epsilon_high=0.4 ** (1 + place),
                heard_seconds_ago=7.2 if place == 3 else 0.2,
                sent=1_000,
                recycling=0,
            )
            for place in range(actors)
        ],
        learner=LearnerStats(0.1, Learning(59_000, 100, 0.1, 1.5, 1.0, waiting=0.43)),
        heard={},
        waiting=[ActorsPaused(updates_behind=13, limit=12)],
        notes=[],
        row={},
    )


STATS = stats_of(2)
