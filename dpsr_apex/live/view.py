"""What a person sees while a run goes on: a screen that renews itself, or plain lines where there is no terminal.

It only shows rows and stats; it counts and stores nothing that the run depends on.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections import deque
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Any, NamedTuple, Self

from rich.console import Console
from rich.live import Live

from dpsr_apex.console import make_console
from dpsr_apex.live.figures import Row, plain_line
from dpsr_apex.live.layout import Screen
from dpsr_apex.live.panels import Known
from dpsr_apex.live.plots import Point

REDRAW_SECONDS = 0.25
DRAWING_SHARE = 0.01  # of the processor's time, at most
SPEED_SECONDS = 10.0  # over which an actor's speed is measured
STILL_SECONDS = 3.0  # after which an actor that has said nothing new is slowing down
MOST_POINTS = 4_000  # of the curve: more than any terminal has columns


class LastingConsole(Console):
    """A reader that goes away, as in `dpsr-apex train … | head`, ends what is shown but not the run."""

    def on_broken_pipe(self) -> None:
        """Show nothing from now on."""
        with contextlib.suppress(SystemExit):
            super().on_broken_pipe()


class LiveView:
    """Shows a run of `total_steps` transitions. Rows may lack any key: what is not known yet is a dash."""

    def __init__(self, total_steps: int, console: Console | None = None, title: str = "") -> None:
        self._known = Known(title or "dpsr-apex", total_steps)
        self._console = console or make_console(LastingConsole)
        self._screen = Screen(self._known)
        self._speeds = Speeds()
        self._heard = -1  # clock of the newest row
        self._due_at = -math.inf  # when it may be drawn again
        self._live = Live(console=self._console, auto_refresh=False) if _can_redraw(self._console) else None

    def __enter__(self) -> Self:
        if self._live:
            self._live.start()
            self._draw()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live:
            self._draw()
            self._live.stop()

    def recall(self, rows: Iterable[Row], evaluations: Iterable[Row]) -> None:
        """Take what was logged before: it belongs to the curve, but is no news."""
        for row in rows:
            self._take(row)
        for evaluation in evaluations:
            self._add(self._known.evaluations, evaluation["t"], evaluation["mean"])
        self._draw()

    def update(self, row: Row) -> None:
        """Show a new row of metrics: one line of its own where there is no terminal. The same one again is no news."""
        self._hear(row)
        self._draw_when_due()

    def evaluated(self, row: Row) -> None:
        """Mark an evaluation in the curve: its `t` and its `mean`."""
        self._add(self._known.evaluations, row["t"], row["mean"])

    def show(self, stats: Mapping[str, Any]) -> None:
        """Show what the head of a run of many processes says, its newest row included."""
        self._screen.renew()
        self._known.stats = dict(stats)
        self._known.speeds = self._speeds.look(stats["actors"], time.monotonic())
        if stats["row"]:
            self._hear(stats["row"])
        self.advance(stats["t"])

    def advance(self, t: int) -> None:
        """Move the clock between two rows. Cheap enough to call at every step; without a terminal it does nothing."""
        if self._live:
            self._known.row["t"] = t
            self._draw_when_due()

    def note(self, text: str) -> None:
        """Say something that stays to be read: a checkpoint was saved, the disk is full."""
        self._print(text)

    def _hear(self, row: Row) -> None:
        if row["t"] == self._heard:
            return
        self._take(row)
        if not self._live:
            self._print(plain_line(self._known.row, self._known.total_steps))

    def _take(self, row: Row) -> None:
        self._heard = row["t"]
        self._known.row.update({name: value for name, value in row.items() if value is not None})
        self._add(self._known.returns, row["t"], row.get("return_mean"))

    def _add(self, points: list[Point], t: int, value: float | None) -> None:
        """One more point; a run that has gone back to a checkpoint goes another way from there."""
        while points and points[-1][0] >= t:
            points.pop()
        self._screen.renew()
        if value is not None:
            points.append((t, value))
        if len(points) > MOST_POINTS:
            points[:] = [((a + b) / 2, (c + d) / 2) for (a, c), (b, d) in zip(points[::2], points[1::2], strict=False)]

    def _print(self, text: str) -> None:
        self._console.print(text, emoji=False, markup=False, highlight=False, soft_wrap=True)
        self._console.file.flush()

    def _draw_when_due(self) -> None:
        if self._live and time.monotonic() >= self._due_at:
            self._draw()

    def _draw(self) -> None:
        if self._live:
            began = time.thread_time()
            self._live.update(self._screen, refresh=True)
            cost = time.thread_time() - began
            self._due_at = time.monotonic() + max(REDRAW_SECONDS, cost / DRAWING_SHARE)


class Said(NamedTuple):
    """What an actor had sent in all, when that was heard first."""

    at: float  # seconds
    sent: int


class Speeds:
    """How fast actors are, by what each says about once a second: the transitions that it has sent in all."""

    def __init__(self) -> None:
        self._said: dict[str, deque[Said]] = {}

    def look(self, actors: Iterable[Mapping[str, Any]], now: float) -> dict[str, float]:
        """Steps per second by name; those that have spoken once only are not in it."""
        self._said = {actor["name"]: self._hear(actor, now) for actor in actors}
        return {name: _speed(said, now) for name, said in self._said.items() if len(said) > 1}

    def _hear(self, actor: Mapping[str, Any], now: float) -> deque[Said]:
        said = self._said.get(actor["name"], deque())
        if said and actor["sent"] < said[-1].sent:  # another process of the same name
            said = deque()
        if not said or actor["sent"] > said[-1].sent:
            said.append(Said(now, actor["sent"]))
        while len(said) > 2 and now - said[0].at > SPEED_SECONDS:
            said.popleft()
        return said


def _speed(said: deque[Said], now: float) -> float:
    until = now if now - said[-1].at > STILL_SECONDS else said[-1].at
    return (said[-1].sent - said[0].sent) / (until - said[0].at)


def _can_redraw(console: Console) -> bool:
    return console.is_terminal and not console.is_dumb_terminal and not console.options.ascii_only
