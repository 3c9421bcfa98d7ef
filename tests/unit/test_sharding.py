"""Batches from K replays give the same estimates as one replay if they are weighted as a whole: docs/scaling.md.

Seeds are fixed. A bias is counted in standard errors: an unbiased scheme must stay below `FEW` of them, in this run and
in the published one, and a biased scheme must be above `MANY`, so that no test can pass by chance or for lack of power.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from benchmarks import sharding
from benchmarks.sharding import BATCH, BETAS, SCHEMES, SIZES, UNBIASED, Sampled, Shards, simulate, weights_of
from dpsr_apex.replay.replay import Replay
from dpsr_apex.schedules import constant
from tests.documents import ROOT
from tests.unit.replay.naive import transitions_of
from tests.unit.replay.twins import make_config, make_rows

FEW, MANY = 4.0, 20.0
MIN_P_VALUE = 1e-3
BATCHES = 200
PUBLISHED = json.loads((ROOT / "docs" / "scaling" / "sharding.json").read_text(encoding="utf-8"))

Floats = NDArray[np.float64]


@pytest.fixture(scope="module")
def new_run() -> dict[str, Any]:
    return simulate(600, np.random.default_rng(11))


@pytest.fixture(params=["new", "published"])
def schemes(request: pytest.FixtureRequest, new_run: dict[str, Any]) -> dict[str, Any]:
    simulation: dict[str, Any] = new_run if request.param == "new" else PUBLISHED["schemes"]
    return simulation


@pytest.fixture(scope="module")
def shards() -> Shards:
    """Shards after some drift."""
    drifted = Shards(np.random.default_rng(3))
    for _ in range(20):
        drifted.drift()
    return drifted


def one_replay(shards: Shards, beta: float) -> Replay:
    """Return a real replay with the priorities of all shards in its slots."""
    floor = 1e-50
    config = make_config(
        "per", sum(SIZES), alpha=sharding.ALPHA, bias_annealing=constant(beta), priority_floor=floor, recycle_period=0
    )
    replay = Replay(config, 1_000, np.random.default_rng(4))
    replay.insert(transitions_of(make_rows(0, sum(SIZES))), shards.priorities - floor)
    return replay


def in_standard_errors(line: dict[str, float], expected: float = 0.0) -> float:
    return abs(line["bias"] - expected) / line["standard error"]


def test_the_published_results_have_these_schemes_and_settings() -> None:
    assert PUBLISHED["settings"] == sharding.SETTINGS
    assert PUBLISHED["titles"] == {name: scheme.title for name, scheme in SCHEMES.items()}
    assert PUBLISHED["schemes"].keys() == SCHEMES.keys()


@pytest.mark.parametrize("name", UNBIASED)
def test_weights_by_the_actual_probability_are_unbiased_even_with_outdated_or_wrong_totals(
    name: str, schemes: dict[str, Any]
) -> None:
    assert in_standard_errors(schemes[name]["1"]) < FEW


@pytest.mark.parametrize("name", ["own", "own maximum"])
@pytest.mark.parametrize("beta", ["1", "0.4"])
def test_weights_computed_by_each_shard_alone_are_biased(name: str, beta: str, new_run: dict[str, Any]) -> None:
    minimum = MANY if beta == "1" else MANY / 2
    assert in_standard_errors(new_run[name][beta]) > minimum
    assert in_standard_errors(PUBLISHED["schemes"][name][beta]) > MANY


@pytest.mark.parametrize("name", ["wrong 3, as assumed", "age 64, as assumed"])
def test_weights_by_outdated_or_wrong_totals_are_biased(name: str, new_run: dict[str, Any]) -> None:
    assert in_standard_errors(new_run[name]["1"]) > MANY / 2
    assert in_standard_errors(PUBLISHED["schemes"][name]["1"]) > MANY


@pytest.mark.parametrize("name", [name for name in SCHEMES if name.endswith(("as in one", "fresh", "fresh, rounded"))])
def test_weights_as_in_one_replay_keep_its_expectation_for_any_beta(name: str, schemes: dict[str, Any]) -> None:
    for beta in ("1", "0.4"):
        assert in_standard_errors(schemes[name][beta]) < FEW
        assert abs(schemes[name][beta]["expected bias"]) < 1e-12


@pytest.mark.parametrize("name", ["wrong 3", "wrong 3, rounded", "equal"])
def test_with_beta_below_1_weights_by_probability_are_biased_if_totals_are_wrong(
    name: str, schemes: dict[str, Any]
) -> None:
    assert in_standard_errors(schemes[name]["0.4"]) > MANY


@pytest.mark.parametrize("name", SCHEMES)
def test_the_formula_predicts_every_bias(name: str, schemes: dict[str, Any]) -> None:
    for line in schemes[name].values():
        assert in_standard_errors(line, line["expected bias"]) < FEW


def test_statements_of_the_page_about_deviations_hold_in_the_published_results() -> None:
    deviation = {name: line["1"]["standard deviation"] for name, line in PUBLISHED["schemes"].items()}
    assert deviation["fresh"] > 1.1 * deviation["fresh, rounded"]
    assert deviation["fresh, rounded"] == pytest.approx(deviation["one"], rel=0.05)
    assert deviation["age 4"] == pytest.approx(deviation["fresh"], rel=0.05)
    assert deviation["equal"] < deviation["wrong 3, rounded"] < deviation["wrong 3"]


# The frequencies of samples, compared with the real replay.


def frequencies(sampled: list[Sampled], shards: Shards) -> Floats:
    """Count sampled transitions by shard and by decile of the shard's priorities."""
    slots = np.concatenate([batch.slots for batch in sampled])
    return np.bincount(bins_of(shards)[slots], minlength=10 * len(SIZES)).astype(np.float64)


def bins_of(shards: Shards) -> NDArray[np.int64]:
    parts = np.split(shards.priorities, shards.starts[1:])
    tenths = [stats.rankdata(part, method="ordinal").astype(np.int64) * 10 // (part.size + 1) for part in parts]
    return np.concatenate([10 * shard + tenth for shard, tenth in enumerate(tenths)])


def sample_batches(shards: Shards, name: str, seed: int) -> list[Sampled]:
    scheme, rng = SCHEMES[name], np.random.default_rng(seed)
    assumed = scheme.assumed_totals([shards.facts])
    assert scheme.counts is not None
    return [shards.sample(scheme.counts(assumed / assumed.sum(), rng), rng) for _ in range(BATCHES)]


@pytest.mark.parametrize("name", ["fresh", "fresh, rounded"])
def test_with_current_totals_sampling_frequencies_are_those_of_one_replay(name: str, shards: Shards) -> None:
    replay = one_replay(shards, beta=1.0)
    from_one = [shards.rows(replay.sample(BATCH).identities % sum(SIZES)) for _ in range(BATCHES)]
    counts = frequencies(sample_batches(shards, name, seed=5), shards)
    by_mass = np.bincount(bins_of(shards), weights=shards.masses)
    expected = by_mass / by_mass.sum() * counts.sum()
    assert stats.chisquare(counts, expected).pvalue > MIN_P_VALUE
    assert stats.chi2_contingency([counts, frequencies(from_one, shards)]).pvalue > MIN_P_VALUE
    of_shards = counts.reshape(len(SIZES), -1).sum(axis=1)
    assert stats.chisquare(of_shards, expected.reshape(len(SIZES), -1).sum(axis=1)).pvalue > MIN_P_VALUE


def test_with_wrong_totals_sampling_frequencies_differ(shards: Shards) -> None:
    counts = frequencies(sample_batches(shards, "wrong 1.5", seed=5), shards)
    by_mass = np.bincount(bins_of(shards), weights=shards.masses)
    assert stats.chisquare(counts, by_mass / by_mass.sum() * counts.sum()).pvalue < 1e-12


@pytest.mark.parametrize("counts_of", [sharding.multinomial, sharding.rounded])
def test_mean_counts_match_the_shares(counts_of: Any) -> None:
    shares = np.array([0.31, 0.002, 0.2, 0.0, 0.08, 0.15, 0.2, 0.058])
    rng = np.random.default_rng(6)
    counts = np.array([counts_of(shares, rng) for _ in range(4_000)])
    assert (counts.sum(axis=1) == BATCH).all()
    assert (counts[:, shares == 0.0] == 0).all()
    errors = counts.std(axis=0) / len(counts) ** 0.5
    assert (np.abs(counts.mean(axis=0) - BATCH * shares) <= FEW * errors).all()
    if counts_of is sharding.rounded:
        assert (np.abs(counts - BATCH * shares) < 1.0).all()


# Weights, compared with the real replay and the real trees.


@pytest.mark.parametrize("beta", BETAS)
@pytest.mark.parametrize("scales_of", [sharding.by_probability, sharding.as_in_one])
def test_with_current_totals_weights_are_those_of_one_replay(beta: float, scales_of: Any, shards: Shards) -> None:
    replay = one_replay(shards, beta)
    sample = replay.sample(BATCH)
    facts = shards.facts
    scales = scales_of(facts, facts.totals / facts.totals.sum(), beta)
    sampled = shards.rows(sample.identities % sum(SIZES))
    np.testing.assert_allclose(weights_of(sampled, scales, facts.least, beta), sample.weights, rtol=1e-5)


@pytest.mark.parametrize("beta", BETAS)
def test_weights_are_normalized_by_the_maximum_of_all_shards(beta: float, shards: Shards) -> None:
    facts = shards.facts
    shares = np.full(len(SIZES), 1 / len(SIZES))
    scales = sharding.by_probability(facts, shares, beta)
    everything = shards.rows(np.arange(sum(SIZES)))
    weights = weights_of(everything, scales, facts.least, beta)
    probabilities = shares[everything.shards] * everything.masses / facts.totals[everything.shards]
    raw = (sum(SIZES) * probabilities) ** -beta
    np.testing.assert_allclose(weights, raw / raw.max(), rtol=1e-12)
    assert len({weights[everything.shards == shard].max() for shard in range(len(SIZES))}) == len(SIZES)


@pytest.mark.parametrize("beta", BETAS)
def test_weights_by_own_maximum_are_those_of_a_single_replay(beta: float, shards: Shards) -> None:
    scales = sharding.by_own_maximum(shards.facts, np.ones(len(SIZES)), beta)
    for shard, trees in enumerate(shards.trees):
        slots, weights = trees.sample(np.random.default_rng(shard).random(64), beta)
        masses = shards.rows(shards.starts[shard] + slots).masses
        np.testing.assert_allclose(scales[shard] * masses**-beta, weights, rtol=1e-5)
