"""What each picture of the report shows. What is drawn was computed by others; nothing is computed or read here."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import EngFormatter, FuncFormatter, NullFormatter

from dpsr_apex.report.comparison import EVEN, Comparison
from dpsr_apex.report.curves import Curve, Deciles
from dpsr_apex.report.numbers import interval, plain, probability
from dpsr_apex.report.pictures import (
    Picture,
    count_transitions,
    drawing,
    legend_below,
    name_rows,
    rows_height,
    tidy,
    wrapped,
)
from dpsr_apex.report.statistics import Estimate
from dpsr_apex.report.style import INK, Style
from dpsr_apex.run.series import Points

FEW_LINES = 20  # up to so many seeds of all groups together are drawn one by one
MOST_PAIRS = 15
_FEW_POINTS = 25  # up to so many are marked one by one
_LOWEST_PRIORITY = 1e-6  # what is below is drawn there, on a logarithmic scale

Styles = Mapping[str, Style]


class ReplayView(NamedTuple):
    """One group's replay over time; what its rows do not tell is None or empty."""

    label: str
    ages: Deciles | None
    mean_age: Points
    replaced_age: Points
    priorities: Deciles | None
    mean_priority: Points
    replaced_priority: Points

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing at all to draw."""
        return not (len(self.mean_age[0]) or len(self.mean_priority[0]) or self.ages or self.priorities)


def draw_curves(name: str, environment: str, what: str, curves: Mapping[str, Curve], styles: Styles) -> Picture:
    """Interquartile means over transitions with their bands, and single seeds behind them where they are few."""
    most_seeds = max(len(curve.seeds) for curve in curves.values())
    has_seeds = most_seeds > 1 and sum(len(curve.seeds) for curve in curves.values()) <= FEW_LINES
    with drawing(3.5) as figure:
        axes = figure.subplots()
        tidy(axes)
        for label, curve in curves.items():
            if has_seeds:
                _draw_seeds(axes, curve, styles[label])
            _draw_curve(axes, label, curve, styles[label])
        count_transitions(axes)
        axes.set_ylabel("points a game")
        legend_below(figure, axes)
    ends = ", ".join(f"{label} {plain(_last_known(curve.band.middle))}" for label, curve in curves.items())
    caption = (
        f"{what}: interquartile mean over seeds with its 95% interval." if most_seeds > 1 else f"{what}, one seed."
    )
    caption += " Thin lines are single seeds." if has_seeds else ""
    return Picture(name, figure, caption, f"{what} in {environment} over transitions. At the end: {ends}.")


def draw_means(name: str, comparison: Comparison, styles: Styles) -> Picture:
    """The interquartile mean of each group with its interval."""
    names = [wrapped(label, f"(n = {comparison.seeds[label]})") for label in comparison.means]
    with drawing(rows_height(names)) as figure:
        axes = figure.subplots()
        for row, (label, estimate) in enumerate(comparison.means.items()):
            _draw_interval(axes, row, estimate, styles[label])
        name_rows(axes, names)
        axes.set_xlabel(f"interquartile mean, {comparison.unit}")
    said = "; ".join(_said(label, estimate) for label, estimate in comparison.means.items())
    caption = "Interquartile mean of the final evaluations of finished seeds, with its 95% bootstrap interval."
    return Picture(name, figure, caption, f"Interquartile means, {comparison.scope}: {said}.")


def draw_improvements(name: str, comparison: Comparison, styles: Styles) -> Picture:
    """How likely a run of one group scores higher than one of another."""
    shown = comparison.improvements[:MOST_PAIRS]
    names = [wrapped(pair.x, f"> {pair.y}") for pair in shown]
    with drawing(rows_height(names)) as figure:
        axes = figure.subplots()
        axes.axvline(EVEN, color=INK, linewidth=0.8, linestyle=(0, (4, 3)))
        for row, pair in enumerate(shown):
            _draw_interval(axes, row, pair.estimate, styles[pair.x])
        name_rows(axes, names)
        axes.set_xlim(-0.04, 1.04)
        axes.set_xlabel("probability of improvement")
    said = "; ".join(_said(f"{pair.x} over {pair.y}", pair.estimate, probability) for pair in shown)
    caption = "How likely a seed of the first scores higher than one of the second; one half (dashed) is no difference."
    if len(comparison.improvements) > MOST_PAIRS:
        caption += f" The first {MOST_PAIRS} of {len(comparison.improvements)} pairs; all are in statistics.csv."
    return Picture(name, figure, caption, f"Probability of improvement, {comparison.scope}: {said}.")


def draw_replay(
    name: str, view: ReplayView, style: Style, greatest_age: float, priorities: tuple[float, float]
) -> Picture:
    """Deciles of ages and priorities, on scales that all groups of an environment share."""
    with drawing(2.5) as figure:
        left, right = figure.subplots(1, 2)
        for axes, title in ((left, "age, transitions"), (right, "priority")):
            tidy(axes)
            axes.set_title(title)
        _draw_deciles(left, view.ages, view.mean_age, view.replaced_age, style.colour)
        left.set_ylim(0, greatest_age)
        left.yaxis.set_major_formatter(EngFormatter(sep=""))
        _draw_deciles(right, view.priorities, view.mean_priority, view.replaced_priority, style.colour)
        right.set_yscale("log")
        right.set_ylim(*priorities)
        right.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        right.yaxis.set_minor_formatter(NullFormatter())
        count_transitions(left, ticks=3)
        count_transitions(right, ticks=3)
        legend_below(figure, left)
    said = f"at the end the mean age is {plain(_last_known(view.mean_age[1]))} transitions"
    said += f" and the mean priority {plain(_last_known(view.mean_priority[1]))}"
    return Picture(name, figure, view.label, f"Ages and priorities in the replay of {view.label} over time: {said}.")


def draw_gains(name: str, environment: str, gains: Mapping[str, Points], styles: Styles) -> Picture:
    """What a recycled transition gains over the one whose place it takes."""
    with drawing(3.2) as figure:
        axes = figure.subplots()
        tidy(axes)
        axes.axhline(0, color=INK, linewidth=0.8)
        for label, (t, values) in gains.items():
            style = styles[label]
            axes.plot(t, values, color=style.colour, linestyle=style.line, linewidth=1.8, label=label)
        count_transitions(axes)
        axes.set_ylabel("mean gain in priority")
        legend_below(figure, axes)
    ends = ", ".join(f"{label} {plain(_last_known(values))}" for label, (_, values) in gains.items())
    caption = (
        "Gain of a recycled transition: its own |TD error| less the priority of what it replaced, mean over seeds."
    )
    return Picture(name, figure, caption, f"Mean gain of a recycled transition in {environment}; at the end: {ends}.")


def _draw_seeds(axes: Axes, curve: Curve, style: Style) -> None:
    for t, values in curve.seeds:
        axes.plot(t, values, color=style.colour, linewidth=0.7, alpha=0.3)


def _draw_curve(axes: Axes, label: str, curve: Curve, style: Style) -> None:
    band = curve.band
    axes.fill_between(curve.grid, band.low, band.high, color=style.colour, alpha=0.16, linewidth=0)
    marker = style.marker if len(curve.grid) <= _FEW_POINTS else None
    axes.plot(
        curve.grid, band.middle, color=style.colour, linestyle=style.line, linewidth=2, marker=marker, label=label,
        markersize=4,
    )  # fmt: skip


def _draw_interval(axes: Axes, row: int, estimate: Estimate, style: Style) -> None:
    if estimate.has_interval:
        axes.plot(
            [estimate.low, estimate.high], [row, row], color=style.colour, linewidth=5, alpha=0.4, solid_capstyle="butt"
        )
    axes.plot([estimate.value], [row], color=style.colour, marker=style.marker, markersize=7)


def _draw_deciles(axes: Axes, deciles: Deciles | None, mean: Points, replaced: Points, colour: str) -> None:
    if deciles:
        floored = np.maximum(deciles.values, _LOWEST_PRIORITY)
        for outer in range(5):
            low, high = floored[:, outer], floored[:, -1 - outer]
            axes.fill_between(deciles.t, low, high, color=colour, alpha=0.13, linewidth=0)
        axes.plot(deciles.t, floored[:, 5], color=colour, linewidth=1.6, label="median")
    else:
        axes.plot(*mean, color=colour, linewidth=1.6, label="mean")
    if len(replaced[0]):
        axes.plot(*replaced, color=INK, linewidth=1.1, linestyle=(0, (3, 2)), label="mean of the replaced")


def _last_known(values: Sequence[float] | np.ndarray[tuple[int], np.dtype[np.float64]]) -> float | None:
    known = [float(value) for value in values if np.isfinite(value)]
    return known[-1] if known else None


def _said(label: str, estimate: Estimate, shown: Callable[[float | None], str] = plain) -> str:
    known = f"95% interval {interval(estimate, shown)}" if estimate.has_interval else "too few seeds for an interval"
    return f"{label} {shown(estimate.value)}, {known}"
