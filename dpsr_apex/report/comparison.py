"""Compare groups by the final scores of their finished runs, with confidence intervals.

Within one environment raw scores are compared. Across environments the interquartile mean uses human-normalised scores;
games without a published human score are excluded from it and listed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import NamedTuple

import numpy as np

from dpsr_apex.formatting import counted, interval, number, probability
from dpsr_apex.report.groups import Environment
from dpsr_apex.report.reference import REFERENCES, game_of, human_normalised
from dpsr_apex.report.statistics import Estimate, Scores, estimate_improvement, estimate_iqm

ENOUGH_SEEDS = 5  # with fewer, bootstrap intervals are too narrow to rank groups
_FEW_PAIRS = 3  # up to this number, each pair gets its own sentence
EVEN = 0.5  # the probability of improvement between equally good groups


class Improvement(NamedTuple):
    """The probability that a run of group `x` scores higher than a run of group `y`."""

    x: str
    y: str
    estimate: Estimate
    seeds: int  # the smallest number in any group and environment

    @property
    def better(self) -> str | None:
        """The group that scores significantly higher; None if the difference is not significant."""
        if self.seeds < ENOUGH_SEEDS or self.estimate.low <= EVEN <= self.estimate.high:
            return None
        return self.x if self.estimate.low > EVEN else self.y


@dataclass(frozen=True)
class Comparison:
    """The comparison of the groups of one environment, or of all environments together."""

    scope: str
    unit: str  # of the means; "" if there are none
    means: Mapping[str, Estimate]  # interquartile means, by label
    seeds: Mapping[str, int]  # finished runs
    improvements: Sequence[Improvement]
    notes: Sequence[str] = ()
    is_common: bool = False  # whether it covers several environments


def compare_within(environment: Environment, rng: np.random.Generator) -> Comparison | None:
    """Compare the groups of one environment by raw scores; None if no run has finished."""
    scores = {group.label: [group.final_scores] for group in environment.groups if len(group.final_scores)}
    if not scores:
        return None
    means = {label: estimate_iqm(strata, rng) for label, strata in scores.items()}
    return Comparison(environment.name, "points", means, _counts(scores), _improvements(scores, rng))


def compare_across(environments: Sequence[Environment], rng: np.random.Generator) -> Comparison | None:
    """Compare the groups that most environments have in common, by label.

    None without at least two environments, or if there is one group and no common scale.
    """
    labels = {environment.name: _finished_labels(environment) for environment in environments}
    ranked = Counter(filter(None, labels.values())).most_common(1)
    common = ranked[0][0] if ranked else frozenset()
    together = [environment for environment in environments if common <= labels[environment.name]]
    if not common or len(together) < 2:
        return None
    by_label = [{group.label: group.final_scores for group in environment.groups} for environment in together]
    scores: dict[str, Scores] = {label: [each[label] for each in by_label] for label in by_label[0] if label in common}
    others = [environment.name for environment in environments if environment not in together]
    notes = [f"Excluded because they have other groups: {', '.join(others)}."] if others else []
    normalised, more_notes = _normalised(together, scores)
    means = {label: estimate_iqm(strata, rng) for label, strata in normalised.items()}
    scope, unit = f"{len(together)} environments together", "human-normalised" if means else ""
    counts = _counts(normalised or scores)
    improvements = _improvements(scores, rng)
    if not means and not improvements:
        return None
    return Comparison(scope, unit, means, counts, improvements, [*notes, *more_notes], is_common=True)


def _finished_labels(environment: Environment) -> frozenset[str]:
    return frozenset(group.label for group in environment.groups if len(group.final_scores))


def _normalised(
    environments: Sequence[Environment], scores: Mapping[str, Scores]
) -> tuple[dict[str, Scores], list[str]]:
    """Return human-normalised scores of the environments that have a reference; empty if fewer than two have one."""
    references = [REFERENCES.get(game_of(environment.env_name)) for environment in environments]
    without = [env.name for env, reference in zip(environments, references, strict=True) if not reference]
    notes = [f"No published human score: {', '.join(without)}."] if without else []
    if len(environments) - len(without) < 2:
        note = "Without a common scale there is no mean over environments; the probability of improvement needs none."
        return {}, [*notes, note]
    normalised: dict[str, Scores] = {
        label: [human_normalised(stratum, known) for stratum, known in zip(strata, references, strict=True) if known]
        for label, strata in scores.items()
    }
    if without:
        notes = [f"{notes[0]} Excluded from the interquartile means, included in the probabilities of improvement."]
    return normalised, notes


def _counts(scores: Mapping[str, Scores]) -> dict[str, int]:
    return {label: sum(map(len, strata)) for label, strata in scores.items()}


def _improvements(scores: Mapping[str, Scores], rng: np.random.Generator) -> list[Improvement]:
    return [
        Improvement(x, y, estimate_improvement(scores[x], scores[y], rng), _fewest_seeds(scores[x], scores[y]))
        for x, y in combinations(scores, 2)
    ]


def _fewest_seeds(*groups: Scores) -> int:
    return min(len(stratum) for strata in groups for stratum in strata)


def figures(comparison: Comparison) -> list[str]:
    """Describe the interquartile mean of each group, one sentence per group."""
    return [_figure(label, estimate, comparison.seeds[label]) for label, estimate in comparison.means.items()]


def conclusions(comparison: Comparison) -> list[str]:
    """State which differences between groups are significant, which are not, and which cannot be judged."""
    pairs = comparison.improvements
    enough = [pair for pair in pairs if pair.seeds >= ENOUGH_SEEDS]
    significant = [pair for pair in enough if pair.better]
    few = len(pairs) <= _FEW_PAIRS
    sentences = [_difference(pair) for pair in significant] if few else _differences_by_group(significant)
    if len(enough) < len(pairs):
        skipped = "No pair" if not enough else counted(len(pairs) - len(enough), "pair")
        verb = "is ranked" if not enough else "not ranked"
        sentences.append(f"{skipped} {verb}: ranking needs {ENOUGH_SEEDS} finished seeds in each group.")
    if len(enough) > len(significant):
        undecided = "; ".join(f"{pair.x} vs {pair.y}" for pair in enough if not pair.better)
        sentences.append(f"No significant difference: {undecided}.")
    if significant and not few:
        sentences.append(f"Of {len(pairs)} comparisons at 95%, about one in twenty is significant by chance alone.")
    return sentences


def _figure(label: str, estimate: Estimate, seeds: int) -> str:
    precision = (
        f"95% interval {interval(estimate.low, estimate.high)}" if estimate.has_interval else "too few for an interval"
    )
    return f"{label}: {number(estimate.value)} (IQM of {counted(seeds, 'run')}, {precision})"


def _difference(pair: Improvement) -> str:
    worse = pair.y if pair.better == pair.x else pair.x
    value, low, high = pair.estimate
    estimate = pair.estimate if pair.better == pair.x else Estimate(1 - value, 1 - high, 1 - low)
    range_ = interval(estimate.low, estimate.high, probability)
    statistic = f"probability of improvement {probability(estimate.value)}, 95% interval {range_}"
    return f"{pair.better} scored higher than {worse} ({statistic})."


def _differences_by_group(significant: Sequence[Improvement]) -> list[str]:
    worse_groups: dict[str, list[str]] = {}
    for pair in significant:
        if pair.better:
            worse_groups.setdefault(pair.better, []).append(pair.y if pair.better == pair.x else pair.x)
    return [f"{better} scored higher than {', '.join(worse)}." for better, worse in worse_groups.items()]
