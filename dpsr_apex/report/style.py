"""How a group looks in every picture of the report: one colour a method, told apart also without colour."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final, NamedTuple

from dpsr_apex.report.groups import Group

INK: Final = "#1f2933"
GRID: Final = "#d9dee4"
DARK_INK: Final = "#dfe4ea"
DARK_GRID: Final = "#3b434d"

# Chosen so that they differ in lightness too, for those who see fewer colours, and for print.
COLOURS: Final = {
    "dpsr": "#cc3311",
    "double": "#ee8833",
    "per": "#0077bb",
    "per_rank": "#33bbee",
    "uniform": "#828a93",
}
MARKERS: Final = {"dpsr": "o", "double": "s", "per": "^", "per_rank": "v", "uniform": "D"}
LINES: Final = ("-", (0, (5, 2)), (0, (1, 1.5)), (0, (6, 2, 1, 2)), (0, (3, 1, 1, 1, 1, 1)))

Line = str | tuple[int, tuple[float, ...]]


class Style(NamedTuple):
    """Colour and marker say the method; the line says which of its groups."""

    colour: str
    marker: str
    line: Line


def styles_of(groups: Sequence[Group]) -> dict[str, Style]:
    """A style for every group of one environment, by label."""
    styles: dict[str, Style] = {}
    used: Counter[str] = Counter()
    for group in groups:
        line = LINES[used[group.method] % len(LINES)]
        styles[group.label] = Style(COLOURS[group.method], MARKERS[group.method], line)
        used[group.method] += 1
    return styles
