"""The tables of the page: words and numbers as people read them. The same in full precision is in the CSV files."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from dpsr_apex.report.comparison import Comparison
from dpsr_apex.report.groups import Environment, Group, differing_keys, show_setting
from dpsr_apex.report.numbers import MISSING, counted, duration, interval, plain, probability, share
from dpsr_apex.report.paper import COLUMNS, PAPER_SCORES, PARAMETER_SETS
from dpsr_apex.report.records import RunRecord
from dpsr_apex.report.reference import REFERENCES, game_of, human_normalised

_COUNTED = (
    *("rounds_opened", "rounds_closed", "rounds_expired", "recycled", "recycled_gain", "answers_late"),
    *("candidates_drawn", "candidates_applied", "candidates_stale", "candidates_lost"),
)


@dataclass(frozen=True)
class Table:
    """A table whose first column names its rows."""

    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


class Throughput(NamedTuple):
    """How fast the runs of a group were; None where no row tells."""

    seconds: float | None  # of wall clock, mean over runs
    steps: float | None  # per second, median over the rows with updates, mean over runs
    updates: float | None  # likewise
    steps_per_update: float | None  # achieved, mean over runs


def final_table(environment: Environment, comparison: Comparison) -> Table:
    """The last evaluations of finished runs."""
    reference = REFERENCES.get(game_of(environment.env_name))
    columns = ["group", "IQM", "95% interval", "seeds", "mean", "median", "least", "greatest"]
    rows = []
    for group in environment.groups:
        scores = group.final_scores
        if not len(scores):
            continue
        estimate = comparison.means[group.label]
        figures = [scores.mean(), np.median(scores), scores.min(), scores.max()]
        normalised = [plain(float(human_normalised(scores, reference).mean()))] if reference else []
        middle = [plain(estimate.value), interval(estimate), str(len(scores))]
        rows.append([group.label, *middle, *map(plain, figures), *normalised])
    caption = "Final evaluation of each finished seed (the mean score of its games)"
    return Table(caption, [*columns, "human-normalised mean"] if reference else columns, rows)


def paper_table(environment: Environment) -> Table | None:
    """Our means beside the scores that the paper prints for this game; None if it has none."""
    scores = PAPER_SCORES.get(game_of(environment.env_name))
    if not scores:
        return None
    ours = [
        [group.label, "here", plain(float(group.final_scores.mean())), str(len(group.final_scores)), _parameters(group)]
        for group in environment.groups
        if len(group.final_scores)
    ]
    theirs = [
        [name, "paper", f"{score:,.1f}", MISSING, _listed(PARAMETER_SETS.get(name, ()))]
        for name, score in zip(COLUMNS, scores, strict=True)
    ]
    columns = ["group", "from", "score", "seeds", "γ, C_c, F_r, C_r"]
    return Table("Beside the paper's Tables 1 and 4", columns, ours + theirs)


def _parameters(group: Group) -> str:
    replay = group.runs[0].config.replay
    common = [replay.replacing_exponent, replay.replace_candidates] if replay.replaces_by_priority else []
    return _listed([*common, *([replay.recycle_period, replay.recycle_candidates] if replay.recycles else [])])


def _listed(parameters: Sequence[object]) -> str:
    return ", ".join(map(show_setting, parameters)) or MISSING


def improvement_table(comparison: Comparison) -> Table:
    """The probability of improvement of every pair."""
    rows = [
        [f"{x} > {y}", probability(estimate.value), interval(estimate, probability), str(seeds)]
        for x, y, estimate, seeds in comparison.improvements
    ]
    return Table("Probability of improvement P", ["pair", "P", "95% interval", "least seeds"], rows)


def throughput_of(group: Group) -> Throughput:
    """The speed of a group's runs."""
    runs = group.runs
    return Throughput(
        _mean(run.last("elapsed_seconds") for run in runs),
        _mean(_median_while_learning(run, "steps_per_second") for run in runs),
        _mean(_median_while_learning(run, "updates_per_second") for run in runs),
        _mean(run.last("steps_per_update") for run in runs),
    )


def throughput_table(environment: Environment) -> Table:
    """Wall clock and speed."""
    rows = []
    for group in environment.groups:
        speed = throughput_of(group)
        wall_clock = MISSING if speed.seconds is None else duration(speed.seconds)
        figures = [plain(speed.steps), plain(speed.updates), plain(speed.steps_per_update)]
        rows.append([group.label, str(len(group.runs)), wall_clock, *figures])
    columns = ["group", "runs", "wall clock a run", "steps/s", "updates/s", "steps per update"]
    return Table("Means over the runs of a group, while it learns", columns, rows)


def recycling_totals(group: Group) -> dict[str, float]:
    """Sums over a group's runs of everything that is counted about recycling; what no row tells is missing."""
    lasts = {name: [run.last(name) for run in group.runs] for name in _COUNTED}
    return {name: sum(filter(None, values)) for name, values in lasts.items() if any(v is not None for v in values)}


def recycling_table(environment: Environment) -> Table | None:
    """What recycling rounds brought; None where nothing recycles."""
    rows = []
    for group in environment.groups:
        totals = recycling_totals(group)
        if group.recycles and "rounds_opened" in totals:
            rows.append([group.label, *_recycling_row(totals)])
    columns = ["group", "rounds", "expired", "candidates", "answered", "stale", "lost", "late", "recycled", "mean gain"]
    return Table("Yield of the rounds, all seeds together", columns, rows) if rows else None


def differences_table(environments: Sequence[Environment]) -> Table | None:
    """A row for each group with the settings in which they differ; None if they do in none."""
    groups = [group for environment in environments for group in environment.groups]
    keys = differing_keys(groups)
    if not keys:
        return None
    several = len(environments) > 1
    names = [f"{group.environment}: {group.label}" if several else group.label for group in groups]
    rows = [[name, *(group.settings[key] for key in keys)] for name, group in zip(names, groups, strict=True)]
    return Table("Settings that differ, the seed left out", ["group", *keys], rows)


def runs_of(environments: Iterable[Environment]) -> list[tuple[Group, RunRecord]]:
    """Every run with its group, copies last."""
    groups = [group for environment in environments for group in environment.groups]
    return [(group, run) for group in groups for run in (*group.runs, *group.copies)]


def describe_run(group: Group, run: RunRecord) -> list[str]:
    """Group, seed, state and last evaluation of a run."""
    notes = [run.state.note]
    if run.torn:
        notes.append(f"{counted(run.torn, 'torn line')} left out")
    if run in group.copies:
        notes.append("the same as another run of this seed, step by step: not counted again")
    last = f"{plain(run.scores[-1].mean)} at t = {run.scores[-1].t:,}" if run.scores else MISSING
    return [group.environment, group.label, str(run.config.run.seed), run.state.ending, "; ".join(notes), last]


def _recycling_row(totals: dict[str, float]) -> list[str]:
    drawn = totals.get("candidates_drawn", 0.0)
    shares = [share(totals.get(f"candidates_{fate}", 0.0), drawn) for fate in ("applied", "stale", "lost")]
    recycled, gain = totals.get("recycled", 0.0), totals.get("recycled_gain")
    mean_gain = MISSING if gain is None or not recycled else f"{gain / recycled:+.3g}"
    counts = [totals["rounds_opened"], totals.get("rounds_expired"), drawn]
    return [*map(plain, counts), *shares, plain(totals.get("answers_late")), plain(recycled), mean_gain]


def _median_while_learning(run: RunRecord, name: str) -> float | None:
    values = [row[name] for row in run.rows if name in row and row.get("updates_per_second", 0) > 0]
    return float(np.median(values)) if values else None


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None
