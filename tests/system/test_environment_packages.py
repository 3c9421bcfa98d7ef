"""Environments of packages that are not written for this project train by their Gymnasium ids, and are recycled."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import dpsr_apex as da

HIGHWAY = "highway_env:highway-fast-v0"
TRADING = "gym_anytrading:stocks-v0"
MINIGRID = "MiniGrid-DoorKey-5x5-v0"
SMALL: dict[str, Any] = {
    "replay.capacity": 80,
    "replay.replace_candidates": 8,
    "replay.recycle_candidates": 4,
    "learner.learning_starts": 60,
    "learner.batch_size": 16,
    "evaluation.episodes": 1,
    "evaluation.max_steps": 20,
    "evaluation.random_episodes": 1,
}
COST = re.compile(
    r"^Restores replay the history: [\d.]+ m?s for an episode of [\d,]+ steps, about .* of the run$", re.M
)


@pytest.mark.parametrize("method", ["per", "dpsr"])
@pytest.mark.parametrize(
    ("name", "replays"),
    [(MINIGRID, False), (TRADING, True), pytest.param(HIGHWAY, True, marks=pytest.mark.slow)],
)
def test_an_id_of_a_package_trains(
    name: str, replays: bool, method: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recycling = {"replay.recycle_period": 40} if method == "dpsr" else {}
    run = da.train(
        "cartpole", method=method, steps=160, set={"env.name": name, **SMALL, **recycling}, run_dir=tmp_path / "run"
    )
    printed = capsys.readouterr().out
    last = run.metrics[-1]
    assert (last["t"], len(run.evaluations)) == (160, 1)
    assert (last["recycled"] > 0) == (method == "dpsr")
    assert last["candidates_lost"] == 0
    assert bool(COST.search(printed)) == (replays and method == "dpsr")
    restored = run.enter(int(run.replay.identities[0])) if method == "dpsr" or not replays else None
    assert restored is None or restored.step(0)[1] is not None
