"""The screen: which sections there is room for, their frames, and one or two columns of them.

What comes out is never broader or higher than the terminal; what there is no room for is left out, the least important
first.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from rich.console import Console, ConsoleOptions, RenderResult
from rich.segment import Segment
from rich.text import Text

from dpsr_apex.live.panels import (
    Known,
    Section,
    actors,
    age_of_run,
    learner,
    progress,
    rate_limiter,
    recycling,
    replay,
    returns,
)

TWO_COLUMNS = 80  # at least so broad
NARROWEST = 30  # below that there is one line, without a frame
BROADEST = 132  # figures that are far apart are hard to read
TALL = 26  # lines below the head, from which on the curve is as broad as the screen
HIGHEST_CURVE = 16  # lines
EDGES = 2  # lines of a frame
SIDES = 4  # columns of a frame, with the blanks inside
FRAME, TITLE = "bright_black", "bold cyan"


class Screen:
    """All that is known of a run. What is below its head is composed anew only after `renew`, or for another size."""

    def __init__(self, known: Known) -> None:
        self._known = known
        self._size = (0, 0)
        self._body: list[Segment] = []

    def renew(self) -> None:
        """More is known than the clock."""
        self._size = (0, 0)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width, height = console.size
        height -= max(height // 10, 1)  # the last notes stay in sight above it
        if self._size != (width, height):
            self._size = (width, height)
            self._body = list(_rendered(body(self._known, width, height), console))
        yield from _rendered(head(self._known, width, height), console)
        yield from self._body


def head(known: Known, width: int, height: int) -> list[Text]:
    """Which run it is, and how far; in at most so many columns and lines."""
    width = min(width, BROADEST)
    if height < 1 + EDGES or width < NARROWEST:
        return [_cut(progress(known, width), width)][:height]
    return _framed(Text(known.title, TITLE), age_of_run(known), [progress(known, width - SIDES)], width, 1)


def body(known: Known, width: int, height: int) -> list[Text]:
    """All else that there is room for below the head of the same screen."""
    width = min(width, BROADEST)
    return _body(known, width, height - 1 - EDGES) if width >= NARROWEST else []


def _rendered(lines: Iterable[Text], console: Console) -> Iterator[Segment]:
    """Nothing wraps and nothing is measured again."""
    for line in lines:
        yield from line.render(console)
        yield Segment.line()


def _body(known: Known, width: int, height: int) -> list[Text]:
    recycled = [recycling(known)] if known.row.get("rounds_opened") else []
    if width < TWO_COLUMNS:
        sections = [returns(known), learner(known), actors(known), replay(known), *recycled, rate_limiter(known)]
        return _column(sections, width, min(height, _wanted(sections)))
    if height < TALL:
        left = [returns(known), replay(known)]
        right = [actors(known), learner(known), *recycled, rate_limiter(known)]
        return _side_by_side(left, right, width, height)
    top = returns(known)
    left, right = [replay(known), rate_limiter(known)], [actors(known), learner(known), *recycled]
    below = _side_by_side(left, right, width, height - top.wanted - EDGES)
    return [*_column([top], width, min(height - len(below), HIGHEST_CURVE)), *below]


def _side_by_side(left: Sequence[Section], right: Sequence[Section], width: int, height: int) -> list[Text]:
    """Two columns, no higher than one of them wants to be."""
    height = min(height, max(map(_wanted, (left, right))))
    half = width // 2
    columns = _column(left, half, height), _column(right, width - half, height)
    return [Text.assemble(*pair) for pair in zip(*columns, strict=False)]


def _wanted(sections: Iterable[Section]) -> int:
    return sum(section.wanted + EDGES for section in sections)


def _column(sections: Sequence[Section], width: int, height: int) -> list[Text]:
    """Sections one below the other, the most important one first."""
    kept = list(_those_with_room(sections, height))
    lines = []
    for section, inside in zip(kept, _shared_out(kept, height), strict=True):
        drawn = section.draw(width - SIDES, inside)
        lines += _framed(Text(section.title, TITLE), section.aside, drawn, width, inside)
    return lines


def _shared_out(sections: Sequence[Section], height: int) -> list[int]:
    """Lines for each: one after the other gets one more as long as it wants; what nobody wants goes to the first."""
    lines = [section.least for section in sections]
    spare = height - sum(lines) - EDGES * len(lines)
    while spare and (wanting := [place for place, one in enumerate(sections) if lines[place] < one.wanted]):
        for place in wanting[:spare]:
            lines[place] += 1
        spare -= len(wanting[:spare])
    return [lines[0] + spare, *lines[1:]] if lines else []


def _those_with_room(sections: Sequence[Section], height: int) -> Iterator[Section]:
    for section in sections:
        height -= section.least + EDGES
        if height < 0:
            return
        yield section


def _framed(title: Text, aside: Text, lines: Sequence[Text], width: int, height: int) -> list[Text]:
    """A frame of exactly this width around exactly so many lines."""
    inside = width - SIDES
    padded = [*lines, *[Text()] * (height - len(lines))][:height]
    sides = [Text.assemble(("│ ", FRAME), _cut(line, inside), (" │", FRAME)) for line in padded]
    return [_upper_edge(title, aside, width), *sides, Text.assemble((f"╰{'─' * (width - 2)}╯", FRAME))]


def _upper_edge(title: Text, aside: Text, width: int) -> Text:
    """With the aside at its end, where there is room for it."""
    title = _cut(title, min(title.cell_len, width - 6))
    start = Text.assemble(("╭─ ", FRAME), title, (" ", FRAME))
    end = Text.assemble((" ", FRAME), aside, (" ─╮", FRAME)) if aside else Text.assemble(("╮", FRAME))
    if start.cell_len + end.cell_len > width:
        end = Text.assemble(("╮", FRAME))
    return Text.assemble(start, ("─" * (width - start.cell_len - end.cell_len), FRAME), end)


def _cut(line: Text, width: int) -> Text:
    """A copy that takes exactly so many columns."""
    copy = line.copy()
    copy.truncate(width, overflow="ellipsis", pad=True)
    return copy
