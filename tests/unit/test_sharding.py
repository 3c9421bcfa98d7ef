"""Batches from K replays estimate what batches of one replay do, if they are weighed as a whole: docs/scaling.md.

Seeds are fixed. A bias is counted in standard errors: a right way must stay below `FEW` of them, in this run and in the
published one, and a wrong way must be beyond `MANY`, so that neither test can pass by chance or by having no power.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from benchmarks import sharding
from benchmarks.sharding import BATCH, BETAS, SIZES, UNBIASED, WAYS, Drawn, Shards, simulate, weights_of
from dpsr_apex.replay.memory import DpsrReplay
from dpsr_apex.replay.schedules import constant
from tests.documents import ROOT
from tests.unit.replay.naive import transitions_of
from tests.unit.replay.twins import make_config, make_rows

FEW, MANY = 4.0, 20.0
CREDIBLE = 1e-3
BATCHES = 200
PUBLISHED = json.loads((ROOT / "docs" / "scaling" / "sharding.json").read_text(encoding="utf-8"))

Floats = NDArray[np.float64]


@pytest.fixture(scope="module")
def fresh_run() -> dict[str, Any]:
    return simulate(600, np.random.default_rng(11))


@pytest.fixture(params=["of this run", "published"])
def ways(request: pytest.FixtureRequest, fresh_run: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = fresh_run if request.param == "of this run" else PUBLISHED["ways"]
    return found


@pytest.fixture(scope="module")
def shards() -> Shards:
    """After some drift."""
    drifted = Shards(np.random.default_rng(3))
    for _ in range(20):
        drifted.drift()
    return drifted


def one_replay(shards: Shards, beta: float) -> DpsrReplay:
    """The real one, with the priorities of all shards in its slots."""
    floor = 1e-50
    config = make_config(
        "per", sum(SIZES), alpha=sharding.ALPHA, bias_annealing=constant(beta), priority_floor=floor, recycle_period=0
    )
    replay = DpsrReplay(config, 1_000, np.random.default_rng(4))
    replay.insert(transitions_of(make_rows(0, sum(SIZES))), shards.priorities - floor)
    return replay


def in_standard_errors(line: dict[str, float], beside: float = 0.0) -> float:
    return abs(line["bias"] - beside) / line["standard error"]


def test_what_is_published_is_of_these_ways_and_settings() -> None:
    assert PUBLISHED["settings"] == sharding.SETTINGS
    assert PUBLISHED["titles"] == {name: way.title for name, way in WAYS.items()}
    assert PUBLISHED["ways"].keys() == WAYS.keys()


@pytest.mark.parametrize("name", UNBIASED)
def test_weights_by_the_whole_probability_undo_all_bias_however_old_or_wrong_the_totals(
    name: str, ways: dict[str, Any]
) -> None:
    assert in_standard_errors(ways[name]["1"]) < FEW


@pytest.mark.parametrize("name", ["own", "own greatest"])
@pytest.mark.parametrize("beta", ["1", "0.4"])
def test_weights_that_each_shard_makes_by_itself_are_biased(name: str, beta: str, fresh_run: dict[str, Any]) -> None:
    least = MANY if beta == "1" else MANY / 2
    assert in_standard_errors(fresh_run[name][beta]) > least
    assert in_standard_errors(PUBLISHED["ways"][name][beta]) > MANY


@pytest.mark.parametrize("name", ["wrong 3, as believed", "age 64, as believed"])
def test_weights_by_totals_that_are_not_present_are_biased(name: str, fresh_run: dict[str, Any]) -> None:
    assert in_standard_errors(fresh_run[name]["1"]) > MANY / 2
    assert in_standard_errors(PUBLISHED["ways"][name]["1"]) > MANY


@pytest.mark.parametrize("name", [name for name in WAYS if name.endswith(("as in one", "fresh", "fresh, rounded"))])
def test_weights_as_in_one_replay_keep_its_expectation_for_any_beta(name: str, ways: dict[str, Any]) -> None:
    for beta in ("1", "0.4"):
        assert in_standard_errors(ways[name][beta]) < FEW
        assert abs(ways[name][beta]["expected bias"]) < 1e-12


@pytest.mark.parametrize("name", ["wrong 3", "wrong 3, rounded", "equal"])
def test_with_less_beta_wrong_totals_leave_a_bias_that_weights_by_probability_do_not_undo(
    name: str, ways: dict[str, Any]
) -> None:
    assert in_standard_errors(ways[name]["0.4"]) > MANY


@pytest.mark.parametrize("name", WAYS)
def test_the_formula_tells_every_bias(name: str, ways: dict[str, Any]) -> None:
    for line in ways[name].values():
        assert in_standard_errors(line, line["expected bias"]) < FEW


def test_what_the_page_says_of_scatter_is_in_the_published_run() -> None:
    scatter = {name: line["1"]["standard deviation"] for name, line in PUBLISHED["ways"].items()}
    assert scatter["fresh"] > 1.1 * scatter["fresh, rounded"]
    assert scatter["fresh, rounded"] == pytest.approx(scatter["one"], rel=0.05)
    assert scatter["age 4"] == pytest.approx(scatter["fresh"], rel=0.05)
    assert scatter["equal"] < scatter["wrong 3, rounded"] < scatter["wrong 3"]


# The frequencies of draws, beside those of the real replay.


def frequencies(drawn: list[Drawn], shards: Shards) -> Floats:
    """How often transitions were drawn, by shard and by tenth of the shard's priorities."""
    slots = np.concatenate([batch.slots for batch in drawn])
    return np.bincount(bins_of(shards)[slots], minlength=10 * len(SIZES)).astype(np.float64)


def bins_of(shards: Shards) -> NDArray[np.int64]:
    parts = np.split(shards.priorities, shards.starts[1:])
    tenths = [stats.rankdata(part, method="ordinal").astype(np.int64) * 10 // (part.size + 1) for part in parts]
    return np.concatenate([10 * shard + tenth for shard, tenth in enumerate(tenths)])


def draw_batches(shards: Shards, name: str, seed: int) -> list[Drawn]:
    way, rng = WAYS[name], np.random.default_rng(seed)
    believed = way.believes([shards.facts])
    assert way.counts is not None
    return [shards.draw(way.counts(believed / believed.sum(), rng), rng) for _ in range(BATCHES)]


@pytest.mark.parametrize("name", ["fresh", "fresh, rounded"])
def test_with_present_totals_draws_are_as_frequent_as_those_of_one_replay(name: str, shards: Shards) -> None:
    replay = one_replay(shards, beta=1.0)
    from_one = [shards.rows(replay.sample(BATCH).identities % sum(SIZES)) for _ in range(BATCHES)]
    counts = frequencies(draw_batches(shards, name, seed=5), shards)
    by_mass = np.bincount(bins_of(shards), weights=shards.masses)
    expected = by_mass / by_mass.sum() * counts.sum()
    assert stats.chisquare(counts, expected).pvalue > CREDIBLE
    assert stats.chi2_contingency([counts, frequencies(from_one, shards)]).pvalue > CREDIBLE
    of_shards = counts.reshape(len(SIZES), -1).sum(axis=1)
    assert stats.chisquare(of_shards, expected.reshape(len(SIZES), -1).sum(axis=1)).pvalue > CREDIBLE


def test_with_wrong_totals_they_are_not(shards: Shards) -> None:
    counts = frequencies(draw_batches(shards, "wrong 1.5", seed=5), shards)
    by_mass = np.bincount(bins_of(shards), weights=shards.masses)
    assert stats.chisquare(counts, by_mass / by_mass.sum() * counts.sum()).pvalue < 1e-12


@pytest.mark.parametrize("counts_of", [sharding.multinomial, sharding.rounded])
def test_counts_are_the_shares_on_average(counts_of: Any) -> None:
    shares = np.array([0.31, 0.002, 0.2, 0.0, 0.08, 0.15, 0.2, 0.058])
    rng = np.random.default_rng(6)
    counts = np.array([counts_of(shares, rng) for _ in range(4_000)])
    assert (counts.sum(axis=1) == BATCH).all()
    assert (counts[:, shares == 0.0] == 0).all()
    errors = counts.std(axis=0) / len(counts) ** 0.5
    assert (np.abs(counts.mean(axis=0) - BATCH * shares) <= FEW * errors).all()
    if counts_of is sharding.rounded:
        assert (np.abs(counts - BATCH * shares) < 1.0).all()


# Weights, beside those of the real replay and of the real trees.


@pytest.mark.parametrize("beta", BETAS)
@pytest.mark.parametrize("scales_of", [sharding.by_probability, sharding.as_in_one])
def test_with_present_totals_weights_are_those_of_one_replay(beta: float, scales_of: Any, shards: Shards) -> None:
    replay = one_replay(shards, beta)
    sample = replay.sample(BATCH)
    facts = shards.facts
    scales = scales_of(facts, facts.totals / facts.totals.sum(), beta)
    drawn = shards.rows(sample.identities % sum(SIZES))
    np.testing.assert_allclose(weights_of(drawn, scales, facts.least, beta), sample.weights, rtol=1e-5)


@pytest.mark.parametrize("beta", BETAS)
def test_weights_are_over_the_greatest_of_all_shards(beta: float, shards: Shards) -> None:
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
def test_over_its_own_greatest_is_what_a_replay_of_today_weighs(beta: float, shards: Shards) -> None:
    scales = sharding.by_own_greatest(shards.facts, np.ones(len(SIZES)), beta)
    for shard, trees in enumerate(shards.trees):
        slots, weights = trees.draw_to_sample(np.random.default_rng(shard).random(64), beta)
        masses = shards.rows(shards.starts[shard] + slots).masses
        np.testing.assert_allclose(scales[shard] * masses**-beta, weights, rtol=1e-5)
