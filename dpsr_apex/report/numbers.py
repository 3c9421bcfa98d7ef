"""Numbers as people read them on the page. What goes into CSV files is written in full instead."""

from __future__ import annotations

import math
from collections.abc import Callable

from dpsr_apex.report.statistics import Estimate

MISSING = "–"


def plain(number: float | None) -> str:
    """Three or four digits that count, thousands parted; a dash for what is not known."""
    if number is None or not math.isfinite(number):
        return MISSING
    size = abs(number)
    if size >= 1_000 or number == round(number):
        return f"{number:,.0f}"
    if size >= 100:
        return f"{number:.1f}"
    return f"{number:.2f}" if size >= 0.1 else f"{number:.3g}"


def probability(number: float | None) -> str:
    """Two decimals, always."""
    return MISSING if number is None else f"{number:.2f}"


def interval(estimate: Estimate, shown: Callable[[float | None], str] = plain) -> str:
    """A figure's interval; a dash where seeds were too few for one."""
    return f"{shown(estimate.low)} – {shown(estimate.high)}" if estimate.has_interval else MISSING


def share(part: float, whole: float) -> str:
    """A part in percent."""
    return f"{100 * part / whole:.1f}%" if whole else MISSING


def duration(seconds: float) -> str:
    """A wall-clock time in its two largest units."""
    minutes, left = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours >= 48:
        return f"{hours // 24} d {hours % 24} h"
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {left} s" if minutes else f"{left} s"


def counted(count: int, noun: str) -> str:
    """A number of things, such as "1 run" or "2 runs"."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
