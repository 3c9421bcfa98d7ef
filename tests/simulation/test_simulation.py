"""Simulated runs, each from a seed: whatever fails on the way, the run finishes or stops and nothing is missing."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from functools import cache

import pytest

from tests.simulation.__main__ import main
from tests.simulation.checks import Checks
from tests.simulation.world import HistoryFailed, run

HISTORIES, MANY_HISTORIES, TOGETHER = 100, 800, 20  # seeds


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
        counts["compared recovery"] += world.promise.recoveries
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
    counts = counts_of(0) + counts_of(TOGETHER) + counts_of(2 * TOGETHER)
    for fault in ("crash", "cut", "pause", "message lost", "message late", "message repeated", "scale", "node lost"):
        assert counts[fault] >= 30, counts
    for fault in ("disk kill", "disk full", "power cut", "compared recovery"):
        assert counts[fault] >= 5, counts
    for event in ("stop", "told of a crash", "plan checked", "kill", "frozen process restarted"):
        assert counts[event] > 0, counts
    for event in ("sync failure", "flipped bit", "damaged checkpoint", "supervisor killed", "everything killed"):
        assert counts[event] > 0, counts
    for role in ("actor", "learner", "replay"):
        assert counts[f"{role} ended with 1"] > 8, counts
    for role in ("actor", "learner", "evaluator"):
        assert counts[f"{role} ended with 143"] + counts[f"{role} ended with -9"] > 5, counts
    assert counts["checkpoint"] > 120
    assert counts["rolled back"] > 100, "transitions since the last checkpoint, without a journal or power"


def test_a_seed_is_a_history() -> None:
    first, second = run(11), run(11)
    assert first.tell() == second.tell()
    assert first.tell() != run(12).tell()


def test_a_seed_is_the_same_history_in_every_process() -> None:
    command = [sys.executable, "-m", "tests.simulation", "2"]
    told = [
        subprocess.run(command, env=os.environ | {"PYTHONHASHSEED": seed}, capture_output=True, check=True).stdout
        for seed in ("1", "2")
    ]
    assert told[0] == told[1]
    assert told[0].decode().splitlines() == run(2).tell()


def test_many_histories_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--histories", "2", "--first", "3"]) == 0
    counted, happened = capsys.readouterr().out.splitlines()
    assert counted.startswith("2 histories")
    assert "checkpoint" in happened


def fail_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: Checks) -> None:
        raise AssertionError("a bug")

    monkeypatch.setattr(Checks, "_check_end", fail)


def test_many_histories_stop_at_the_first_that_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fail_at_the_end(monkeypatch)
    assert main(["--histories", "5", "--first", "5"]) == 1
    said = capsys.readouterr().out
    assert said.startswith("0 histories")
    assert "seed 5: a bug" in said
    assert said.splitlines()[-1].endswith("python -m tests.simulation 5")


@pytest.mark.parametrize("seconds", [0.1, 4.0, 12.0])
def test_it_does_not_matter_how_long_processes_take_to_start(seconds: float) -> None:
    for seed in range(3):
        run(seed, seconds)


def test_a_history_that_fails_names_its_seed_and_what_happened(monkeypatch: pytest.MonkeyPatch) -> None:
    fail_at_the_end(monkeypatch)
    with pytest.raises(HistoryFailed) as failure:
        run(5)
    text = str(failure.value)
    assert text.startswith("seed 5: a bug\n")
    assert "python -m tests.simulation 5" in text
    assert "Heartbeat(" in text
