"""Plot the results of `benchmarks/sharding.py`: the bias of some schemes, and the variance from wrong totals."""

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
    *("equal", "equal, as in one", "own maximum", "own"),
)
ERROR_BARS = 4  # standard errors to either side


def plot(simulation: Mapping[str, Any], path: Path) -> None:
    """Draw the plot from the content of the simulation's JSON file."""
    figure = Figure(figsize=(11, 4.4), layout="constrained")
    left, right = figure.subplots(1, 2)
    _plot_bias(left, simulation)
    _plot_deviation(right, simulation)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)


def _plot_bias(axes: Axes, simulation: Mapping[str, Any]) -> None:
    rows = np.arange(len(SHOWN))[::-1]
    for beta, marker, colour, shift in (("1", "o", BLUE, 0.15), ("0.4", "s", ORANGE, -0.15)):
        lines = [simulation["schemes"][name][beta] for name in SHOWN]
        biases, errors = (np.array([100 * line[key] for line in lines]) for key in ("bias", "standard error"))
        axes.errorbar(
            biases, rows + shift, xerr=ERROR_BARS * errors, fmt=marker, color=colour, capsize=3, label=f"β = {beta}"
        )
    axes.axvline(0.0, color=INK, linewidth=1)
    axes.set_yticks(rows, [simulation["titles"][name] for name in SHOWN])
    axes.set_xlabel(f"bias relative to one replay, %; bars: {ERROR_BARS} standard errors")
    axes.set_title("Bias of an estimate from a batch")
    axes.grid(alpha=0.3)
    axes.legend(loc="center right", frameon=False)


def _plot_deviation(axes: Axes, simulation: Mapping[str, Any]) -> None:
    deviations = {name: 100 * line["1"]["standard deviation"] for name, line in simulation["schemes"].items()}
    for ending, marker, colour, label in (("", "o", ORANGE, "multinomial"), (", rounded", "s", BLUE, "rounded")):
        points = {1.0: deviations[f"fresh{ending}"]} | {
            float(named[1]): value
            for name, value in deviations.items()
            if (named := re.fullmatch(rf"wrong ([\d.]+){ending}", name))
        }
        axes.plot(list(points), list(points.values()), f"{marker}-", color=colour, linewidth=2, label=f"counts {label}")
    axes.axhline(deviations["equal"], color=GREY, linestyle=":", linewidth=2, label="1/K from every shard")
    axes.axhline(deviations["one"], color=INK, linestyle="--", label="one replay")
    axes.set(xscale="log", yscale="log", xlabel="totals wrong by a factor of", ylabel="standard deviation, %")
    axes.set_xticks(list(points), [f"{factor:g}" for factor in points])
    axes.set_yticks((3, 5, 10, 20, 50), ("3", "5", "10", "20", "50"))
    axes.minorticks_off()
    axes.set_title("Standard deviation of an estimate, β = 1")
    axes.grid(alpha=0.3)
    axes.legend(loc="upper left", frameon=False)
