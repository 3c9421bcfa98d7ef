"""What a person sees while a run goes on: a panel that renews itself, or plain lines where there is no terminal.

It only shows rows; it counts and stores nothing that the run depends on.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self

import numpy as np
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

_BARS = "▁▂▃▄▅▆▇█"
_SPARKS = 30  # bars of the sparkline, over the whole run
_WIDTH = 100  # columns, at most: figures that are far apart are hard to read
_DASH = "–"
_REDRAW_SECONDS = 0.25


class LastingConsole(Console):
    """A reader that goes away, as in `dpsr-apex train … | head`, ends what is shown but not the run."""

    def on_broken_pipe(self) -> None:
        """Show nothing from now on."""
        with contextlib.suppress(SystemExit):
            super().on_broken_pipe()


class LiveView:
    """Shows a run of `total_steps` transitions. Rows may lack any key: what is not known yet is a dash."""

    def __init__(self, total_steps: int, console: Console | None = None, title: str = "") -> None:
        self._total_steps = total_steps
        self._title = title
        self._console = console or LastingConsole()
        self._row: dict[str, Any] = {"t": 0}
        self._returns: list[float] = []
        self._drawn_at = -math.inf
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

    def update(self, row: Mapping[str, Any]) -> None:
        """Show a new row of metrics: one line of its own where there is no terminal."""
        self._row.update({name: value for name, value in row.items() if value is not None})
        if (latest := row.get("return_mean")) is not None:
            self._returns.append(latest)
        if self._live:
            self._draw()
        else:
            self._print(_plain_line(self._row, self._total_steps))

    def advance(self, t: int) -> None:
        """Move the clock between two rows. Cheap enough to call at every step; without a terminal it does nothing."""
        if self._live and time.monotonic() - self._drawn_at > _REDRAW_SECONDS:
            self._row["t"] = t
            self._draw()

    def note(self, text: str) -> None:
        """Say something that stays to be read: a checkpoint was saved, the disk is full."""
        self._print(text)

    def _print(self, text: str) -> None:
        encoding = self._console.encoding
        text = text.encode(encoding, "replace").decode(encoding)
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)
        self._console.file.flush()

    def _draw(self) -> None:
        if self._live:
            self._live.update(_panel(self._row, self._total_steps, self._returns, self._title), refresh=True)
            self._drawn_at = time.monotonic()


def _can_redraw(console: Console) -> bool:
    return console.is_terminal and not console.is_dumb_terminal and not console.options.ascii_only


def _plain_line(row: Mapping[str, Any], total_steps: int) -> str:
    parts = [
        f"t {_whole(row, 't')}/{total_steps:,}",
        f"return {_number(row, 'return_mean')} best {_number(row, 'return_best')}",
        f"evaluation {_number(row, 'evaluation_mean')}" if "evaluation_mean" in row else "",
        f"epsilon {_number(row, 'epsilon')}",
        f"fill {_share(row, 'fill')}",
        f"rounds {_rounds(row, ', ')}" if row.get("rounds_opened") else "",
        f"loss {_number(row, 'loss')}",
        f"{_number(row, 'steps_per_second')} steps/s",
        f"{_number(row, 'updates_per_second')} updates/s",
        f"actors {_whole(row, 'actors')}" if "actors" in row else "",
        f"{_time_left(row, total_steps)} left",
    ]
    return " | ".join(part for part in parts if part).replace(_DASH, "-")


def _panel(row: Mapping[str, Any], total_steps: int, returns: Sequence[float], title: str) -> RenderableType:
    return Panel(
        Group(_progress(row, total_steps), Text(), _figures(row, returns)),
        title=Text(title or "dpsr-apex", style="bold"),
        title_align="left",
        border_style="cyan",
        padding=(0, 1),
        width=_WIDTH,
    )


def _progress(row: Mapping[str, Any], total_steps: int) -> RenderableType:
    line = Table.grid(padding=(0, 2), expand=True)
    line.add_column(ratio=1)
    for _ in range(3):
        line.add_column(justify="right", no_wrap=True)
    line.add_row(
        ProgressBar(total_steps, row["t"], complete_style="cyan", finished_style="green"),
        f"{row['t']:,} / {total_steps:,}",
        f"{row['t'] / total_steps:.1%}",
        f"{_time_left(row, total_steps)} left",
    )
    return line


def _figures(row: Mapping[str, Any], returns: Sequence[float]) -> RenderableType:
    lines: list[tuple[str, str | Text, str, str]] = [
        (
            "return",
            f"{_number(row, 'return_mean')} mean · {_number(row, 'return_best')} best",
            "steps/s",
            "steps_per_second",
        ),
        ("", _sparkline(returns), "updates/s", "updates_per_second"),
        ("episodes", _whole(row, "episodes"), "evaluation", "evaluation_mean"),
        ("epsilon", _number(row, "epsilon"), "loss", "loss"),
        ("replay", f"{_share(row, 'fill')} full · {_whole(row, 'stored')} stored", "mean Q", "mean_q"),
        ("rounds", _rounds(row, " · "), "recycled", "recycled"),
    ]
    if "actors" in row:
        waits = f"{_whole(row, 'actors')} · the learner waits {_share(row, 'learner_waiting')} of the time"
        lines.append(("actors", waits, "steps/update", "steps_per_update"))
    figures = Table.grid(padding=(0, 2), expand=True)
    figures.add_column(style="dim", no_wrap=True)
    figures.add_column(ratio=1, no_wrap=True)
    figures.add_column(style="dim", no_wrap=True)
    figures.add_column(justify="right", min_width=9, no_wrap=True)
    for label, value, other, key in lines:
        figures.add_row(label, value, other, Text(_number(row, key), style="bold"))
    return figures


def _sparkline(returns: Sequence[float]) -> Text:
    if not returns:
        return Text("no episode has ended yet", style="dim")
    means = np.array([part.mean() for part in np.array_split(returns, min(len(returns), _SPARKS))])
    heights = (means - means.min()) / max(float(np.ptp(means)), 1e-12) * (len(_BARS) - 1)
    return Text("".join(_BARS[round(height)] for height in heights), style="green")


def _rounds(row: Mapping[str, Any], separator: str) -> str:
    return separator.join(f"{_whole(row, f'rounds_{what}')} {what}" for what in ("opened", "closed", "expired"))


def _number(row: Mapping[str, Any], name: str) -> str:
    value = row.get(name)
    if value is None:
        return _DASH
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def _whole(row: Mapping[str, Any], name: str) -> str:
    return f"{row[name]:,}" if name in row else _DASH


def _share(row: Mapping[str, Any], name: str) -> str:
    return f"{row[name]:.0%}" if name in row else _DASH


def _time_left(row: Mapping[str, Any], total_steps: int) -> str:
    """As h:mm:ss."""
    if not (speed := row.get("steps_per_second")):
        return _DASH
    minutes, seconds = divmod(round(max(total_steps - row["t"], 0) / speed), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{seconds:02d}"
