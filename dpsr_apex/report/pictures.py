"""Pictures of the report: matplotlib figures without pyplot, as SVG for the page and as PNG files.

Every picture is drawn at the width of a phone's screen, so that its text is legible there, and has an alternative text
for screen readers.
"""

from __future__ import annotations

import io
import re
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import EngFormatter, MaxNLocator

from dpsr_apex.report.style import DARK_GRID, DARK_INK, GRID, INK

_WIDTH = 4.6  # inches
_LABEL_WIDTH = 22  # characters per line of a row's label
_LEGEND_WIDTH = 52  # characters per line of a legend of one column
_RC_PARAMS: Any = {
    "font.size": 10,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": INK,
    "axes.titlesize": 10,
    "xtick.color": INK,
    "ytick.color": INK,
    "grid.color": GRID,
    "legend.fontsize": 9,
    "text.parse_math": False,  # dollar signs in names are not formulas
    "svg.fonttype": "path",
    "svg.hashsalt": "dpsr_apex",  # deterministic ids, so that equal reports are equal files
}
_COLOUR_STYLE = (
    f"<style>:root{{--ink:{INK};--grid:{GRID}}}"
    f"@media screen and (prefers-color-scheme:dark){{:root{{--ink:{DARK_INK};--grid:{DARK_GRID}}}}}</style>"
)


_PATH = re.compile(r' (?:d|x|y)="[^"]*"')
_DECIMALS = re.compile(r"(\.\d\d)\d+")


@dataclass(frozen=True)
class Picture:
    """A figure with its file name (without suffix), its caption and its alternative text."""

    name: str
    figure: Figure
    caption: str
    alt: str

    def svg(self) -> str:
        """Return the picture as SVG with a transparent background and colours that follow light and dark mode."""
        svg = self._save("svg", transparent=True, metadata={"Date": None, "Creator": None}).decode()
        start = svg.index("<svg")
        end = svg.index(">", start) + 1
        coloured = svg[end:].replace(INK, "var(--ink)").replace(GRID, "var(--grid)")
        return svg[start:end] + _COLOUR_STYLE + _PATH.sub(_rounded, coloured)

    def png(self) -> bytes:
        """Return the picture as PNG on white, at twice the usual screen resolution."""
        return self._save("png", dpi=200)

    def _save(self, file_format: str, **options: Any) -> bytes:
        buffer = io.BytesIO()
        with mpl.rc_context(_RC_PARAMS):
            self.figure.savefig(buffer, format=file_format, **options)
        return buffer.getvalue()


def _rounded(path: re.Match[str]) -> str:
    """Truncate coordinates to two decimals, which is finer than any screen."""
    return _DECIMALS.sub(r"\1", path[0])


@contextmanager
def drawing(height: float) -> Iterator[Figure]:
    """Create a figure of this height in inches, to be drawn inside the block."""
    with mpl.rc_context(_RC_PARAMS):
        figure = Figure(figsize=(_WIDTH, height))
        yield figure
        # Executed once: a layout engine attached to the figure would draw everything twice for every file.
        ConstrainedLayoutEngine().execute(figure)


def tidy(axes: Axes) -> None:
    """Remove the top and right spines and add a light grid."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(linewidth=0.7)
    axes.set_axisbelow(True)


def count_transitions(axes: Axes, ticks: int = 5) -> None:
    """Format the x-axis as transitions, from 0, with about `ticks` ticks."""
    axes.set_xlabel("transitions")
    axes.set_xlim(left=0)
    axes.xaxis.set_major_locator(MaxNLocator(ticks))
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))


def legend_below(figure: Figure, axes: Axes) -> None:
    """Add a legend below the axes if there is more than one line."""
    handles, labels = axes.get_legend_handles_labels()
    if len(labels) > 1:
        columns = 3 if max(map(len, labels)) <= 10 else 2 if max(map(len, labels)) <= 22 else 1
        labels = [textwrap.fill(label, _LEGEND_WIDTH) for label in labels]
        figure.legend(handles, labels, loc="outside lower center", ncols=columns, frameon=False)


def wrapped(*parts: str) -> str:
    """Join the parts of a label in one line if it is short; otherwise wrap each part on its own lines."""
    name = " ".join(parts)
    return name if len(name) <= _LABEL_WIDTH else "\n".join(textwrap.fill(part, _LABEL_WIDTH) for part in parts)


def rows_height(names: Sequence[str]) -> float:
    """Return the height in inches of a figure with these row labels."""
    return 0.8 + sum(0.18 + 0.16 * len(name.splitlines()) for name in names)


def name_rows(axes: Axes, names: Sequence[str]) -> None:
    """Label the rows of a horizontal plot from top to bottom."""
    tidy(axes)
    axes.grid(visible=False, axis="y")
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.spines["left"].set_visible(False)
    axes.tick_params(axis="y", length=0)
