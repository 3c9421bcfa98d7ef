"""The live view of a run: a screen that is redrawn in place, or plain lines without a terminal.

It only shows rows and statistics; the run does not depend on anything in it.
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

from dpsr_apex import timeouts
from dpsr_apex.live.console import make_console
from dpsr_apex.live.layout import Screen
from dpsr_apex.live.pace import Pace
from dpsr_apex.live.panels import Known
from dpsr_apex.live.plots import Point
from dpsr_apex.live.words import plain_line
from dpsr_apex.record.progress import Goal
from dpsr_apex.wire.messages import Stats
from dpsr_apex.wire.statistics import ActorStats

Row = Mapping[str, Any]

DRAWING_SHARE = 0.01  # maximum fraction of CPU time
MOST_POINTS = 4_000  # of the curve; more than any terminal has columns


class LastingConsole(Console):
    """A console whose output pipe may be closed, as in `dpsr-apex train … | head`, without ending the run."""

    def on_broken_pipe(self) -> None:
        """Print nothing from now on."""
        with contextlib.suppress(SystemExit):
            super().on_broken_pipe()


class LiveView:
    """Shows a run that ends at `goal`. Rows may lack any key: missing values are shown as a dash.

    `is_alone`: whether it is a run in a single process, which has no statistics.
    """

    def __init__(self, goal: Goal, console: Console | None = None, title: str = "", is_alone: bool = True) -> None:
        self._known = Known(title or "dpsr-apex", goal, is_alone=is_alone)
        self._pace = Pace(goal)
        self._console = console or make_console(LastingConsole)
        self._screen = Screen(self._known)
        self._speeds = Speeds()
        self._shown_t = -1  # clock of the newest row
        self._began_at = math.inf  # time.monotonic() minus the duration of the run, if this view has seen it start
        self._due_at = -math.inf  # earliest time of the next redraw
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
            if self._known.stats:  # the last ones are from before the end, when no process waits any more
                self._known.stats = self._known.stats._replace(waiting=[])
                self._screen.renew()
            self._draw()
            self._live.stop()

    def recall(self, rows: Iterable[Row], evaluations: Iterable[Row]) -> None:
        """Add earlier rows and evaluations to the curve, without printing them."""
        for row in rows:
            self._take(row)
        for evaluation in evaluations:
            self.evaluated(evaluation)
        self._draw()

    def start_clock(self) -> None:
        """Show the time since now, or since the rows that were recalled, as the duration of the run.

        Rows, whose processes started later than this one, do not turn it back.
        """
        self._began_at = time.monotonic() - self._known.row.get("elapsed_seconds", 0.0)
        self._known.began_at = self._began_at

    def update(self, row: Row, age: float = 0.0) -> None:
        """Show a row written `age` seconds ago, as a line of text without a terminal; ignore a repeated row."""
        self._show_row(row, age)
        self._draw_when_due()

    def refresh(self) -> None:
        """Redraw if that is due, because time passes even if nothing else happens."""
        self._draw_when_due()

    def evaluated(self, row: Row) -> None:
        """Show an evaluation as the newest, and mark it in the curve: its `t` and its `mean`."""
        self._known.row["evaluation_mean"] = row["mean"]
        self._add(self._known.evaluations, row["t"], row["mean"])

    def show(self, stats: Stats) -> None:
        """Show the statistics of a multi-process run, including its newest row."""
        self._screen.renew()
        self._known.stats = stats
        self._known.speeds = self._speeds.look(stats.actors, time.monotonic())
        if stats.row:
            self._show_row(stats.row)
        self.advance(stats.t)

    def advance(self, t: int, environment_steps: int | None = None) -> None:
        """Move the clock between two rows. Cheap enough to call at every step; does nothing without a terminal."""
        if self._live:
            self._known.row["t"] = t
            if environment_steps is not None:
                self._known.row["environment_steps"] = environment_steps
            self._draw_when_due()

    def note(self, text: str) -> None:
        """Print a line that stays on the screen, for example that the disk is full."""
        self._print(text)

    def _show_row(self, row: Row, age: float = 0.0) -> None:
        if row["t"] == self._shown_t:
            return
        self._take(row)
        if "elapsed_seconds" in row:
            self._known.began_at = min(self._began_at, time.monotonic() - row["elapsed_seconds"] - age)
        if not self._live:
            self._print(plain_line(self._known.row, self._known.goal, self._known.pace))

    def _take(self, row: Row) -> None:
        self._shown_t = row["t"]
        known = {name: value for name, value in row.items() if value is not None and name != "evaluation_mean"}
        self._known.row.update(known)
        self._pace.add(row)
        self._known.pace = self._pace.steps_per_second
        self._add(self._known.returns, row["t"], row.get("return_mean"))

    def _add(self, points: list[Point], t: int, value: float | None) -> None:
        """Add a point; drop later points first, which exist if the run went back to a checkpoint."""
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
            self._due_at = time.monotonic() + max(timeouts.REDRAW, cost / DRAWING_SHARE)


class Report(NamedTuple):
    """The total number of transitions that an actor had sent, and when that number was first seen."""

    at: float  # seconds
    sent: int


class Speeds:
    """The speeds of actors, from the totals of sent transitions that they report about once a second."""

    def __init__(self) -> None:
        self._reports: dict[str, deque[Report]] = {}

    def look(self, actors: Iterable[ActorStats], now: float) -> dict[str, float]:
        """Return the steps per second of actors that have reported more than once, by name."""
        self._reports = {actor.name: self._add(actor, now) for actor in actors}
        return {name: _speed(reports, now) for name, reports in self._reports.items() if len(reports) > 1}

    def _add(self, actor: ActorStats, now: float) -> deque[Report]:
        reports = self._reports.get(actor.name, deque())
        if reports and actor.sent < reports[-1].sent:  # another process of the same name
            reports = deque()
        if not reports or actor.sent > reports[-1].sent:
            reports.append(Report(now, actor.sent))
        while len(reports) > 2 and now - reports[0].at > timeouts.SPEED_WINDOW:
            reports.popleft()
        return reports


def _speed(reports: deque[Report], now: float) -> float:
    until = now if now - reports[-1].at > timeouts.SPEED_STALE else reports[-1].at
    return (reports[-1].sent - reports[0].sent) / (until - reports[0].at)


def _can_redraw(console: Console) -> bool:
    return console.is_terminal and not console.is_dumb_terminal and not console.options.ascii_only
