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

Line = str | tuple[int, tuple[float, ...]]


class Style(NamedTuple):
    """Colour and marker identify the method; the line style identifies the group."""

    colour: str
    marker: str
    line: Line


def styles_of(groups: Sequence[Group]) -> dict[str, Style]:
    """Return a style for every group of one environment, by label."""
    styles: dict[str, Style] = {}
    used: Counter[str] = Counter()
    for group in groups:
        line = LINES[used[group.method] % len(LINES)]
        method = METHODS[group.method]
        styles[group.label] = Style(method.colour, method.marker, line)
        used[group.method] += 1
    return styles
