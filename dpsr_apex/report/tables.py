"""The tables of the page, formatted for people to read. The CSV files have the same data in full precision."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from dpsr_apex.formatting import DASH, counted, duration, interval, number, percent, probability
from dpsr_apex.report.comparison import Comparison
from dpsr_apex.report.groups import Environment, Group, differing_keys, show_setting
from dpsr_apex.report.paper import COLUMNS, PAPER_SCORES, PARAMETER_SETS
from dpsr_apex.report.records import RunRecord
from dpsr_apex.report.reference import REFERENCES, game_of, human_normalised

_COUNTERS = (
    *("rounds_opened", "rounds_closed", "rounds_expired", "recycled", "recycled_gain", "answers_late"),
    *("candidates_drawn", "candidates_applied", "candidates_stale", "candidates_lost"),
    *("chains", "chain_steps", "chain_steps_stored", "chain_reward", "sampled", "sampled_recycled"),
    "environment_steps",
)

_MADE_WITH = ("software", "machine", "runs")


@dataclass(frozen=True)
class Table:
    """A table whose first column contains the names of its rows."""

    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


class Throughput(NamedTuple):
    """The speed of a group's runs; None if it was not logged."""

    seconds: float | None  # wall-clock time, mean over runs
    steps: float | None  # per second: median over the rows with updates, mean over runs
    updates: float | None  # per second: median over the rows with updates, mean over runs
    steps_per_update: float | None  # achieved, mean over runs
    policy_age: float | None  # updates: median over the rows with updates, mean over runs; None in a single process
    policy_age_p95: float | None  # its 95th percentile: as above


def final_table(environment: Environment, comparison: Comparison) -> Table:
    """Make the table of the final evaluations of finished runs."""
    reference = REFERENCES.get(game_of(environment.env_name))
    columns = ["group", "IQM", "95% interval", "seeds", "mean", "median", "min", "max"]
    rows = []
    for group in environment.groups:
        scores = group.final_scores
        if not len(scores):
            continue
        estimate = comparison.means[group.label]
        statistics = [scores.mean(), np.median(scores), scores.min(), scores.max()]
        normalised = [number(float(human_normalised(scores, reference).mean()))] if reference else []
        iqm = [number(estimate.value), interval(estimate.low, estimate.high), str(len(scores))]
        rows.append([group.label, *iqm, *map(number, statistics), *normalised])
    caption = "Final evaluation of each finished seed (mean score of its episodes)"
    return Table(caption, [*columns, "human-normalised mean"] if reference else columns, rows)


def paper_table(environment: Environment) -> Table | None:
    """Make the table of our mean scores and the paper's scores of this game; None if it is not in the paper."""
    scores = PAPER_SCORES.get(game_of(environment.env_name))
    if not scores:
        return None
    ours = [
        [
            group.label,
            "here",
            number(float(group.final_scores.mean())),
            str(len(group.final_scores)),
            _parameters(group),
        ]
        for group in environment.groups
        if len(group.final_scores)
    ]
    theirs = [
        [name, "paper", f"{score:,.1f}", DASH, _listed(PARAMETER_SETS.get(name, ()))]
        for name, score in zip(COLUMNS, scores, strict=True)
    ]
    columns = ["group", "source", "score", "seeds", "γ, C_c, F_r, C_r"]
    return Table("Compared with the paper's Tables 1 and 4", columns, ours + theirs)


def _parameters(group: Group) -> str:
    replay = group.runs[0].config.replay
    common = [replay.replacing_exponent, replay.replace_candidates] if replay.parts.replaces_by_priority else []
    return _listed([*common, *([replay.recycle_period, replay.recycle_candidates] if replay.recycles else [])])


def _listed(parameters: Sequence[object]) -> str:
    return ", ".join(map(show_setting, parameters)) or DASH


def improvement_table(comparison: Comparison) -> Table:
    """Make the table of the probability of improvement of every pair."""
    rows = [
        [f"{x} > {y}", probability(estimate.value), interval(estimate.low, estimate.high, probability), str(seeds)]
        for x, y, estimate, seeds in comparison.improvements
    ]
    return Table("Probability of improvement P", ["pair", "P", "95% interval", "seeds (min)"], rows)


def throughput_of(group: Group) -> Throughput:
    """Average the speed of a group's runs."""
    runs = group.runs
    return Throughput(
        _mean(run.last("elapsed_seconds") for run in runs),
        _mean(_median_during_updates(run, "steps_per_second") for run in runs),
        _mean(_median_during_updates(run, "updates_per_second") for run in runs),
        _mean(run.last("steps_per_update") for run in runs),
        _mean(_median_during_updates(run, "policy_age_mean") for run in runs),
        _mean(_median_during_updates(run, "policy_age_p95") for run in runs),
    )


def throughput_table(environment: Environment) -> Table:
    """Make the table of wall-clock time and speed."""
    rows = []
    for group in environment.groups:
        speed = throughput_of(group)
        wall_clock = duration(speed.seconds)
        rates = map(
            number, (speed.steps, speed.updates, speed.steps_per_update, speed.policy_age, speed.policy_age_p95)
        )
        rows.append([group.label, str(len(group.runs)), wall_clock, *rates])
    columns = ["group", "runs", "wall clock per run", "steps/s", "updates/s", "steps per update", "policy age", "p95"]
    caption = "Means over the runs of a group, once updates have started; policy age and its 95th percentile in updates"
    return Table(caption, columns, rows)


def recycling_totals(group: Group) -> dict[str, float]:
    """Sum the recycling counters over a group's runs; counters that were not logged are missing."""
    lasts = {name: [run.last(name) for run in group.runs] for name in _COUNTERS}
    return {name: sum(filter(None, values)) for name, values in lasts.items() if any(v is not None for v in values)}


def recycling_table(environment: Environment) -> Table | None:
    """Make the table of recycling rounds and their candidates; None if no group recycles."""
    rows = []
    for group in environment.groups:
        totals = recycling_totals(group)
        if group.recycles and "rounds_opened" in totals:
            rows.append([group.label, *_recycling_row(totals)])
    columns = ["group", "rounds", "expired", "candidates", "answered", "stale", "lost", "late", "recycled", "mean gain"]
    return Table("Recycling rounds, all seeds together", columns, rows) if rows else None


def chains_table(environment: Environment) -> Table | None:
    """Make the table of chains from re-entered states; None if no group takes more than one step from them."""
    rows = []
    for group in environment.groups:
        totals = recycling_totals(group)
        if totals.get("chain_steps_stored"):
            rows.append([group.label, *_chains_row(totals), *_depths(group)])
    columns = [
        "group",
        "chains",
        "steps per chain",
        "reward per chain",
        "of steps",
        "of batches",
        "mean depth",
        "deepest",
    ]
    return Table("Chains from re-entered states, all seeds together", columns, rows) if rows else None


def differences_table(environments: Sequence[Environment]) -> Table | None:
    """Make the table of the settings in which groups differ, one row per group; None if they differ in none."""
    groups = [group for environment in environments for group in environment.groups]
    keys = differing_keys(groups)
    if not keys:
        return None
    several = len(environments) > 1
    names = [f"{group.environment}: {group.label}" if several else group.label for group in groups]
    rows = [[name, *(group.settings[key] for key in keys)] for name, group in zip(names, groups, strict=True)]
    return Table("Settings that differ, except the seed and what is recorded", ["group", *keys], rows)


def provenance_table(records: Iterable[RunRecord]) -> Table | None:
    """Make the table of the versions and machines that runs were made with; None if no run has recorded them."""
    runs: dict[tuple[str, str], int] = {}
    for record in records:
        for made_with in {(part.software, part.machine) for part in record.parts} or {("not recorded", DASH)}:
            runs[made_with] = runs.get(made_with, 0) + 1
    if all(software == "not recorded" for software, _ in runs):
        return None
    rows = [[software, machine, str(count)] for (software, machine), count in sorted(runs.items())]
    return Table("Software and machines of the runs; a run that was continued may have several", _MADE_WITH, rows)


def runs_of(environments: Iterable[Environment]) -> list[tuple[Group, RunRecord]]:
    """Return every run with its group; within a group, copies last."""
    groups = [group for environment in environments for group in environment.groups]
    return [(group, run) for group in groups for run in (*group.runs, *group.copies)]


def describe_run(group: Group, run: RunRecord) -> list[str]:
    """Return the cells of a run: environment, group, seed, state, note and last evaluation."""
    notes = [run.state.note]
    if run.torn:
        notes.append(f"{counted(run.torn, 'incomplete line')} skipped")
    if run in group.copies:
        notes.append("identical to another run with this seed: not counted")
    last = f"{number(run.scores[-1].mean)} at t = {run.scores[-1].t:,}" if run.scores else DASH
    return [group.environment, group.label, str(run.config.run.seed), run.state.ending, "; ".join(notes), last]


def _recycling_row(totals: dict[str, float]) -> list[str]:
    sampled = totals.get("candidates_drawn", 0.0)
    ended = [totals.get(f"candidates_{outcome}", 0.0) for outcome in ("applied", "stale", "lost")]
    shares = [percent(count / sampled, 1) if sampled else DASH for count in ended]
    recycled, gain = totals.get("recycled", 0.0), totals.get("recycled_gain")
    mean_gain = DASH if gain is None or not recycled else f"{gain / recycled:+.3g}"
    counts = [totals["rounds_opened"], totals.get("rounds_expired"), sampled]
    return [*map(number, counts), *shares, number(totals.get("answers_late")), number(recycled), mean_gain]


def _chains_row(totals: dict[str, float]) -> list[str]:
    chains, steps = totals["chains"], totals["chain_steps"]
    means = [number(steps / chains), number(totals["chain_reward"] / chains)]
    shares = [(steps, totals.get("environment_steps")), (totals["sampled_recycled"], totals.get("sampled"))]
    return [number(chains), *means, *(percent(part / whole, 1) if whole else DASH for part, whole in shares)]


def _depths(group: Group) -> list[str]:
    deepest = max((run.last("depth_max") or 0.0 for run in group.runs), default=0.0)
    return [number(_mean(run.last("depth_mean") for run in group.runs)), number(deepest)]


def _median_during_updates(run: RunRecord, name: str) -> float | None:
    values = [row[name] for row in run.rows if name in row and row.get("updates_per_second", 0) > 0]
    return float(np.median(values)) if values else None


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None
