"""Synthetic run directories for tests: metrics and evaluations as a run would write them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dpsr_apex.config_files import dump_config, load_config
from dpsr_apex.record.ending import Ending, write_ending
from dpsr_apex.record.run_directory import RunDirectory

TOTAL = 10_000


def make_run(
    path: Path,
    *overrides: str,
    method: str = "dpsr",
    seed: int = 0,
    until: int = TOTAL,
    level: float = 100.0,
    row_count: int = 20,
) -> Path:
    """Write a CartPole run up to t = `until`, with scores that rise to `level`; it is finished if `until` is TOTAL."""
    path.mkdir(parents=True)
    settings = (f"replay.method={method}", f"run.seed={seed}", f"run.total_steps={TOTAL}", *overrides)
    (path / "config.toml").write_text(dump_config(load_config("cartpole", overrides=settings)), encoding="utf-8")
    (path / "logs").mkdir()
    rng = np.random.default_rng([seed, len(method)])
    clocks = [t for t in np.linspace(TOTAL / row_count, TOTAL, row_count).astype(int).tolist() if t <= until]
    write_rows(path / "metrics.jsonl", [metrics_row(t, method, level, rng) for t in clocks])
    write_rows(path / "evaluations.jsonl", [_evaluation(t, level, rng) for t in clocks if t % 1_000 == 0])
    return path


def write_rows(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")


def fail(run: Path, process: str, cause: str) -> None:
    """Write the ending of a run that has failed."""
    write_ending(RunDirectory(run), Ending("failed", 1, 0, process, cause))


def metrics_row(t: int, method: str, level: float, rng: np.random.Generator) -> dict[str, Any]:
    """Return a row with all metrics that a run logs, at clock t."""
    ages = np.sort(rng.uniform(0, min(t, 5_000), 11))
    priorities = np.sort(rng.lognormal(-2, 1, 11))
    rounds = t // 250 if method == "dpsr" else 0
    return {
        "t": t,
        "return_mean": None if t < TOTAL / 10 else float(_score(t, level, rng)),
        "age_mean": float(ages.mean()),
        "age_deciles": ages.tolist(),
        "priority_mean": float(priorities.mean()),
        "priority_deciles": priorities.tolist(),
        "replaced_age_mean": float(ages.mean()) * 1.5 if t > 5_000 else None,
        "replaced_priority_mean": float(priorities.mean()) / 3 if t > 5_000 else None,
        "recycled": 15 * rounds,
        "recycled_gain": 0.75 * rounds,
        "rounds_opened": rounds,
        "rounds_closed": rounds,
        "rounds_expired": 0,
        "candidates_drawn": 16 * rounds,
        "candidates_applied": 15 * rounds,
        "candidates_stale": rounds,
        "candidates_lost": 0,
        "answers_late": 0,
        "steps_per_second": 500.0,
        "updates_per_second": 500.0 if t > 1_000 else 0.0,
        "steps_per_update": 1.0 if t > 1_000 else None,
        "elapsed_seconds": t / 500,
    }


def _evaluation(t: int, level: float, rng: np.random.Generator) -> dict[str, Any]:
    scores = [float(_score(t, level, rng)) for _ in range(3)]
    return {"t": t, "games": 3, "scores": scores, "mean": float(np.mean(scores)), "steps": [1, 2, 3]}


def _score(t: int, level: float, rng: np.random.Generator) -> float:
    return level * t / TOTAL + rng.normal(0, level / 10)
