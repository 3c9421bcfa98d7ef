"""Draw the pictures of the report from computed statistics. Nothing is computed or read here."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import EngFormatter, FuncFormatter, NullFormatter

from dpsr_apex.formatting import interval, number, probability
from dpsr_apex.live.curve import Points
from dpsr_apex.report.comparison import EVEN, Comparison
from dpsr_apex.report.curves import Curve, Deciles
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

MAX_SEED_LINES = 20  # single seeds are drawn only up to this number over all groups
MAX_PAIRS = 15
_MAX_MARKERS = 25  # points are marked only up to this number
_MIN_PRIORITY = 1e-6  # smaller values are clipped, because the axis is logarithmic

Styles = Mapping[str, Style]


class ReplayView(NamedTuple):
    """Ages and priorities in one group's replay over t; None or empty if not logged."""

    label: str
    ages: Deciles | None
    mean_age: Points
    replaced_age: Points
    priorities: Deciles | None
    mean_priority: Points
    replaced_priority: Points

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to draw."""
        return not (len(self.mean_age[0]) or len(self.mean_priority[0]) or self.ages or self.priorities)


def draw_curves(name: str, environment: str, title: str, curves: Mapping[str, Curve], styles: Styles) -> Picture:
    """Draw interquartile means over transitions with their bands, and single seeds behind them if they are few."""
    max_seeds = max(len(curve.seeds) for curve in curves.values())
    has_seeds = max_seeds > 1 and sum(len(curve.seeds) for curve in curves.values()) <= MAX_SEED_LINES
    with drawing(3.5) as figure:
        axes = figure.subplots()
        tidy(axes)
        for label, curve in curves.items():
            if has_seeds:
                _draw_seeds(axes, curve, styles[label])
            _draw_curve(axes, label, curve, styles[label])
        count_transitions(axes)
        axes.set_ylabel("score per episode")
        legend_below(figure, axes)
    ends = ", ".join(f"{label} {number(_last_finite(curve.band.middle))}" for label, curve in curves.items())
    caption = (
        f"{title}: interquartile mean over seeds with its 95% interval." if max_seeds > 1 else f"{title}, one seed."
    )
    caption += " Thin lines are single seeds." if has_seeds else ""
    return Picture(name, figure, caption, f"{title} in {environment} over transitions. At the end: {ends}.")


def draw_means(name: str, comparison: Comparison, styles: Styles) -> Picture:
    """Draw the interquartile mean of each group with its interval."""
    names = [wrapped(label, f"(n = {comparison.seeds[label]})") for label in comparison.means]
    with drawing(rows_height(names)) as figure:
        axes = figure.subplots()
        for row, (label, estimate) in enumerate(comparison.means.items()):
            _draw_interval(axes, row, estimate, styles[label])
        name_rows(axes, names)
        axes.set_xlabel(f"interquartile mean, {comparison.unit}")
    values = "; ".join(_estimate_text(label, estimate) for label, estimate in comparison.means.items())
    caption = "Interquartile mean of the final evaluations of finished seeds, with its 95% bootstrap interval."
    return Picture(name, figure, caption, f"Interquartile means, {comparison.scope}: {values}.")


def draw_improvements(name: str, comparison: Comparison, styles: Styles) -> Picture:
    """Draw the probability that a run of one group scores higher than one of another, for each pair."""
    shown = comparison.improvements[:MAX_PAIRS]
    names = [wrapped(pair.x, f"> {pair.y}") for pair in shown]
    with drawing(rows_height(names)) as figure:
        axes = figure.subplots()
        axes.axvline(EVEN, color=INK, linewidth=0.8, linestyle=(0, (4, 3)))
        for row, pair in enumerate(shown):
            _draw_interval(axes, row, pair.estimate, styles[pair.x])
        name_rows(axes, names)
        axes.set_xlim(-0.04, 1.04)
        axes.set_xlabel("probability of improvement")
    values = "; ".join(_estimate_text(f"{pair.x} over {pair.y}", pair.estimate, probability) for pair in shown)
    caption = "Probability that a seed of the first scores higher than one of the second; 0.5 (dashed): no difference."
    if len(comparison.improvements) > MAX_PAIRS:
        caption += f" The first {MAX_PAIRS} of {len(comparison.improvements)} pairs; all are in statistics.csv."
    return Picture(name, figure, caption, f"Probability of improvement, {comparison.scope}: {values}.")


def draw_replay(
    name: str, view: ReplayView, style: Style, max_age: float, priority_limits: tuple[float, float]
) -> Picture:
    """Draw deciles of ages and priorities, with axis limits that all groups of an environment share."""
    with drawing(2.5) as figure:
        left, right = figure.subplots(1, 2)
        for axes, title in ((left, "age, transitions"), (right, "priority")):
            tidy(axes)
            axes.set_title(title)
        _draw_deciles(left, view.ages, view.mean_age, view.replaced_age, style.colour)
        left.set_ylim(0, max_age)
        left.yaxis.set_major_formatter(EngFormatter(sep=""))
        _draw_deciles(right, view.priorities, view.mean_priority, view.replaced_priority, style.colour)
        right.set_yscale("log")
        right.set_ylim(*priority_limits)
        right.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        right.yaxis.set_minor_formatter(NullFormatter())
        count_transitions(left, ticks=3)
        count_transitions(right, ticks=3)
        legend_below(figure, left)
    ends = f"at the end the mean age is {number(_last_finite(view.mean_age[1]))} transitions"
    ends += f" and the mean priority {number(_last_finite(view.mean_priority[1]))}"
    return Picture(name, figure, view.label, f"Ages and priorities in the replay of {view.label} over time: {ends}.")


def draw_gains(name: str, environment: str, gains: Mapping[str, Points], styles: Styles) -> Picture:
    """Draw the mean gain of recycled transitions over the ones that they replace."""
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
    ends = ", ".join(f"{label} {number(_last_finite(values))}" for label, (_, values) in gains.items())
    caption = (
        "Gain of a recycled transition: its |TD error| minus the priority of the transition that it replaced, "
        "mean over seeds."
    )
    return Picture(name, figure, caption, f"Mean gain of a recycled transition in {environment}; at the end: {ends}.")


def _draw_seeds(axes: Axes, curve: Curve, style: Style) -> None:
    for t, values in curve.seeds:
        axes.plot(t, values, color=style.colour, linewidth=0.7, alpha=0.3)


def _draw_curve(axes: Axes, label: str, curve: Curve, style: Style) -> None:
    band = curve.band
    axes.fill_between(curve.grid, band.low, band.high, color=style.colour, alpha=0.16, linewidth=0)
    marker = style.marker if len(curve.grid) <= _MAX_MARKERS else None
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
        clipped = np.maximum(deciles.values, _MIN_PRIORITY)
        for outer in range(5):
            low, high = clipped[:, outer], clipped[:, -1 - outer]
            axes.fill_between(deciles.t, low, high, color=colour, alpha=0.13, linewidth=0)
        axes.plot(deciles.t, clipped[:, 5], color=colour, linewidth=1.6, label="median")
    else:
        axes.plot(*mean, color=colour, linewidth=1.6, label="mean")
    if len(replaced[0]):
        axes.plot(*replaced, color=INK, linewidth=1.1, linestyle=(0, (3, 2)), label="mean of replaced")


def _last_finite(values: Sequence[float] | np.ndarray[tuple[int], np.dtype[np.float64]]) -> float | None:
    finite = [float(value) for value in values if np.isfinite(value)]
    return finite[-1] if finite else None


def _estimate_text(label: str, estimate: Estimate, text: Callable[[float | None], str] = number) -> str:
    precision = (
        f"95% interval {interval(estimate.low, estimate.high, text)}"
        if estimate.has_interval
        else "too few seeds for an interval"
    )
    return f"{label} {text(estimate.value)}, {precision}"
