"""Run directories made up for tests: rows and evaluations as a run would write them, without a run."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dpsr_apex.config_files import dump_config, load_config

TOTAL = 10_000
NOON = "2026-01-01 12:00:00,000"


def make_run(
    path: Path,
    *overrides: str,
    method: str = "dpsr",
    seed: int = 0,
    until: int = TOTAL,
    level: float = 100.0,
    row_count: int = 20,
) -> Path:
    """A run of CartPole that came to `until`, with scores that rise towards `level`; at TOTAL it is finished."""
    path.mkdir(parents=True)
    own = (f"replay.method={method}", f"run.seed={seed}", f"run.total_steps={TOTAL}", *overrides)
    (path / "config.toml").write_text(dump_config(load_config("cartpole", overrides=own)), encoding="utf-8")
    (path / "logs").mkdir()
    write_log(path, f"{NOON} INFO dpsr_apex.run.training: saved a checkpoint")
    rng = np.random.default_rng([seed, len(method)])
    clocks = [t for t in np.linspace(TOTAL / row_count, TOTAL, row_count).astype(int).tolist() if t <= until]
    write_rows(path / "metrics.jsonl", [metrics_row(t, method, level, rng) for t in clocks])
    write_rows(path / "evaluations.jsonl", [_evaluation(t, level, rng) for t in clocks if t % 1_000 == 0])
    return path


def write_rows(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")


def write_log(run: Path, *lines: str, name: str = "solo") -> None:
    with (run / "logs" / f"{name}.log").open("a", encoding="utf-8") as log:
        log.writelines(f"{line}\n" for line in lines)


def metrics_row(t: int, method: str, level: float, rng: np.random.Generator) -> dict[str, Any]:
    """A row with everything that a run logs, at clock t."""
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
