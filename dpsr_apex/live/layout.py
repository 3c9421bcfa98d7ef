"""The screen of the live view: sections with frames in one or two columns, as many as fit.

The result is never wider or higher than the terminal: sections that do not fit are omitted, the least important first.
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

TWO_COLUMNS = 80  # minimum width of the terminal for two columns of sections
NARROWEST = 30  # columns; a narrower terminal shows a single line, without a frame
WIDEST = 132  # columns; wider would put numbers too far apart to read
TALL = 26  # minimum number of lines below the head for a curve as wide as the screen
HIGHEST_CURVE = 16  # lines
EDGES = 2  # lines taken by a frame
SIDES = 4  # columns taken by a frame, including its padding
FRAME, TITLE = "bright_black", "bold cyan"


class Screen:
    """The screen as a rich renderable; everything below the head is recomposed only after `renew` or a resize."""

    def __init__(self, known: Known) -> None:
        self._known = known
        self._size = (0, 0)
        self._body: list[Segment] = []

    def renew(self) -> None:
        """Recompose the screen, because more than the clock has changed."""
        self._size = (0, 0)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width, height = console.size
        height -= max(height // 10, 1)  # leaves the last notes visible above it
        if self._size != (width, height):
            self._size = (width, height)
            self._body = list(_rendered(body(self._known, width, height), console))
        yield from _rendered(head(self._known, width, height), console)
        yield from self._body


def head(known: Known, width: int, height: int) -> list[Text]:
    """Return the lines with the run's name and its progress, within this size."""
    width = min(width, WIDEST)
    if height < 1 + EDGES or width < NARROWEST:
        return [_cut(progress(known, width), width)][:height]
    return _framed(Text(known.title, TITLE), age_of_run(known), [progress(known, width - SIDES)], width, 1)


def body(known: Known, width: int, height: int) -> list[Text]:
    """Return all other lines that fit below the head in this size."""
    width = min(width, WIDEST)
    return _body(known, width, height - 1 - EDGES) if width >= NARROWEST else []


def _rendered(lines: Iterable[Text], console: Console) -> Iterator[Segment]:
    """Render lines that already have their final width."""
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
    """Return two columns, as high as the taller one needs."""
    height = min(height, max(map(_wanted, (left, right))))
    half = width // 2
    columns = _column(left, half, height), _column(right, width - half, height)
    return [Text.assemble(*pair) for pair in zip(*columns, strict=False)]


def _wanted(sections: Iterable[Section]) -> int:
    return sum(section.wanted + EDGES for section in sections)


def _column(sections: Sequence[Section], width: int, height: int) -> list[Text]:
    """Return sections one below the other, the most important one first."""
    kept = list(_fitting(sections, height))
    lines = []
    for section, inside in zip(kept, _shared_out(kept, height), strict=True):
        drawn = section.draw(width - SIDES, inside)
        lines += _framed(Text(section.title, TITLE), section.aside, drawn, width, inside)
    return lines


def _shared_out(sections: Sequence[Section], height: int) -> list[int]:
    """Distribute lines over sections: one at a time up to what each wants; the rest goes to the first section."""
    lines = [section.least for section in sections]
    spare = height - sum(lines) - EDGES * len(lines)
    while spare and (wanting := [place for place, one in enumerate(sections) if lines[place] < one.wanted]):
        for place in wanting[:spare]:
            lines[place] += 1
        spare -= len(wanting[:spare])
    return [lines[0] + spare, *lines[1:]] if lines else []


def _fitting(sections: Sequence[Section], height: int) -> Iterator[Section]:
    for section in sections:
        height -= section.least + EDGES
        if height < 0:
            return
        yield section


def _framed(title: Text, aside: Text, lines: Sequence[Text], width: int, height: int) -> list[Text]:
    """Return a frame of exactly this width around exactly `height` lines."""
    inside = width - SIDES
    padded = [*lines, *[Text()] * (height - len(lines))][:height]
    sides = [Text.assemble(("│ ", FRAME), _cut(line, inside), (" │", FRAME)) for line in padded]
    return [_upper_edge(title, aside, width), *sides, Text.assemble((f"╰{'─' * (width - 2)}╯", FRAME))]


def _upper_edge(title: Text, aside: Text, width: int) -> Text:
    """Return the upper edge of a frame, with the aside at its right end if it fits."""
    title = _cut(title, min(title.cell_len, width - 6))
    start = Text.assemble(("╭─ ", FRAME), title, (" ", FRAME))
    end = Text.assemble((" ", FRAME), aside, (" ─╮", FRAME)) if aside else Text.assemble(("╮", FRAME))
    if start.cell_len + end.cell_len > width:
        end = Text.assemble(("╮", FRAME))
    return Text.assemble(start, ("─" * (width - start.cell_len - end.cell_len), FRAME), end)


def _cut(line: Text, width: int) -> Text:
    """Return a copy that is exactly `width` columns wide."""
    copy = line.copy()
    copy.truncate(width, overflow="ellipsis", pad=True)
    return copy
