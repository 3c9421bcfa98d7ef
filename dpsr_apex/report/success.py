"""The share of runs that reached the success score of their experiment, by the difficulty of the task.

An experiment file may define a score as `success`. A run found the solution if an episode of its training, or a chain
of recycled steps, reached that score, and kept it if its final evaluation does.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib.axes import Axes

from dpsr_apex.formatting import interval, probability
from dpsr_apex.report.chapters import Chapter, Section
from dpsr_apex.report.groups import Environment, Group
from dpsr_apex.report.pictures import Picture, drawing, legend_below, tidy
from dpsr_apex.report.records import RunRecord
from dpsr_apex.report.statistics import Estimate, share_of
from dpsr_apex.report.style import styles_of
from dpsr_apex.report.tables import Table

_OFFSET = 0.012  # of the axis, between methods, so that their intervals do not overlap


class Outcome(NamedTuple):
    """The shares of successful runs among the finished runs of one group."""

    group: Group
    difficulty: float | None  # value of the one numeric argument in which the environments differ
    runs: int
    found: Estimate  # share of runs
    kept: Estimate


def success_of(paths: Sequence[Path]) -> float | None:
    """Return the success score of the experiments in these folders; None if there is none, or more than one."""
    goals = {goal for path in paths if (goal := _goal(path / "experiment.toml")) is not None}
    return goals.pop() if len(goals) == 1 else None


def outcomes_of(goal: float, environments: Sequence[Environment]) -> list[Outcome]:
    """Return the outcome of every group that has finished runs."""
    difficulties = _difficulties(environments)
    return [
        _outcome(goal, group, difficulties.get(environment.name))
        for environment in environments
        for group in environment.groups
        if len(group.final_scores)
    ]


def success_chapter(goal: float, environments: Sequence[Environment], outcomes: Sequence[Outcome]) -> Chapter:
    """Make the chapter on the shares of runs that reached the score `goal`."""
    note = (
        f"A run found the solution if an episode of its training, or a chain of recycled steps, reached {goal:g} "
        "points, and kept it if its final evaluation does. Intervals are 95% Wilson score intervals."
    )
    argument = _argument(environments)
    pictures = [_draw(argument, outcomes)] if argument else []
    section = Section("Found and kept", [note], pictures, [_table(outcomes)])
    return Chapter(f"Runs that reached {goal:g} points", None, [section])


def _goal(path: Path) -> float | None:
    try:
        goal = tomllib.loads(path.read_text(encoding="utf-8")).get("success")
    except (OSError, ValueError):
        return None
    return float(goal) if isinstance(goal, int | float) else None


def _best(run: RunRecord) -> float:
    """Return the greatest return of an episode in training, or reward of a chain of recycled steps."""
    episode, chain = run.last("return_best"), run.last("chain_reward_best") or None  # 0: no chain had a reward
    return max((number for number in (episode, chain) if number is not None), default=-math.inf)


def _outcome(goal: float, group: Group, difficulty: float | None) -> Outcome:
    finished = [run for run in group.runs if run.final_score is not None]
    found = sum(_best(run) >= goal for run in finished)
    kept = sum(_final(run) >= goal for run in finished)
    count = len(finished)
    return Outcome(group, difficulty, count, share_of(found, count), share_of(kept, count))


def _final(run: RunRecord) -> float:
    assert run.final_score is not None
    return run.final_score


def _argument(environments: Sequence[Environment]) -> str | None:
    """Return the only argument in which the environments differ, if it is a number in all of them; else None."""
    arguments = [_arguments(environment) for environment in environments]
    differing = {key for one in arguments for key in one if any(other.get(key) != one[key] for other in arguments)}
    if len(differing) != 1:
        return None
    (key,) = differing
    return key if all(type(one.get(key)) in (int, float) for one in arguments) else None


def _difficulties(environments: Sequence[Environment]) -> dict[str, float]:
    key = _argument(environments)
    return {one.name: float(_arguments(one)[key]) for one in environments} if key else {}


def _arguments(environment: Environment) -> dict[str, Any]:
    return environment.groups[0].runs[0].config.env.arguments


def _table(outcomes: Sequence[Outcome]) -> Table:
    rows = [
        [one.group.environment, one.group.label, str(one.runs), *_shares(one.found), *_shares(one.kept)]
        for one in outcomes
    ]
    columns = ["environment", "group", "seeds", "found", "95% interval", "kept", "95% interval"]
    return Table("Share of finished seeds", columns, rows)


def _shares(estimate: Estimate) -> list[str]:
    return [probability(estimate.value), interval(estimate.low, estimate.high, probability)]


def _draw(argument: str, outcomes: Sequence[Outcome]) -> Picture:
    panels: list[tuple[str, Callable[[Outcome], Estimate]]] = [
        ("found in training", lambda one: one.found),
        ("kept at the end", lambda one: one.kept),
    ]
    with drawing(3.0) as figure:
        for axes, (title, share) in zip(figure.subplots(1, 2, sharey=True), panels, strict=True):
            _draw_shares(axes, outcomes, share)
            axes.set_title(title)
            axes.set_xlabel(argument)
            axes.set_ylim(-0.05, 1.05)
        figure.axes[0].set_ylabel("share of seeds")
        legend_below(figure, axes)
    values = "; ".join(
        f"{one.group.label} at {argument} {one.difficulty:g}: found {probability(one.found.value)}, "
        f"kept {probability(one.kept.value)}"
        for one in outcomes
    )
    caption = f"Share of seeds by {argument}, with 95% intervals."
    return Picture("success", figure, caption, f"Share of seeds that reached the score: {values}.")


def _draw_shares(axes: Axes, outcomes: Sequence[Outcome], share: Callable[[Outcome], Estimate]) -> None:
    tidy(axes)
    groups = {one.group.label: one.group for one in outcomes}
    labels, styles = list(groups), styles_of(list(groups.values()))
    span = max(one.difficulty or 0.0 for one in outcomes)
    for number, label in enumerate(labels):
        group_outcomes = [one for one in outcomes if one.group.label == label]
        points = sorted((one.difficulty or 0.0, share(one)) for one in group_outcomes)
        x = [difficulty + (number - (len(labels) - 1) / 2) * _OFFSET * span for difficulty, _ in points]
        y = [estimate.value for _, estimate in points]
        below = [max(estimate.value - estimate.low, 0.0) for _, estimate in points]  # rounding may give -1e-17
        above = [max(estimate.high - estimate.value, 0.0) for _, estimate in points]
        style = styles[label]
        axes.errorbar(
            x, y, yerr=[below, above], color=style.colour, marker=style.marker, linestyle=style.line, markersize=4,
            linewidth=1.6, elinewidth=0.8, label=label,
        )  # fmt: skip
    axes.set_xticks(sorted({one.difficulty or 0.0 for one in outcomes}))
