"""Drawing one batch from K replays, simulated: which weights are right, and what old totals cost.

Nothing here is part of the system, which has one replay: docs/scaling.md tells what this is for. Each shard has the
project's own trees, and its priorities drift. What is estimated is the mean, over the transitions of all shards, of a
value that goes with the priority, as a gradient does. Nothing is timed; all that is random comes from a generator.

A way to draw is two numbers for each shard k: its share q_k of a batch, and the scale c_k of its weights. Transition i
of the shard is drawn by its mass, p_i ** alpha, over the shard's present total S_k, and weighs c_k * mass ** -beta. So
the shard comes into the expected sum of a batch by q_k * c_k / S_k. In one replay that is the same for all.
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
STEP, PULL = 0.1, 0.02  # how the level of a shard walks between two updates, and how it is pulled back
LEVELS = (-3.0, -1.0)  # mean log priority to which the first and the last shard are pulled back
SPREADS = (1.0, 2.0)  # standard deviation of log priorities in the first and in the last shard
NOISE = 0.5  # of a value around its priority, relative
AGES = (1, 4, 16, 64)  # updates since totals were heard of
FACTORS = (1.5, 2.0, 3.0, 5.0, 10.0)  # by which totals are wrong, in turns too great and too small

SETTINGS = {
    **{"sizes": list(SIZES), "alpha": ALPHA, "batch": BATCH, "updates": UPDATES, "renewed": RENEWED},
    **{"step": STEP, "pull": PULL, "levels": list(LEVELS), "spreads": list(SPREADS), "noise": NOISE},
}

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


class Facts(NamedTuple):
    """What the shards report with their draws, an element each."""

    sizes: Integers  # N_k
    totals: Floats  # S_k
    least: Floats  # the least mass


class Drawn(NamedTuple):
    """A batch, row by row."""

    slots: Integers  # in the one replay
    shards: Integers
    masses: Floats
    values: Floats


class Shards:
    """The trees of K replays and of one that holds everything, with drifting priorities, and all values."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.starts = np.cumsum([0, *SIZES[:-1]])  # slot of each shard's first transition in the one replay
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
        """Of every transition, shard by shard; a view."""
        return self._whole.priorities

    @property
    def masses(self) -> Floats:
        """Of every transition, p ** alpha, shard by shard; a view."""
        masses: Floats = self._whole.arrays.leaves[SAMPLING, : self.values.size]
        return masses

    @property
    def facts(self) -> Facts:
        """As they are now."""
        roots = [trees.arrays.nodes[:, trees.arrays.levels[-1]] for trees in self.trees]
        totals, least = (np.array([root[row] for root in roots]) for row in (SAMPLING, LEAST))
        return Facts(np.array(SIZES), totals, least**ALPHA)

    def drift(self) -> None:
        """What happens between two updates: levels walk, and some transitions of every shard get new priorities."""
        self._levels += PULL * (self._home - self._levels) + STEP * self._rng.standard_normal(len(SIZES))
        for shard, size in enumerate(SIZES):
            self._renew(shard, self._rng.integers(size, size=int(RENEWED * size)))

    def draw(self, counts: Integers, rng: np.random.Generator) -> Drawn:
        """So many from each shard, stratified within it."""
        slots = [trees.draw_to_sample(rng.random(n), 1.0)[0] for trees, n in zip(self.trees, counts, strict=True)]
        return self.rows(np.concatenate([start + own for start, own in zip(self.starts, slots, strict=True)]))

    def draw_from_one(self, count: int, rng: np.random.Generator) -> Drawn:
        """So many from the one replay that holds everything, stratified."""
        return self.rows(self._whole.draw_to_sample(rng.random(count), 1.0)[0])

    def rows(self, slots: Integers) -> Drawn:
        """These slots of the one replay as a batch."""
        return Drawn(slots, self._shard_of[slots], self.masses[slots], self.values[slots])

    def _renew(self, shard: int, slots: Integers) -> None:
        """New priorities and values; of a slot that is named twice the last priority counts."""
        priorities = self._rng.lognormal(self._levels[shard], self._spreads[shard], slots.size)
        self.trees[shard].set(slots, priorities)
        places = self.starts[shard] + slots
        self._whole.set(places, priorities)
        self.values[places] = self.priorities[places] * (1.0 + NOISE * self._rng.standard_normal(slots.size))


# How many rows of a batch come from each shard, by the shares q.


def multinomial(shares: Floats, rng: np.random.Generator) -> Integers:
    """Every row chooses its shard by itself."""
    counts: Integers = rng.multinomial(BATCH, shares)
    return counts


def rounded(shares: Floats, rng: np.random.Generator) -> Integers:
    """Systematic: the share itself, rounded up or down by chance so that its mean is right."""
    ends = np.cumsum(shares[:-1]) * BATCH
    counts: Integers = np.diff(np.floor(ends + rng.random()), prepend=0.0, append=BATCH).astype(np.int64)
    return counts


# What the learner takes for the totals. The first of what is past is the present.

Past = Sequence[Facts]


def aged(age: int) -> Callable[[Past], Floats]:
    """Those of so many updates ago."""
    return lambda past: past[age].totals


def wrong_by(factor: float) -> Callable[[Past], Floats]:
    """Those of now, in turns too great and too small by this factor."""
    return lambda past: past[0].totals * factor ** np.where(np.arange(len(SIZES)) % 2, -1.0, 1.0)


def equal(past: Past) -> Floats:
    """All the same, so that every shard gives 1 / K of the batch."""
    return np.ones_like(past[0].totals)


# The scales c of the weights, by what the shards report with their draws.


def by_probability(facts: Facts, shares: Floats, beta: float) -> Floats:
    """Weights are (N P(i)) ** -beta, of the P(i) that was really drawn by: q_k * mass / S_k."""
    scales: Floats = (facts.totals / (facts.sizes.sum() * shares)) ** beta
    return scales


def as_in_one(facts: Facts, shares: Floats, beta: float) -> Floats:
    """Weights are those of one replay, times how much more often it would have drawn from the shard."""
    total = facts.totals.sum()
    scales: Floats = (total / facts.sizes.sum()) ** beta * (facts.totals / total) / shares
    return scales


def by_belief(facts: Facts, _: Floats, __: float) -> Floats:
    """Wrong: weights are (N P(i)) ** -beta of what the learner takes for P(i), mass over the sum of its old totals."""
    return np.ones_like(facts.totals)


def by_own_probability(facts: Facts, _: Floats, beta: float) -> Floats:
    """Wrong: weights are (N_k P_k(i)) ** -beta, as if each shard were the whole replay."""
    scales: Floats = (facts.totals / facts.sizes) ** beta
    return scales


def by_own_greatest(facts: Facts, _: Floats, beta: float) -> Floats:
    """Wrong: the same over the greatest such weight of the shard, which is what a replay of today sends."""
    scales: Floats = facts.least**beta
    return scales


def weights_of(drawn: Drawn, scales: Floats, least: Floats, beta: float) -> Floats:
    """The weights of a batch over the greatest one that any transition of any shard could have."""
    greatest = (scales * least**-beta).max()
    weights: Floats = scales[drawn.shards] * drawn.masses**-beta / greatest
    return weights


class Way(NamedTuple):
    """One way to draw and to weigh; from the one replay where there are no counts."""

    title: str
    believes: Callable[[Past], Floats]
    counts: Callable[[Floats, np.random.Generator], Integers] | None
    scales: Callable[[Facts, Floats, float], Floats]


WAYS = {
    "one": Way("one replay", aged(0), None, by_probability),
    "fresh": Way("shards, totals of now", aged(0), multinomial, by_probability),
    "fresh, rounded": Way("shards, totals of now, counts rounded", aged(0), rounded, by_probability),
    **{f"age {a}": Way(f"totals of {a} update{'s' * (a > 1)} ago", aged(a), multinomial, by_probability) for a in AGES},
    **{f"wrong {f:g}": Way(f"totals wrong by {f:g}", wrong_by(f), multinomial, by_probability) for f in FACTORS},
    **{
        f"wrong {f:g}, rounded": Way(f"totals wrong by {f:g}, counts rounded", wrong_by(f), rounded, by_probability)
        for f in FACTORS
    },
    "equal": Way("1/K from every shard", equal, multinomial, by_probability),
    "age 64, as in one": Way("totals of 64 updates ago, weights as in one", aged(64), multinomial, as_in_one),
    "wrong 3, as in one": Way("totals wrong by 3, weights as in one", wrong_by(3.0), multinomial, as_in_one),
    "equal, as in one": Way("1/K from every shard, weights as in one", equal, multinomial, as_in_one),
    "age 64, as believed": Way("totals of 64 updates ago, also in the weights", aged(64), multinomial, by_belief),
    "wrong 3, as believed": Way("totals wrong by 3, also in the weights", wrong_by(3.0), multinomial, by_belief),
    "own": Way("weights by each shard's own N and P", aged(0), multinomial, by_own_probability),
    "own greatest": Way("weights over each shard's own greatest", aged(0), multinomial, by_own_greatest),
}
UNBIASED = [name for name, way in WAYS.items() if way.scales in (by_probability, as_in_one)]  # for beta = 1


# The simulation.


class Sums(NamedTuple):
    """Of each shard, over all its transitions: mass ** (1 - beta), and that times the value."""

    plain: Floats
    of_values: Floats


def sums_of(shards: Shards, beta: float) -> Sums:
    powers = shards.masses ** (1.0 - beta)
    return Sums(np.add.reduceat(powers, shards.starts), np.add.reduceat(powers * shards.values, shards.starts))


def expectation(factors: Floats, sums: Sums) -> float:
    """Expected weighted value over expected weight, where shard k comes in by `factors[k]`, q_k * c_k / S_k."""
    return float(factors @ sums.of_values / (factors @ sums.plain))


@dataclass
class Tally:
    """What one way with one beta gave, update by update."""

    errors: list[float] = field(default_factory=list)  # of the estimate, as a share of what one replay would expect
    expected: list[float] = field(default_factory=list)  # the same of its expectation, which is exact
    scales: list[float] = field(default_factory=list)  # greatest over least

    def add(self, drawn: Drawn, scales: Floats, factors: Floats, sums: Sums, beta: float) -> None:
        """Compare one batch with what one replay would expect; weights are in units of their own expectation."""
        wanted = expectation(np.ones_like(factors), sums)
        found = (scales[drawn.shards] * drawn.masses**-beta * drawn.values).mean() / (factors @ sums.plain)
        self.errors.append(float(found / wanted - 1.0))
        self.expected.append(expectation(factors, sums) / wanted - 1.0)
        self.scales.append(float(scales.max() / scales.min()))

    def summary(self) -> dict[str, float]:
        """Means over the updates. Given the priorities of each update, errors scatter about their expectation."""
        deviation = float(np.std(np.subtract(self.errors, self.expected), ddof=1))
        return {
            "expected bias": float(np.mean(self.expected)),
            "bias": float(np.mean(self.errors)),
            "standard error": deviation / len(self.errors) ** 0.5,
            "standard deviation": deviation,
            "scales": float(np.median(self.scales)),
        }


def simulate(updates: int, rng: np.random.Generator) -> dict[str, dict[str, dict[str, float]]]:
    """The summary of every way by its name, and in it by beta. All ways see the same priorities."""
    drift_rng, draw_rng = rng.spawn(2)
    shards = Shards(drift_rng)
    past: deque[Facts] = deque(maxlen=max(AGES) + 1)
    tallies = {name: {beta: Tally() for beta in BETAS} for name in WAYS}
    for update in range(max(AGES) + updates):
        shards.drift()
        past.appendleft(shards.facts)
        if update >= max(AGES):
            _compare(shards, past, tallies, draw_rng)
    return {name: {f"{beta:g}": tally.summary() for beta, tally in by.items()} for name, by in tallies.items()}


def _compare(
    shards: Shards, past: Past, tallies: Mapping[str, Mapping[float, Tally]], rng: np.random.Generator
) -> None:
    """One batch of every way, and what it would estimate with every beta."""
    sums = {beta: sums_of(shards, beta) for beta in BETAS}
    for name, way in WAYS.items():
        believed = way.believes(past)
        shares = believed / believed.sum()
        drawn = shards.draw(way.counts(shares, rng), rng) if way.counts else shards.draw_from_one(BATCH, rng)
        for beta in BETAS:
            scales = way.scales(past[0], shares, beta)
            tallies[name][beta].add(drawn, scales, shares * scales / past[0].totals, sums[beta], beta)


def show(ways: Mapping[str, Mapping[str, Mapping[str, float]]]) -> None:
    """To the terminal, in percent of what one replay would expect."""
    keys = ("bias", "standard error", "standard deviation")
    rows = [
        [WAYS[name].title, *(f"{100 * found[f'{beta:g}'][key]:.2f}" for beta in BETAS for key in keys)]
        for name, found in ways.items()
    ]
    columns = [f"{key}, beta = {beta:g}" for beta in BETAS for key in keys]
    print_table("Estimates beside those of one replay, in percent", ["way", *columns], rows)


def main() -> int:
    options = parse_options(__doc__)
    ways = simulate(UPDATES, np.random.default_rng(0))
    found = {"settings": SETTINGS, "titles": {name: way.title for name, way in WAYS.items()}, "ways": ways}
    show(ways)
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    if options.plots:
        plot(found, options.plots / "sharding.png")
    return 0


if __name__ == "__main__":
    sys.exit(main())
