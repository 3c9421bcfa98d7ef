"""Small text plots: a curve in braille dots, a histogram in blocks, a bar. Functions return lines and print nothing."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from rich.text import Text

from dpsr_apex.formatting import number

Point = tuple[float, float]
Floats = NDArray[np.float64]

CURVE_STYLE, MARK_STYLE, BAR_STYLE, QUIET = "green", "bold yellow", "blue", "bright_black"
MARK = "●"

_DOTS = np.array([[0x01, 0x08], [0x02, 0x10], [0x04, 0x20], [0x40, 0x80]])  # bits of a braille character by position
_EIGHTHS = " ▁▂▃▄▅▆▇█"


def curve(points: Sequence[Point], marks: Sequence[Point], width: int, height: int) -> list[Text]:
    """Return `height` lines: a curve through the means of `points`, dots at `marks`, labels at the ends of both axes.

    Points are (x, y) with increasing x >= 0; at least one point or mark is required.
    """
    everything = np.array([*points, *marks], dtype=np.float64)
    greatest_x = max(float(everything[:, 0].max()), 1.0)
    low, high = _range_of(everything[:, 1])
    labels = [number(high, 3), number(low, 3)]
    margin = max(map(len, labels)) + 2
    columns, rows = max(width - margin, 1), max(height - 1, 1)
    cells = _cells(points, greatest_x, low, high, columns, rows)
    marked = {_place(mark, greatest_x, low, high, columns, rows) for mark in marks}
    lines = [_curve_line(cells[row], {x for x, y in marked if y == row}) for row in range(rows)]
    edges = _edges(labels, margin, rows)
    end = f"t = {number(greatest_x, 3)}"
    axis = Text(f"{' ' * margin}0{end:>{max(columns - 1, 1)}}", QUIET)
    return [*(Text.assemble(edge, line) for edge, line in zip(edges, lines, strict=True)), axis][:height]


def histogram(counts: Sequence[int], width: int, height: int) -> list[str]:
    """Return `height` lines of `width` columns: bars, scaled to the highest; every count above 0 is visible.

    Neighbouring counts are added if there are more of them than columns.
    """
    joined = -(-len(counts) // width)
    sums = np.add.reduceat(np.asarray(counts, dtype=np.float64), np.arange(0, len(counts), joined))
    eighths = np.ceil(sums / max(sums.max(), 1) * height * 8).astype(int)
    across = eighths[np.arange(width) * len(sums) // width]
    rows = [np.clip(across - 8 * below, 0, 8).tolist() for below in reversed(range(height))]
    return ["".join(_EIGHTHS[eighth] for eighth in row) for row in rows]


def bar(part: float, width: int, style: str) -> Text:
    """Return a bar of which the fraction `part`, from 0 to 1, is filled."""
    halves = round(2 * width * min(max(part, 0.0), 1.0))
    done = "━" * (halves // 2) + "╸" * (halves % 2)
    return Text.assemble((done, style), ("━" * (width - len(done)), "grey23"))


def _range_of(values: Floats) -> tuple[float, float]:
    """Return minimum and maximum, slightly widened if they are equal."""
    low, high = float(values.min()), float(values.max())
    return (low, high) if high > low else (low - max(abs(low), 1) / 2, high + max(abs(high), 1) / 2)


def _cells(points: Sequence[Point], greatest_x: float, low: float, high: float, columns: int, rows: int) -> list[str]:
    """Return the curve as `rows` strings of braille."""
    dots = np.zeros((rows * 4, columns * 2), dtype=np.bool_)
    if points:
        x, y = np.array(points, dtype=np.float64).T
        there, means = _means_by_column(np.minimum(x / greatest_x, 1.0), y, columns * 2)
        across = np.arange(there[0], there[-1] + 1)
        heights = (high - np.interp(across, there, means)) / (high - low)
        down = np.rint(heights * (rows * 4 - 1)).astype(int)
        for column, here, before in zip(across.tolist(), down.tolist(), [down[0], *down.tolist()], strict=False):
            first, last = sorted((here, before + (here > before) - (here < before)))
            dots[first : last + 1, column] = True
    weights = (dots.reshape(rows, 4, columns, 2) * _DOTS[None, :, None, :]).sum(axis=(1, 3))
    return ["".join(chr(0x2800 + weight) if weight else " " for weight in row) for row in weights.tolist()]


def _means_by_column(x: Floats, y: Floats, columns: int) -> tuple[NDArray[np.int64], Floats]:
    """Return the columns that contain points, and the mean of the points in each; x is a fraction of the width."""
    column = np.rint(x * (columns - 1)).astype(np.int64)
    counts = np.bincount(column, minlength=columns)
    there = np.flatnonzero(counts)
    return there, np.bincount(column, weights=y, minlength=columns)[there] / counts[there]


def _place(mark: Point, greatest_x: float, low: float, high: float, columns: int, rows: int) -> tuple[int, int]:
    """Return the column and row of a mark's character."""
    x = round(mark[0] / greatest_x * (columns * 2 - 1)) // 2
    y = round((high - mark[1]) / (high - low) * (rows * 4 - 1)) // 4
    return x, y


def _curve_line(cells: str, marked: set[int]) -> Text:
    text = "".join(MARK if x in marked else cell for x, cell in enumerate(cells))
    line = Text(text, CURVE_STYLE)
    for x in marked:
        line.stylize(MARK_STYLE, x, x + 1)
    return line


def _edges(labels: list[str], margin: int, rows: int) -> list[Text]:
    """Return the axis to the left of each row, labelled with the maximum at the top and the minimum at the bottom."""
    texts = {0: labels[0], rows - 1: labels[1]} if rows > 1 else {0: labels[0]}
    return [
        Text(f"{texts[row]:>{margin - 2}} ┤" if row in texts else f"{'':>{margin - 2}} │", QUIET) for row in range(rows)
    ]
