"""The picture of what `benchmarks/sharding.py` found: the bias of some ways, and what wrong totals cost."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

BLUE, ORANGE, INK, GREY = "#1f6fb2", "#c2571a", "#1f2933", "#828a93"
SHOWN = (
    *("one", "fresh", "age 64", "age 64, as in one", "wrong 3", "wrong 3, as in one"),
    *("equal", "equal, as in one", "own greatest", "own"),
)
BARS = 4  # standard errors to either side


def plot(found: Mapping[str, Any], path: Path) -> None:
    """Draw it from the file that the simulation writes."""
    figure = Figure(figsize=(11, 4.4), layout="constrained")
    left, right = figure.subplots(1, 2)
    _plot_bias(left, found)
    _plot_scatter(right, found)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)


def _plot_bias(axes: Axes, found: Mapping[str, Any]) -> None:
    places = np.arange(len(SHOWN))[::-1]
    for beta, marker, colour, shift in (("1", "o", BLUE, 0.15), ("0.4", "s", ORANGE, -0.15)):
        lines = [found["ways"][name][beta] for name in SHOWN]
        biases, errors = (np.array([100 * line[key] for line in lines]) for key in ("bias", "standard error"))
        axes.errorbar(
            biases, places + shift, xerr=BARS * errors, fmt=marker, color=colour, capsize=3, label=f"β = {beta}"
        )
    axes.axvline(0.0, color=INK, linewidth=1)
    axes.set_yticks(places, [found["titles"][name] for name in SHOWN])
    axes.set_xlabel(f"bias beside one replay, %; bars: {BARS} standard errors")
    axes.set_title("What a batch says on average")
    axes.grid(alpha=0.3)
    axes.legend(loc="center right", frameon=False)


def _plot_scatter(axes: Axes, found: Mapping[str, Any]) -> None:
    scatter = {name: 100 * line["1"]["standard deviation"] for name, line in found["ways"].items()}
    for ending, marker, colour, label in (("", "o", ORANGE, "multinomial"), (", rounded", "s", BLUE, "rounded")):
        points = {1.0: scatter[f"fresh{ending}"]} | {
            float(named[1]): value
            for name, value in scatter.items()
            if (named := re.fullmatch(rf"wrong ([\d.]+){ending}", name))
        }
        axes.plot(list(points), list(points.values()), f"{marker}-", color=colour, linewidth=2, label=f"counts {label}")
    axes.axhline(scatter["equal"], color=GREY, linestyle=":", linewidth=2, label="1/K from every shard")
    axes.axhline(scatter["one"], color=INK, linestyle="--", label="one replay")
    axes.set(xscale="log", yscale="log", xlabel="totals wrong by a factor of", ylabel="standard deviation, %")
    axes.set_xticks(list(points), [f"{factor:g}" for factor in points])
    axes.set_yticks((3, 5, 10, 20, 50), ("3", "5", "10", "20", "50"))
    axes.minorticks_off()
    axes.set_title("Scatter of an estimate, β = 1")
    axes.grid(alpha=0.3)
    axes.legend(loc="upper left", frameon=False)
