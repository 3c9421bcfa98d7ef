"""The chapters of the report, one per environment and one for all together: pictures and tables in reading order."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from dpsr_apex.report.comparison import Comparison, compare_across, compare_within, conclusions
from dpsr_apex.report.curves import (
    Curve,
    decile_points,
    evaluation_curve,
    gain_points,
    mean_points,
    training_curve,
)
from dpsr_apex.report.figures import ReplayView, draw_curves, draw_gains, draw_improvements, draw_means, draw_replay
from dpsr_apex.report.groups import Environment, Group
from dpsr_apex.report.pictures import Picture
from dpsr_apex.report.style import Style, styles_of
from dpsr_apex.report.tables import (
    Table,
    chains_table,
    final_table,
    improvement_table,
    paper_table,
    recycling_table,
    throughput_table,
)

_NORMALISED = ("Scores are human-normalised: 0 is a random player, 1 is the human tester of the published scores.",)
_MIN_PRIORITY, _MAX_PRIORITY = 1e-6, 1.0  # limits of the axis if no row has priorities


@dataclass(frozen=True)
class Section:
    """A heading with notes, pictures and tables below it."""

    title: str
    notes: Sequence[str] = ()
    pictures: Sequence[Picture] = ()
    tables: Sequence[Table] = ()


@dataclass(frozen=True)
class Chapter:
    """All sections about one environment, or about all environments together."""

    title: str
    comparison: Comparison | None
    sections: Sequence[Section] = field(default=())

    @property
    def pictures(self) -> list[Picture]:
        """All pictures, in order."""
        return [picture for section in self.sections for picture in section.pictures]


def environment_chapter(number: int, environment: Environment, rng: np.random.Generator) -> Chapter:
    """Make the chapter of one environment; `number` makes the file names of its pictures unique."""
    styles = styles_of(environment.groups)
    comparison = compare_within(environment, rng)
    prefix = f"{number}_{re.sub('[^a-z0-9]+', '-', environment.name.lower()).strip('-')}"
    sections = [
        _curve_section(prefix, environment, styles, rng),
        _final_section(prefix, environment, comparison, styles),
        _replay_section(prefix, environment, styles),
        _recycling_section(prefix, environment, styles),
        Section("Wall clock and throughput", tables=[throughput_table(environment)]),
    ]
    if not any(run.rows or run.scores for group in environment.groups for run in group.runs):
        return Chapter(
            environment.name, None, [Section("Nothing was logged yet", ["No run of this environment has metrics."])]
        )
    return Chapter(environment.name, comparison, [section for section in sections if section])


def common_chapter(environments: Sequence[Environment], rng: np.random.Generator) -> Chapter | None:
    """Make the chapter that compares groups over all environments; None if there is nothing to compare."""
    comparison = compare_across(environments, rng)
    if not comparison:
        return None
    groups = {group.label: group for environment in environments for group in environment.groups}
    styles = styles_of([groups[label] for label in comparison.seeds])
    section = Section(
        "Final evaluations",
        [*(_NORMALISED if comparison.means else ()), *comparison.notes, " ".join(conclusions(comparison))],
        _comparison_pictures("all", comparison, styles),
        [improvement_table(comparison)] if comparison.improvements else [],
    )
    return Chapter("All environments", comparison, [section])


def _curve_section(
    prefix: str, environment: Environment, styles: Mapping[str, Style], rng: np.random.Generator
) -> Section:
    curve_types: list[tuple[str, str, Callable[[Group, np.random.Generator], Curve | None]]] = [
        ("evaluation", "Evaluation", evaluation_curve),
        ("training", "Returns in training, smoothed", training_curve),
    ]
    pictures = []
    for name, title, make_curve in curve_types:
        curves = {group.label: curve for group in environment.groups if (curve := make_curve(group, rng))}
        if curves:
            pictures.append(draw_curves(f"{prefix}_{name}", environment.name, title, curves, styles))
    return Section("Learning curves", [] if pictures else ["No episode has ended yet."], pictures)


def _final_section(
    prefix: str, environment: Environment, comparison: Comparison | None, styles: Mapping[str, Style]
) -> Section:
    title = "Final evaluations"
    if not comparison:
        return Section(title, ["No run has finished yet. The last evaluation of each run is in the list of runs."])
    tables = [final_table(environment, comparison)]
    if comparison.improvements:
        tables.append(improvement_table(comparison))
    paper, notes = paper_table(environment), [" ".join(conclusions(comparison))]
    if paper:
        tables.append(paper)
        notes.append(
            "The paper reports one score for each method and parameter set, for runs of 1,000,000 transitions, without "
            "the number of seeds or a measure of variance: they are shown for orientation only."
        )
    return Section(title, notes, _comparison_pictures(prefix, comparison, styles), tables)


def _comparison_pictures(prefix: str, comparison: Comparison, styles: Mapping[str, Style]) -> list[Picture]:
    pictures = []
    if comparison.means:
        pictures.append(draw_means(f"{prefix}_iqm", comparison, styles))
    if comparison.improvements:
        pictures.append(draw_improvements(f"{prefix}_improvement", comparison, styles))
    return pictures


def _replay_section(prefix: str, environment: Environment, styles: Mapping[str, Style]) -> Section | None:
    views = [view for group in environment.groups if not (view := _replay_view(group)).is_empty]
    if not views:
        return None
    max_age, priority_limits = _max_age(views), _priority_limits(views)
    pictures = [
        draw_replay(f"{prefix}_replay_{number}", view, styles[view.label], max_age, priority_limits)
        for number, view in enumerate(views)
    ]
    note = "Bands are deciles over the replay, from minimum to maximum, averaged over seeds."
    return Section("Ages and priorities in the replay", [note], pictures)


def _replay_view(group: Group) -> ReplayView:
    return ReplayView(
        group.label,
        decile_points(group, "age_deciles"),
        mean_points(group, "age_mean"),
        mean_points(group, "replaced_age_mean"),
        decile_points(group, "priority_deciles"),
        mean_points(group, "priority_mean"),
        mean_points(group, "replaced_priority_mean"),
    )


def _max_age(views: Sequence[ReplayView]) -> float:
    ages = [view.ages.values.max() if view.ages else view.mean_age[1].max(initial=1.0) for view in views]
    return 1.05 * float(max(1.0, *ages))


def _priority_limits(views: Sequence[ReplayView]) -> tuple[float, float]:
    known = [view.priorities.values if view.priorities else view.mean_priority[1] for view in views]
    positive = np.concatenate([values[values > 0].ravel() for values in known])
    if not len(positive):
        return _MIN_PRIORITY, _MAX_PRIORITY
    return max(_MIN_PRIORITY, float(positive.min())) / 1.5, 1.5 * float(positive.max())


def _recycling_section(prefix: str, environment: Environment, styles: Mapping[str, Style]) -> Section | None:
    table = recycling_table(environment)
    if not table:
        return None
    points = {group.label: gain_points(group) for group in environment.groups if group.recycles}
    gains = {label: (t, values) for label, (t, values) in points.items() if len(t) > 1}
    pictures = [draw_gains(f"{prefix}_gain", environment.name, gains, styles)] if gains else []
    chains = chains_table(environment)
    return Section("Recycling", (), pictures, [table, *([chains] if chains else [])])
