"""Simulate sampling one batch from K replays (shards): which weights are unbiased, and what outdated totals cost.

This is not part of the system, which has one replay; docs/scaling.md explains the purpose. Each shard has the project's
own trees, and its priorities drift. The estimated quantity is the mean, over the transitions of all shards, of a value
that is correlated with the priority, as a gradient is. Nothing is timed; all randomness comes from a generator.

A sampling scheme has two numbers for each shard k: its share q_k of a batch, and the scale c_k of its weights.
Transition i of the shard is sampled by its mass, p_i ** alpha, relative to the shard's current total S_k, and has the
weight c_k * mass ** -beta. So the shard contributes to the expected sum of a batch in proportion to q_k * c_k / S_k.
With one replay this factor is the same for all transitions.
"""

from __future__ import annotations

import json
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks.measure import parse_options, print_table
from benchmarks.sharding_plot import plot
from dpsr_apex.replay.trees import LEAST, SAMPLING, PriorityTrees

SIZES = (2_800, 2_600, 2_300, 2_100, 1_900, 1_700, 1_400, 1_200)  # transitions in each shard
ALPHA = 0.6
BETAS = (1.0, 0.4)
BATCH = 512
UPDATES = 4_000  # repetitions; the priorities drift in between
RENEWED = 0.07  # share of a shard's transitions that get new priorities between two updates
STEP, PULL = 0.1, 0.02  # of a shard's mean log priority between two updates: random step, reversion to its level
LEVELS = (-3.0, -1.0)  # mean log priority to which the first and the last shard revert
SPREADS = (1.0, 2.0)  # standard deviation of log priorities in the first and in the last shard
NOISE = 0.5  # standard deviation of a value, relative to its priority
AGES = (1, 4, 16, 64)  # of the totals, in updates
FACTORS = (1.5, 2.0, 3.0, 5.0, 10.0)  # by which totals are wrong, alternately too large and too small

SETTINGS = {
    **{"sizes": list(SIZES), "alpha": ALPHA, "batch": BATCH, "updates": UPDATES, "renewed": RENEWED},
    **{"step": STEP, "pull": PULL, "levels": list(LEVELS), "spreads": list(SPREADS), "noise": NOISE},
}

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


class Facts(NamedTuple):
    """What the shards report with their samples, one element per shard."""

    sizes: Integers  # N_k
    totals: Floats  # S_k
    least: Floats  # the minimum mass


class Sampled(NamedTuple):
    """A batch, row by row."""

    slots: Integers  # in the replay of all transitions
    shards: Integers
    masses: Floats
    values: Floats


class Shards:
    """The trees of K replays and of one replay of all transitions, with drifting priorities, and all values."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.starts = np.cumsum([0, *SIZES[:-1]])  # slot of each shard's first transition in the replay of all
        self.values = np.zeros(sum(SIZES))
        self.trees = [PriorityTrees(size, ALPHA, 0.0) for size in SIZES]
        self._whole = PriorityTrees(sum(SIZES), ALPHA, 0.0)
        self._shard_of = np.repeat(np.arange(len(SIZES)), SIZES)
        self._home = np.linspace(*LEVELS, len(SIZES))
        self._spreads = np.linspace(*SPREADS, len(SIZES))
        self._levels = self._home.copy()
        self._rng = rng
        for shard, size in enumerate(SIZES):
            self._renew(shard, np.arange(size))

    @property
    def priorities(self) -> Floats:
        """Priorities of all transitions, shard by shard; a view."""
        return self._whole.priorities

    @property
    def masses(self) -> Floats:
        """Masses p ** alpha of all transitions, shard by shard; a view."""
        masses: Floats = self._whole.arrays.leaves[SAMPLING, : self.values.size]
        return masses

    @property
    def facts(self) -> Facts:
        """The current facts."""
        roots = [trees.arrays.nodes[:, trees.arrays.levels[-1]] for trees in self.trees]
        totals, least = (np.array([root[row] for root in roots]) for row in (SAMPLING, LEAST))
        return Facts(np.array(SIZES), totals, least**ALPHA)

    def drift(self) -> None:
        """Advance to the next update: levels move, and some transitions of every shard get new priorities."""
        self._levels += PULL * (self._home - self._levels) + STEP * self._rng.standard_normal(len(SIZES))
        for shard, size in enumerate(SIZES):
            self._renew(shard, self._rng.integers(size, size=int(RENEWED * size)))

    def sample(self, counts: Integers, rng: np.random.Generator) -> Sampled:
        """Sample `counts[k]` rows from each shard k, stratified within it."""
        slots = [trees.sample(rng.random(n), 1.0)[0] for trees, n in zip(self.trees, counts, strict=True)]
        return self.rows(np.concatenate([start + each for start, each in zip(self.starts, slots, strict=True)]))

    def sample_from_one(self, count: int, rng: np.random.Generator) -> Sampled:
        """Sample `count` rows from the replay of all transitions, stratified."""
        return self.rows(self._whole.sample(rng.random(count), 1.0)[0])

    def rows(self, slots: Integers) -> Sampled:
        """Return these slots of the replay of all transitions as a batch."""
        return Sampled(slots, self._shard_of[slots], self.masses[slots], self.values[slots])

    def _renew(self, shard: int, slots: Integers) -> None:
        """Set new priorities and values; if a slot occurs twice, its last priority counts."""
        priorities = self._rng.lognormal(self._levels[shard], self._spreads[shard], slots.size)
        self.trees[shard].set(slots, priorities)
        indices = self.starts[shard] + slots
        self._whole.set(indices, priorities)
        self.values[indices] = self.priorities[indices] * (1.0 + NOISE * self._rng.standard_normal(slots.size))


# How many rows of a batch are sampled from each shard, by the shares q.


def multinomial(shares: Floats, rng: np.random.Generator) -> Integers:
    """Choose the shard of every row independently."""
    counts: Integers = rng.multinomial(BATCH, shares)
    return counts


def rounded(shares: Floats, rng: np.random.Generator) -> Integers:
    """Round BATCH * shares up or down at random, without changing the mean (systematic sampling)."""
    ends = np.cumsum(shares[:-1]) * BATCH
    counts: Integers = np.diff(np.floor(ends + rng.random()), prepend=0.0, append=BATCH).astype(np.int64)
    return counts


# The totals that the learner assumes. The history has the current facts first.

History = Sequence[Facts]


def outdated(age: int) -> Callable[[History], Floats]:
    """Assume the totals from `age` updates ago."""
    return lambda history: history[age].totals


def wrong_by(factor: float) -> Callable[[History], Floats]:
    """Assume totals that are alternately too large and too small by this factor."""
    return lambda history: history[0].totals * factor ** np.where(np.arange(len(SIZES)) % 2, -1.0, 1.0)


def equal(history: History) -> Floats:
    """Assume equal totals, so that every shard contributes 1 / K of the batch."""
    return np.ones_like(history[0].totals)


# The scales c of the weights, by the facts that the shards report with their samples.


def by_probability(facts: Facts, shares: Floats, beta: float) -> Floats:
    """Weights (N P(i)) ** -beta with the actual sampling probability P(i) = q_k * mass / S_k."""
    scales: Floats = (facts.totals / (facts.sizes.sum() * shares)) ** beta
    return scales


def as_in_one(facts: Facts, shares: Floats, beta: float) -> Floats:
    """Weights of one replay, times the ratio by which it would have sampled the shard more often."""
    total = facts.totals.sum()
    scales: Floats = (total / facts.sizes.sum()) ** beta * (facts.totals / total) / shares
    return scales


def by_assumed_probability(facts: Facts, _: Floats, __: float) -> Floats:
    """Wrong: weights (N P(i)) ** -beta with the assumed P(i), mass over the sum of the assumed totals."""
    return np.ones_like(facts.totals)


def by_own_probability(facts: Facts, _: Floats, beta: float) -> Floats:
    """Wrong: weights (N_k P_k(i)) ** -beta, as if each shard were the whole replay."""
    scales: Floats = (facts.totals / facts.sizes) ** beta
    return scales


def by_own_maximum(facts: Facts, _: Floats, beta: float) -> Floats:
    """Wrong: weights (N_k P_k(i)) ** -beta over the maximum weight in the shard, as a single replay sends them."""
    scales: Floats = facts.least**beta
    return scales


def weights_of(sampled: Sampled, scales: Floats, least: Floats, beta: float) -> Floats:
    """Return the weights of a batch, normalized by the maximum over all transitions of all shards."""
    maximum = (scales * least**-beta).max()
    weights: Floats = scales[sampled.shards] * sampled.masses**-beta / maximum
    return weights


class Scheme(NamedTuple):
    """A sampling scheme; without `counts` it samples from the replay of all transitions."""

    title: str
    assumed_totals: Callable[[History], Floats]
    counts: Callable[[Floats, np.random.Generator], Integers] | None
    scales: Callable[[Facts, Floats, float], Floats]


SCHEMES = {
    "one": Scheme("one replay", outdated(0), None, by_probability),
    "fresh": Scheme("shards, current totals", outdated(0), multinomial, by_probability),
    "fresh, rounded": Scheme("shards, current totals, rounded counts", outdated(0), rounded, by_probability),
    **{
        f"age {a}": Scheme(f"totals {a} update{'s' * (a > 1)} old", outdated(a), multinomial, by_probability)
        for a in AGES
    },
    **{f"wrong {f:g}": Scheme(f"totals wrong by {f:g}", wrong_by(f), multinomial, by_probability) for f in FACTORS},
    **{
        f"wrong {f:g}, rounded": Scheme(f"totals wrong by {f:g}, rounded counts", wrong_by(f), rounded, by_probability)
        for f in FACTORS
    },
    "equal": Scheme("1/K from every shard", equal, multinomial, by_probability),
    "age 64, as in one": Scheme("totals 64 updates old, weights as in one", outdated(64), multinomial, as_in_one),
    "wrong 3, as in one": Scheme("totals wrong by 3, weights as in one", wrong_by(3.0), multinomial, as_in_one),
    "equal, as in one": Scheme("1/K from every shard, weights as in one", equal, multinomial, as_in_one),
    "age 64, as assumed": Scheme(
        "totals 64 updates old, also in the weights", outdated(64), multinomial, by_assumed_probability
    ),
    "wrong 3, as assumed": Scheme(
        "totals wrong by 3, also in the weights", wrong_by(3.0), multinomial, by_assumed_probability
    ),
    "own": Scheme("weights by each shard's own N and P", outdated(0), multinomial, by_own_probability),
    "own maximum": Scheme("weights over each shard's own maximum", outdated(0), multinomial, by_own_maximum),
}
UNBIASED = [name for name, scheme in SCHEMES.items() if scheme.scales in (by_probability, as_in_one)]  # for beta = 1


# The simulation.


class Sums(NamedTuple):
    """Sums over the transitions of each shard: of mass ** (1 - beta), and of that times the value."""

    masses: Floats
    values: Floats


def sums_of(shards: Shards, beta: float) -> Sums:
    powers = shards.masses ** (1.0 - beta)
    return Sums(np.add.reduceat(powers, shards.starts), np.add.reduceat(powers * shards.values, shards.starts))


def expectation(factors: Floats, sums: Sums) -> float:
    """Return expected weighted value over expected weight; `factors[k]` is q_k * c_k / S_k of shard k."""
    return float(factors @ sums.values / (factors @ sums.masses))


@dataclass
class Tally:
    """The estimates of one scheme with one beta, one element per update."""

    errors: list[float] = field(default_factory=list)  # of the estimate, relative to the expectation with one replay
    expected: list[float] = field(default_factory=list)  # exact expectation of the error
    scales: list[float] = field(default_factory=list)  # largest over smallest

    def add(self, sampled: Sampled, scales: Floats, factors: Floats, sums: Sums, beta: float) -> None:
        """Compare one batch with the expectation of one replay; weights are divided by their expectation."""
        target = expectation(np.ones_like(factors), sums)
        weighted = scales[sampled.shards] * sampled.masses**-beta * sampled.values
        estimate = weighted.mean() / (factors @ sums.masses)
        self.errors.append(float(estimate / target - 1.0))
        self.expected.append(expectation(factors, sums) / target - 1.0)
        self.scales.append(float(scales.max() / scales.min()))

    def summary(self) -> dict[str, float]:
        """Average over the updates; the deviation is that of the errors from their expectation in each update."""
        deviation = float(np.std(np.subtract(self.errors, self.expected), ddof=1))
        return {
            "expected bias": float(np.mean(self.expected)),
            "bias": float(np.mean(self.errors)),
            "standard error": deviation / len(self.errors) ** 0.5,
            "standard deviation": deviation,
            "scales": float(np.median(self.scales)),
        }


def simulate(updates: int, rng: np.random.Generator) -> dict[str, dict[str, dict[str, float]]]:
    """Return the summary of every scheme by name and beta. All schemes use the same priorities."""
    drift_rng, sample_rng = rng.spawn(2)
    shards = Shards(drift_rng)
    history: deque[Facts] = deque(maxlen=max(AGES) + 1)
    tallies = {name: {beta: Tally() for beta in BETAS} for name in SCHEMES}
    for update in range(max(AGES) + updates):
        shards.drift()
        history.appendleft(shards.facts)
        if update >= max(AGES):
            _compare(shards, history, tallies, sample_rng)
    return {name: {f"{beta:g}": tally.summary() for beta, tally in by.items()} for name, by in tallies.items()}


def _compare(
    shards: Shards, history: History, tallies: Mapping[str, Mapping[float, Tally]], rng: np.random.Generator
) -> None:
    """Sample one batch with every scheme, and add its estimates with every beta."""
    sums = {beta: sums_of(shards, beta) for beta in BETAS}
    for name, scheme in SCHEMES.items():
        assumed = scheme.assumed_totals(history)
        shares = assumed / assumed.sum()
        if scheme.counts:
            sampled = shards.sample(scheme.counts(shares, rng), rng)
        else:
            sampled = shards.sample_from_one(BATCH, rng)
        for beta in BETAS:
            scales = scheme.scales(history[0], shares, beta)
            tallies[name][beta].add(sampled, scales, shares * scales / history[0].totals, sums[beta], beta)


def show(summaries: Mapping[str, Mapping[str, Mapping[str, float]]]) -> None:
    """Print the summaries, in percent of the expectation with one replay."""
    keys = ("bias", "standard error", "standard deviation")
    rows = [
        [SCHEMES[name].title, *(f"{100 * summary[f'{beta:g}'][key]:.2f}" for beta in BETAS for key in keys)]
        for name, summary in summaries.items()
    ]
    columns = [f"{key}, beta = {beta:g}" for beta in BETAS for key in keys]
    print_table("Estimates relative to one replay, in percent", ["scheme", *columns], rows)


def main() -> int:
    options = parse_options(__doc__)
    summaries = simulate(UPDATES, np.random.default_rng(0))
    titles = {name: scheme.title for name, scheme in SCHEMES.items()}
    content = {"settings": SETTINGS, "titles": titles, "schemes": summaries}
    show(summaries)
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    if options.plots:
        plot(content, options.plots / "sharding.png")
    return 0


if __name__ == "__main__":
    sys.exit(main())
