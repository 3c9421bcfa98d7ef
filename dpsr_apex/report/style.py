"""The style of a group in every figure of the report: the colour and marker of its method, and a distinct line."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final, NamedTuple

from dpsr_apex.methods import METHODS
from dpsr_apex.report.groups import Group

INK: Final = "#1f2933"
GRID: Final = "#d9dee4"
DARK_INK: Final = "#dfe4ea"
DARK_GRID: Final = "#3b434d"

LINES: Final = ("-", (0, (5, 2)), (0, (1, 1.5)), (0, (6, 2, 1, 2)), (0, (3, 1, 1, 1, 1, 1)))

SHADES: Final = (0.0, -0.35, 0.35, -0.6, 0.6)  # towards black if negative, towards white if positive

Line = str | tuple[int, tuple[float, ...]]


class Style(NamedTuple):
    """Colour and marker identify the method; the shade of the colour and the line style identify the group."""

    colour: str
    marker: str
    line: Line


def styles_of(groups: Sequence[Group]) -> dict[str, Style]:
    """Return a style for every group of one environment, by label."""
    styles: dict[str, Style] = {}
    used: Counter[str] = Counter()
    for group in groups:
        method, index = METHODS[group.method], used[group.method]
        styles[group.label] = Style(_shade(method.colour, index), method.marker, LINES[index % len(LINES)])
        used[group.method] += 1
    return styles


def _shade(colour: str, index: int) -> str:
    """Return the colour itself for the first group of a method, and alternately darker and lighter ones after it."""
    level = SHADES[index % len(SHADES)]
    end = 0 if level < 0 else 255
    channels = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return "#" + "".join(f"{round(channel + (end - channel) * abs(level)):02x}" for channel in channels)
