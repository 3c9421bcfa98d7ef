"""What the final scores say about the groups, and no more than they say.

Only finished runs count. Within one environment scores are compared as they are; across environments an interquartile
mean needs a common scale, and the only one used is the human-normalised score. Where a game has no published reference
it is left out of that mean, and named.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import NamedTuple

import numpy as np

from dpsr_apex.report.groups import Environment
from dpsr_apex.report.numbers import counted, interval, plain, probability
from dpsr_apex.report.reference import REFERENCES, game_of, human_normalised
from dpsr_apex.report.statistics import Estimate, Scores, estimate_improvement, estimate_iqm

ENOUGH_SEEDS = 5  # with fewer, bootstrap intervals are too narrow to rank anything by
_FEW_PAIRS = 3  # up to so many are spoken of one by one
EVEN = 0.5  # the probability of improvement of a group over one that is as good


class Improvement(NamedTuple):
    """How likely a run of `x` scores higher than a run of `y`."""

    x: str
    y: str
    estimate: Estimate
    seeds: int  # the least number in any group and environment

    @property
    def better(self) -> str | None:
        """The group that these seeds show to score higher; None if they do not tell the two apart."""
        if self.seeds < ENOUGH_SEEDS or self.estimate.low <= EVEN <= self.estimate.high:
            return None
        return self.x if self.estimate.low > EVEN else self.y


@dataclass(frozen=True)
class Comparison:
    """The groups of one environment, or of all."""

    scope: str
    unit: str  # of the means; "" where there are none
    means: Mapping[str, Estimate]  # interquartile means, by label
    seeds: Mapping[str, int]  # finished runs
    improvements: Sequence[Improvement]
    notes: Sequence[str] = ()
    is_common: bool = False  # of several environments


def compare_within(environment: Environment, rng: np.random.Generator) -> Comparison | None:
    """The groups of one environment by their scores as they are; None if no run has finished."""
    scores = {group.label: [group.final_scores] for group in environment.groups if len(group.final_scores)}
    if not scores:
        return None
    means = {label: estimate_iqm(strata, rng) for label, strata in scores.items()}
    return Comparison(environment.name, "points", means, _counts(scores), _improvements(scores, rng))


def compare_across(environments: Sequence[Environment], rng: np.random.Generator) -> Comparison | None:
    """The groups that most environments have in common, by label; None where nothing is in two of them."""
    labels = {environment.name: _finished_labels(environment) for environment in environments}
    ranked = Counter(filter(None, labels.values())).most_common(1)
    common = ranked[0][0] if ranked else frozenset()
    together = [environment for environment in environments if common <= labels[environment.name]]
    if not common or len(together) < 2:
        return None
    by_label = [{group.label: group.final_scores for group in environment.groups} for environment in together]
    scores: dict[str, Scores] = {label: [own[label] for own in by_label] for label in by_label[0] if label in common}
    others = [environment.name for environment in environments if environment not in together]
    notes = [f"Other groups were run in {', '.join(others)}: not part of this."] if others else []
    normalised, more = _normalised(together, scores)
    means = {label: estimate_iqm(strata, rng) for label, strata in normalised.items()}
    scope, unit = f"{len(together)} environments together", "human-normalised" if means else ""
    counts = _counts(normalised or scores)
    improvements = _improvements(scores, rng)
    return Comparison(scope, unit, means, counts, improvements, [*notes, *more], is_common=True)


def _finished_labels(environment: Environment) -> frozenset[str]:
    return frozenset(group.label for group in environment.groups if len(group.final_scores))


def _normalised(
    environments: Sequence[Environment], scores: Mapping[str, Scores]
) -> tuple[dict[str, Scores], list[str]]:
    """Human-normalised scores of the environments that have a reference; empty if fewer than two have one."""
    references = [REFERENCES.get(game_of(environment.env_name)) for environment in environments]
    without = [environment.name for environment, known in zip(environments, references, strict=True) if not known]
    notes = [f"No published human score: {', '.join(without)}."] if without else []
    if len(environments) - len(without) < 2:
        words = "Without a common scale there is no mean over environments; the probability of improvement needs none."
        return {}, [*notes, words]
    normalised: dict[str, Scores] = {
        label: [human_normalised(stratum, known) for stratum, known in zip(strata, references, strict=True) if known]
        for label, strata in scores.items()
    }
    if without:
        notes = [f"{notes[0]} Left out of the interquartile means, part of the probabilities of improvement."]
    return normalised, notes


def _counts(scores: Mapping[str, Scores]) -> dict[str, int]:
    return {label: sum(map(len, strata)) for label, strata in scores.items()}


def _improvements(scores: Mapping[str, Scores], rng: np.random.Generator) -> list[Improvement]:
    return [
        Improvement(x, y, estimate_improvement(scores[x], scores[y], rng), _least(scores[x], scores[y]))
        for x, y in combinations(scores, 2)
    ]


def _least(*groups: Scores) -> int:
    return min(len(stratum) for strata in groups for stratum in strata)


def figures(comparison: Comparison) -> list[str]:
    """The interquartile mean of each group in words."""
    return [_figure(label, estimate, comparison.seeds[label]) for label, estimate in comparison.means.items()]


def conclusions(comparison: Comparison) -> list[str]:
    """In plain words what the seeds show, and what they do not."""
    pairs = comparison.improvements
    enough = [pair for pair in pairs if pair.seeds >= ENOUGH_SEEDS]
    shown = [pair for pair in enough if pair.better]
    sentences = [_shown(pair) for pair in shown] if len(pairs) <= _FEW_PAIRS else _shown_by_group(shown)
    if len(enough) < len(pairs):
        which = "Nothing is" if not enough else f"{counted(len(pairs) - len(enough), 'pair')} of groups not"
        sentences.append(f"{which} ranked with fewer than {ENOUGH_SEEDS} finished seeds in each group.")
    if len(enough) > len(shown):
        apart = "; ".join(f"{pair.x} and {pair.y}" for pair in enough if not pair.better)
        sentences.append(f"These seeds do not tell apart: {apart}.")
    if shown and len(pairs) > _FEW_PAIRS:
        sentences.append(f"Of {len(pairs)} comparisons at 95%, about one in twenty would come out by chance alone.")
    return sentences


def _figure(label: str, estimate: Estimate, seeds: int) -> str:
    spread = f"95% interval {interval(estimate)}" if estimate.has_interval else "too few for an interval"
    return f"{label}: {plain(estimate.value)} (IQM of {counted(seeds, 'run')}, {spread})"


def _shown(pair: Improvement) -> str:
    worse = pair.y if pair.better == pair.x else pair.x
    value, low, high = pair.estimate
    estimate = pair.estimate if pair.better == pair.x else Estimate(1 - value, 1 - high, 1 - low)
    how_sure = f"probability of improvement {estimate.value:.2f}, 95% interval {interval(estimate, probability)}"
    return f"{pair.better} scored higher than {worse} ({how_sure})."


def _shown_by_group(shown: Sequence[Improvement]) -> list[str]:
    beaten: dict[str, list[str]] = {}
    for pair in shown:
        if pair.better:
            beaten.setdefault(pair.better, []).append(pair.y if pair.better == pair.x else pair.x)
    return [f"{better} scored higher than {', '.join(worse)}." for better, worse in beaten.items()]
