"""Format numbers, durations and commands for people. CSV files contain all digits instead."""

from __future__ import annotations

import math
import re
import shlex
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

DASH = "–"  # for an unknown value

_DAYS = 48  # hours; longer durations are given in days


def number(value: float | None, digits: int = 4) -> str:
    """Format with `digits` significant digits, or as an integer from 1,000 on; a dash for None and NaN."""
    if value is None or not math.isfinite(value):
        return DASH
    text = f"{value:.{digits}g}"
    return f"{value:,.0f}" if abs(float(text)) >= 1000 or "e+" in text else text


def signed(value: float) -> str:
    """Format a number with its sign (U+2212 for minus)."""
    return f"{'+' if value >= 0 else '−'}{number(abs(value))}"


def short(value: float | None) -> str:
    """Format with three significant digits, and k or M for thousands or millions; a dash for None and NaN."""
    if value is None or not math.isfinite(value) or abs(value) < 999.5:
        return number(value, 3)
    size, letter = (1e6, "M") if abs(value) >= 999_500 else (1e3, "k")
    return f"{value / size:.3g}{letter}"


def whole(value: int | None) -> str:
    """Format an integer with thousands separators."""
    return DASH if value is None else f"{value:,}"


def percent(share: float | None, decimals: int = 0) -> str:
    """Format a fraction from 0 to 1 as a percentage."""
    return DASH if share is None else f"{share:.{decimals}%}"


def probability(value: float | None) -> str:
    """Format with exactly two decimals."""
    return DASH if value is None else f"{value:.2f}"


def interval(low: float, high: float, show: Callable[[float | None], str] = number) -> str:
    """Format both ends of an interval; a dash if one of them is not finite."""
    return f"{show(low)} – {show(high)}" if math.isfinite(low) and math.isfinite(high) else DASH


def duration(seconds: float | None) -> str:
    """Format seconds as h:mm:ss; two days or more as days and hours; a dash for None, NaN and infinity."""
    if seconds is None or not math.isfinite(seconds):
        return DASH
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours // 24} d {hours % 24} h" if hours >= _DAYS else f"{hours}:{minutes:02d}:{rest:02d}"


def counted(count: int, noun: str) -> str:
    """Format a count with its noun, such as "1 run" or "2 runs"."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def in_order(name: str) -> list[tuple[float, str]]:
    """Return a key that sorts names by the numbers in them: depth 3 before depth 10."""
    parts = re.findall(r"\d+(?:\.\d+)?|\D+", name)
    return [(float(part), "") if part[0].isdigit() else (math.inf, part) for part in parts]


def evaluation_line(t: int, mean: float, median: float, episodes: int) -> str:
    """Describe one evaluation of the weights of clock t."""
    return f"evaluation at t = {t:,}: mean {mean:.1f}, median {median:.1f} over {counted(episodes, 'episode')}"


def pasteable(*words: str | Path) -> str:
    """Return a `dpsr-apex` command with these arguments, quoted so that it can be pasted into the same shell."""
    return " ".join([_command(), *(shlex.quote(str(word)) for word in words)])


def _command() -> str:
    """Return the command name with which this process was started; its own name in a user's program or a notebook."""
    name = Path(sys.argv[0]).name
    if name == "__main__.py":
        return "python -m dpsr_apex.cli"
    if name != "dpsr-apex":
        return "dpsr-apex"
    return name if shutil.which(name) else shlex.quote(sys.argv[0])
