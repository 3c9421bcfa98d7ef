from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpsr_apex.live.plots import MARK, Point, bar, curve, histogram

EIGHTHS = " ▁▂▃▄▅▆▇█"


def dots(line: str) -> list[list[bool]]:
    """Four rows of the dots of a line of braille, by the standard's own numbering."""
    order = [[0, 3], [1, 4], [2, 5], [6, 7]]
    bits = [ord(character) - 0x2800 if character != " " else 0 for character in line]
    return [[bool(of >> order[row][side] & 1) for of in bits for side in (0, 1)] for row in range(4)]


def drawn(
    points: list[Point], width: int, height: int, marks: list[Point] | None = None
) -> tuple[list[str], list[str]]:
    """The labels at the left of each line, and what is drawn; the axis below is left out."""
    lines = [line.plain for line in curve(points, marks or [], width, height)]
    assert len(lines) == height
    assert max(map(len, lines)) <= width
    edge = max(lines[0].find("┤"), 0) + 1
    return [line[:edge] for line in lines[:-1]], [line[edge:] for line in lines[:-1]]


def heights(points: list[Point], width: int, height: int) -> list[list[int]]:
    """For every column of dots, the rows that are set, from the top."""
    _, lines = drawn(points, width, height)
    rows = [row for line in lines for row in dots(line)]
    return [[y for y, row in enumerate(rows) if row[x]] for x in range(len(rows[0]))]


def test_a_rising_line_goes_from_the_lower_left_to_the_upper_right() -> None:
    columns = heights([(0, 0.0), (100, 10.0)], 25, 6)
    assert columns[0] == [19]
    assert columns[-1][0] == 0
    highest = [min(column) for column in columns]
    assert highest == sorted(highest, reverse=True)


def test_the_ends_of_both_axes_are_labelled() -> None:
    lines = [line.plain for line in curve([(0, -2.5), (12_400, 30.0)], [], 40, 6)]
    assert lines[0].startswith("  30 ┤")
    assert lines[4].startswith("-2.5 ┤")
    assert lines[5].split() == ["0", "t", "=", "12,400"]


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=200), st.integers(24, 80), st.integers(2, 12))
def test_a_curve_has_no_gap_and_passes_by_the_mean_of_every_column(
    values: list[float], width: int, height: int
) -> None:
    points = [(float(x), value) for x, value in enumerate(values, start=1)]
    columns = heights(points, width, height)
    first = next(x for x, column in enumerate(columns) if column)
    for before, here in zip(columns[first:], columns[first + 1 :], strict=False):
        assert here == list(range(min(here), max(here) + 1))
        assert min(abs(a - b) for a in before for b in here) <= 1
    low, high = min(values), max(values)
    if high == low:
        return
    for x, column in enumerate(columns):
        inside = [v for t, v in points if np.rint(t / max(len(values), 1) * (len(columns) - 1)) == x]
        if inside:
            expected = np.rint((high - np.mean(inside)) / (high - low) * (4 * (height - 1) - 1))
            assert min(abs(y - expected) for y in column) <= 1


def test_equal_values_are_a_level_line_in_the_middle() -> None:
    columns = heights([(0, 5.0), (10, 5.0)], 30, 6)
    assert len({tuple(column) for column in columns}) == 1
    assert 8 <= columns[0][0] <= 11


def test_evaluations_are_marked_where_they_are() -> None:
    _, lines = drawn([(0, 0.0), (100, 1.0)], 26, 6, marks=[(100, 0.0), (0, 1.0)])
    assert lines[0][0] == MARK
    assert lines[-1][-1] == MARK
    assert sum(line.count(MARK) for line in lines) == 2


def test_marks_alone_are_a_plot_too() -> None:
    _, lines = drawn([], 26, 6, marks=[(50, 3.0)])
    assert sum(line.count(MARK) for line in lines) == 1


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=40), st.integers(1, 80), st.integers(1, 4))
def test_a_histogram_is_as_high_as_its_counts(counts: list[int], width: int, height: int) -> None:
    lines = histogram(counts, width, height)
    assert [len(line) for line in lines] == [width] * height
    columns = [sum(EIGHTHS.index(line[x]) for line in lines) for x in range(width)]
    joined = -(-len(counts) // width)
    groups = [sum(counts[i : i + joined]) for i in range(0, len(counts), joined)]
    for x, eighths in enumerate(columns):
        of = groups[x * len(groups) // width]
        assert eighths == int(np.ceil(of / max(*groups, 1) * height * 8))
        assert (eighths > 0) == (of > 0)


def test_every_bar_of_a_histogram_can_be_seen_where_there_is_room() -> None:
    assert histogram([1, 2, 0, 4], 8, 1) == ["▂▂▄▄  ██"]
    assert histogram([4, 2], 2, 2) == ["█ ", "██"]


@pytest.mark.parametrize(
    ("part", "expected"), [(0.0, "━━━━"), (0.5, "━━━━"), (0.625, "━━╸━"), (1.0, "━━━━"), (7, "━━━━")]
)
def test_a_bar_has_its_width(part: float, expected: str) -> None:
    assert bar(part, 4, "cyan").plain == expected
