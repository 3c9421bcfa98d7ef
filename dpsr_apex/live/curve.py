"""The learning curve of a run as one picture, from its logged rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dpsr_apex.config import Config
from dpsr_apex.files import atomic_path, read_rows
from dpsr_apex.record.evaluations import random_score
from dpsr_apex.record.run_directory import RunDirectory

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Row = Mapping[str, Any]
Floats = NDArray[np.float64]
Points = tuple[Floats, Floats]

_RETURN, _EVALUATION, _LOSS, _EPSILON, _FILL = "#2166ac", "#d6604d", "#7a5195", "#888888", "#2a9d4e"


def points(rows: Sequence[Row], name: str) -> Points:
    """Return the clocks and the values of the rows that have a value, as two arrays."""
    known = [(row["t"], row[name]) for row in rows if row.get(name) is not None]
    t, values = np.array(known, dtype=np.float64).reshape(-1, 2).T
    return t, values


def smoothed(values: Floats) -> Floats:
    """Return means over a centred window of a twentieth of all values, narrower at both ends."""
    reach = len(values) // 40
    sums = np.concatenate(([0.0], np.cumsum(values)))
    middle = np.arange(len(values))
    first, last = np.maximum(middle - reach, 0), np.minimum(middle + reach + 1, len(values))
    means: Floats = (sums[last] - sums[first]) / (last - first)
    return means


def draw_run(config: Config, run: RunDirectory) -> None:
    """Draw the curve of a run from the files in its directory."""
    title = f"{config.env.name}, {config.replay.method}, seed {config.run.seed}"
    draw_curve(read_rows(run.metrics), read_rows(run.evaluations), run.curve, title, random_score(run))


def draw_curve(
    rows: Sequence[Row], evaluations: Sequence[Row], path: Path, title: str, random_play: float | None = None
) -> None:
    """Draw returns, evaluations, loss, exploration and replay fill against transitions, as a PNG at `path`.

    `rows` are those of `metrics.jsonl`; each evaluation needs `t` and `scores`. Either may be empty. `random_play` is
    the mean score of a random policy.
    """
    from matplotlib.figure import Figure  # here, because it would delay the start of every run

    figure = Figure(figsize=(9, 6.5), dpi=120, layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=[3, 1.2])
    figure.suptitle(title, fontsize=13, fontweight="bold")
    _draw_returns(above, rows)
    _draw_evaluations(above, evaluations)
    if random_play is not None:
        above.axhline(random_play, color=_EPSILON, linestyle="--", linewidth=1.4, label="random play")
    _finish_returns(above)
    _draw_shares(below, rows)
    _draw_loss(below.twinx(), rows)
    below.set_xlim(0, 1.02 * max((row["t"] for row in [*rows, *evaluations]), default=1_000))
    with atomic_path(path) as temporary:
        figure.savefig(temporary, format="png")


def _draw_returns(axes: Axes, rows: Sequence[Row]) -> None:
    t, returns = points(rows, "return_mean")
    if len(t):
        axes.plot(
            t, returns, ".-", color=_RETURN, alpha=0.3, linewidth=1, markersize=3, label="training, each interval"
        )
        axes.plot(t, smoothed(returns), color=_RETURN, linewidth=2.2, label="training, smoothed")


def _draw_evaluations(axes: Axes, evaluations: Sequence[Row]) -> None:
    played = [row for row in evaluations if row["scores"]]
    if not played:
        return
    t = [row["t"] for row in played]
    means = np.array([np.mean(row["scores"]) for row in played])
    below = means - [min(row["scores"]) for row in played]
    above = [max(row["scores"]) for row in played] - means
    label = "evaluation, mean and range"
    axes.errorbar(t, means, yerr=[below, above], fmt="o-", color=_EVALUATION, capsize=3, linewidth=1.4, label=label)


def _finish_returns(axes: Axes) -> None:
    _tidy(axes)
    axes.set_ylabel("return of an episode (points)")
    if axes.get_legend_handles_labels()[0]:
        _add_legend(axes)
    else:
        axes.set_yticks([])
        axes.text(
            0.5, 0.5, "no episode has ended yet", transform=axes.transAxes, ha="center", color="grey", fontsize=12
        )


def _draw_shares(axes: Axes, rows: Sequence[Row]) -> None:
    from matplotlib.ticker import EngFormatter

    _tidy(axes)
    axes.set_xlabel("transitions")
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.set_ylabel("share")
    axes.set_ylim(-0.03, 1.05)
    axes.plot(*points(rows, "epsilon"), color=_EPSILON, linewidth=1.6, label="exploration ε")
    axes.plot(*points(rows, "fill"), color=_FILL, linewidth=1.6, label="replay fill")
    axes.plot([], [], color=_LOSS, linewidth=1.6, label="loss (right scale)")
    _add_legend(axes)


def _draw_loss(axes: Axes, rows: Sequence[Row]) -> None:
    axes.spines[["top", "left"]].set_visible(False)
    axes.set_ylabel("loss (Huber)", color=_LOSS)
    t, loss = points(rows, "loss")
    if not len(t):
        axes.set_yticks([])
        return
    axes.plot(t, loss, ".-", color=_LOSS, alpha=0.2, linewidth=0.8, markersize=2)
    axes.plot(t, smoothed(loss), color=_LOSS, linewidth=1.6)
    axes.set_ylim(0, max(1.2 * float(np.quantile(loss, 0.99)), 1e-9))  # a single spike must not flatten the rest


def _add_legend(axes: Axes) -> None:
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=3, frameon=False, fontsize=9, borderaxespad=0.2)


def _tidy(axes: Axes) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25)
