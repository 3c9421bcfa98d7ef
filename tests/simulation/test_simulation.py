"""Simulated runs, each from a seed: whatever fails on the way, the run finishes or stops and nothing is missing."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator
from functools import cache

import pytest

from dpsr_apex.protocol.prefetch import Prefetch
from tests.simulation.world import HistoryFailed, run

HISTORIES, MANY_HISTORIES, TOGETHER = 200, 800, 20  # seeds


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    with caplog.at_level(logging.CRITICAL):
        yield


@cache
def counts_of(first: int) -> Counter[str]:
    """Run the histories of TOGETHER seeds from `first` on; return how often everything has happened in them."""
    counts: Counter[str] = Counter()
    for seed in range(first, first + TOGETHER):
        world = run(seed)
        counts.update(world.counts)
        counts["rolled back"] += world.accounts.count_rolled_back()
    return counts


@pytest.mark.parametrize("first", range(0, HISTORIES, TOGETHER))
def test_a_run_survives_every_fault(first: int) -> None:
    assert counts_of(first)["checkpoint"] > 0


@pytest.mark.thorough
@pytest.mark.slow
def test_a_run_survives_every_fault_in_many_more_histories() -> None:
    for seed in range(HISTORIES, MANY_HISTORIES):
        run(seed)


def test_the_faults_happen() -> None:
    counts = counts_of(0)
    for fault in ("crash", "cut", "pause", "message lost", "message late", "message repeated", "scale", "node lost"):
        assert counts[fault] >= 10, counts
    for event in ("stop", "told of a crash", "plan checked", "kill"):
        assert counts[event] > 0, counts
    for role in ("actor", "learner", "replay"):
        assert counts[f"{role} ended with 1"] > 2, counts
    for role in ("actor", "learner", "evaluator"):
        assert counts[f"{role} ended with 143"] + counts[f"{role} ended with -9"] > 1, counts
    assert counts["checkpoint"] > 40
    assert counts["rolled back"] > 100, "transitions since the last checkpoint"


def test_a_seed_is_a_history() -> None:
    first, second = run(11), run(11)
    assert first.tell() == second.tell()
    assert first.tell() != run(12).tell()


@pytest.mark.parametrize("seconds", [0.1, 4.0, 12.0])
def test_it_does_not_matter_how_long_processes_take_to_start(seconds: float) -> None:
    for seed in range(3):
        run(seed, seconds)


def test_a_history_that_fails_names_its_seed_and_what_happened(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Prefetch, "tick", lambda *_: [])
    with pytest.raises(HistoryFailed) as failure:
        run(3)
    text = str(failure.value)
    assert text.startswith("seed 3: ")
    assert "python -m tests.simulation 3" in text
    assert "Heartbeat(" in text
