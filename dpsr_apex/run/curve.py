"""The learning curve of a run as one picture. It reads rows that others wrote, and changes none."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

from dpsr_apex.config import Config
from dpsr_apex.run.metrics import read_metrics
from dpsr_apex.run.run_directory import RunDirectory
from dpsr_apex.run.series import Row, points, smoothed

_RETURN, _EVALUATION, _LOSS, _EPSILON, _FILL = "#2166ac", "#d6604d", "#7a5195", "#888888", "#2a9d4e"


def draw_run(config: Config, run: RunDirectory) -> None:
    """Draw the curve of a run from what is in its directory."""
    title = f"{config.env.name}, {config.replay.method}, seed {config.run.seed}"
    draw_curve(read_metrics(run.metrics), read_metrics(run.evaluations), run.curve, title)


def draw_curve(rows: Sequence[Row], evaluations: Sequence[Row], path: Path, title: str) -> None:
    """Draw returns, evaluations, loss, exploration and replay fill against transitions, as a PNG at `path`.

    `rows` are those of `metrics.jsonl`; each evaluation needs `t` and `scores`. Either may be empty.
    """
    figure = Figure(figsize=(9, 6.5), dpi=120, layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=[3, 1.2])
    figure.suptitle(title, fontsize=13, fontweight="bold")
    _draw_returns(above, rows)
    _draw_evaluations(above, evaluations)
    _finish_returns(above)
    _draw_shares(below, rows)
    _draw_loss(below.twinx(), rows)
    below.set_xlim(0, 1.02 * max((row["t"] for row in [*rows, *evaluations]), default=1_000))
    temporary = path.with_name(f".unfinished-{path.name}")
    try:
        figure.savefig(temporary, format="png")
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


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
    axes.set_ylabel("return of a game (points)")
    if axes.get_legend_handles_labels()[0]:
        _add_legend(axes)
    else:
        axes.set_yticks([])
        axes.text(0.5, 0.5, "no game has ended yet", transform=axes.transAxes, ha="center", color="grey", fontsize=12)


def _draw_shares(axes: Axes, rows: Sequence[Row]) -> None:
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
    axes.set_ylim(0, max(1.2 * float(np.quantile(loss, 0.99)), 1e-9))  # one spike must not flatten the rest


def _add_legend(axes: Axes) -> None:
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=3, frameon=False, fontsize=9, borderaxespad=0.2)


def _tidy(axes: Axes) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25)
