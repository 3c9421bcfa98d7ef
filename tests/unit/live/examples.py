"""A run in the midst of its life, as its rows and its stats tell of it."""

from __future__ import annotations

from typing import Any

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


def stats_of(actors: int) -> dict[str, Any]:
    """Those of a run with so many actors, every second one on another machine, and the fourth one silent."""
    return {
        "t": 240_000,
        "era": 1,
        "actors": [
            {
                "name": f"actor-{index}",
                "index": index,
                "host": "far.example" if index % 2 else "",
                "epsilon": [0.4 ** (2 + index), 0.4 ** (1 + index)],
                "heard_seconds_ago": 7.2 if index == 3 else 0.2,
                "sent": 1_000,
                "recycling": 0,
            }
            for index in range(actors)
        ],
        "learner": {"updates": 59_000, "waiting": 0.43, "heard_seconds_ago": 0.1},
        "rate": {"steps_per_update": 4, "achieved": 4.01, "batches": 59_000, "owed": 13},
        "waiting": "The actors wait for the learner: 13 updates are owed at t = 240,000, and 12 may be (rate = 4)",
        "notes": [],
        "row": {},
    }


STATS = stats_of(2)
