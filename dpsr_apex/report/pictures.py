"""A picture of the report: a matplotlib figure without pyplot, as SVG for the page and as PNG beside it.

Every picture is drawn for the width of a phone's screen, so that its words stay legible there, and has a text that
says what is to be seen for those who do not see it.
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
_NAME = 22  # characters in a line of a row's name
_DRAWING: Any = {
    "font.size": 10,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": INK,
    "axes.titlesize": 10,
    "xtick.color": INK,
    "ytick.color": INK,
    "grid.color": GRID,
    "legend.fontsize": 9,
    "text.parse_math": False,  # a name with dollars in it is a name
    "svg.fonttype": "path",
    "svg.hashsalt": "dpsr_apex",  # the same names inside every time, so that equal reports are equal files
}
_SCREEN = (
    f"<style>:root{{--ink:{INK};--grid:{GRID}}}"
    f"@media screen and (prefers-color-scheme:dark){{:root{{--ink:{DARK_INK};--grid:{DARK_GRID}}}}}</style>"
)


_PATH = re.compile(r' (?:d|x|y)="[^"]*"')
_DECIMALS = re.compile(r"(\.\d\d)\d+")


@dataclass(frozen=True)
class Picture:
    """A figure with its file name (without ending), what is written below it, and what is said in its place."""

    name: str
    figure: Figure
    caption: str
    alt: str

    def svg(self) -> str:
        """The picture as SVG on no ground, with ink that follows a dark screen."""
        drawn = self._save("svg", transparent=True, metadata={"Date": None, "Creator": None}).decode()
        start = drawn.index("<svg")
        end = drawn.index(">", start) + 1
        inked = drawn[end:].replace(INK, "var(--ink)").replace(GRID, "var(--grid)")
        return drawn[start:end] + _SCREEN + _PATH.sub(_shortened, inked)

    def png(self) -> bytes:
        """The picture on white, at twice the points of a usual screen."""
        return self._save("png", dpi=200)

    def _save(self, kind: str, **options: Any) -> bytes:
        buffer = io.BytesIO()
        with mpl.rc_context(_DRAWING):
            self.figure.savefig(buffer, format=kind, **options)
        return buffer.getvalue()


def _shortened(path: re.Match[str]) -> str:
    """A hundredth of a point is finer than any screen."""
    return _DECIMALS.sub(r"\1", path[0])


@contextmanager
def drawing(height: float) -> Iterator[Figure]:
    """A figure of this height in inches, to be drawn inside the block."""
    with mpl.rc_context(_DRAWING):
        figure = Figure(figsize=(_WIDTH, height))
        yield figure
        # Laid out once, here: an engine that stays would do it again, and draw everything twice, for every file.
        ConstrainedLayoutEngine().execute(figure)


def tidy(axes: Axes) -> None:
    """A calm ground to draw on."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(linewidth=0.7)
    axes.set_axisbelow(True)


def count_transitions(axes: Axes, ticks: int = 5) -> None:
    """The axis of transitions, from 0, with about so many ticks."""
    axes.set_xlabel("transitions")
    axes.set_xlim(left=0)
    axes.xaxis.set_major_locator(MaxNLocator(ticks))
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))


def legend_below(figure: Figure, axes: Axes) -> None:
    """A legend that covers nothing; nothing where there is one line only."""
    handles, labels = axes.get_legend_handles_labels()
    if len(labels) > 1:
        columns = 3 if max(map(len, labels)) <= 10 else 2 if max(map(len, labels)) <= 22 else 1
        figure.legend(handles, labels, loc="outside lower center", ncols=columns, frameon=False)


def wrapped(*parts: str) -> str:
    """A name in one line if it is short; else each part in lines of its own, to leave room for what is beside it."""
    name = " ".join(parts)
    return name if len(name) <= _NAME else "\n".join(textwrap.fill(part, _NAME) for part in parts)


def rows_height(names: Sequence[str]) -> float:
    """The height, in inches, of a figure with these names of rows."""
    return 0.8 + sum(0.18 + 0.16 * len(name.splitlines()) for name in names)


def name_rows(axes: Axes, names: Sequence[str]) -> None:
    """One name a row, from top to bottom."""
    tidy(axes)
    axes.grid(visible=False, axis="y")
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.spines["left"].set_visible(False)
    axes.tick_params(axis="y", length=0)
