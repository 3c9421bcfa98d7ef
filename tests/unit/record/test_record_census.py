from __future__ import annotations

import numpy as np
import pytest

from dpsr_apex.config import ReplayConfig
from dpsr_apex.record import census
from dpsr_apex.record.census import take_census
from dpsr_apex.replay.replay import Replay
from tests.unit.replay.naive import transitions_of
from tests.unit.replay.twins import make_rows


@pytest.fixture
def replay() -> Replay:
    """150 stored, whose births and priorities all differ."""
    config = ReplayConfig(method="double", capacity=150, replace_candidates=4)
    replay = Replay(config, 1_000, np.random.default_rng(0))
    replay.insert(transitions_of(make_rows(0, 400)), np.random.default_rng(1).lognormal(size=400))
    return replay


def test_deciles_and_means_are_those_of_all_that_is_stored(replay: Replay) -> None:
    row = take_census(replay)
    ages = replay.t - replay.births
    assert row["age_mean"] == pytest.approx(ages.mean())
    assert row["age_deciles"] == pytest.approx(np.percentile(ages, range(0, 101, 10)).tolist(), rel=1e-5)
    assert row["priority_mean"] == pytest.approx(replay.priorities.mean())
    expected = np.percentile(replay.priorities, range(0, 101, 10))
    assert row["priority_deciles"] == pytest.approx(expected.tolist(), rel=1e-5)


def test_histograms_hold_everything_that_is_stored(replay: Replay) -> None:
    row = take_census(replay)
    for name, values in (("age", replay.t - replay.births), ("priority", replay.priorities)):
        counts, edges = row[f"{name}_histogram"]["counts"], row[f"{name}_histogram"]["edges"]
        assert sum(counts) == 150
        assert len(edges) == len(counts) + 1
        below = [int((values < edge * (1 + 1e-5)).sum()) for edge in edges[1:]]  # edges are rounded
        assert np.abs(np.cumsum(counts) - below).max() <= 1
    steps = np.diff(np.log10(row["priority_histogram"]["edges"]))
    assert steps == pytest.approx(np.full(20, steps.mean()), rel=1e-3)


def test_of_a_large_replay_a_spread_of_slots_is_told(replay: Replay, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(census, "LARGEST_SAMPLE", 40)
    counted = sum(take_census(replay)["age_histogram"]["counts"])
    assert counted == 38  # every fourth of 150


def test_a_replay_whose_transitions_are_all_alike_has_a_census_too() -> None:
    replay = Replay(ReplayConfig(capacity=300), 1_000, np.random.default_rng(0))
    replay.insert(transitions_of(make_rows(0, 1)))
    row = take_census(replay)
    assert row["age_deciles"] == [0.0] * 11
    assert sum(row["priority_histogram"]["counts"]) == 1


def test_after_evictions_the_census_is_of_what_is_left(replay: Replay) -> None:
    full = take_census(replay)
    evicted = replay.identities[::3]
    replay.evict(evicted)
    row = take_census(replay)
    assert sum(row["age_histogram"]["counts"]) == 150 - evicted.size
    assert row["priority_mean"] == pytest.approx(replay.priorities.mean())
    replay.evict(replay.identities)
    assert take_census(replay) == dict.fromkeys(full)
