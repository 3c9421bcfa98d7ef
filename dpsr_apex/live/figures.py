"""Numbers of a row as a person reads them; what is not known yet, or is null, is a dash."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Row = Mapping[str, Any]

DASH = "–"


def number(value: float | None) -> str:
    """Three digits, or all before the point."""
    if value is None:
        return DASH
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def short(value: float | None) -> str:
    """Three digits, with k or M for thousands or millions."""
    if value is None or abs(value) < 1000:
        return number(value)
    size, letter = (1e6, "M") if abs(value) >= 999_500 else (1e3, "k")
    return f"{value / size:.3g}{letter}"


def whole(value: int | None) -> str:
    """All digits, in groups of three."""
    return DASH if value is None else f"{value:,}"


def share(value: float | None) -> str:
    """In per cent."""
    return DASH if value is None else f"{value:.0%}"


def duration(seconds: float | None) -> str:
    """As h:mm:ss."""
    if seconds is None:
        return DASH
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"


def time_left(row: Row, total_steps: int) -> str:
    """As h:mm:ss, by the speed of the last interval."""
    speed = row.get("steps_per_second")
    return duration(max(total_steps - row["t"], 0) / speed) if speed else DASH


def plain_line(row: Row, total_steps: int) -> str:
    """One line of ASCII, for logs."""
    rounds = ", ".join(f"{whole(row.get(f'rounds_{what}'))} {what}" for what in ("opened", "closed", "expired"))
    parts = [
        f"t {whole(row.get('t'))}/{total_steps:,}",
        f"return {number(row.get('return_mean'))} best {number(row.get('return_best'))}",
        f"evaluation {number(row['evaluation_mean'])}" if "evaluation_mean" in row else "",
        f"epsilon {number(row.get('epsilon'))}",
        f"fill {share(row.get('fill'))}",
        f"rounds {rounds}" if row.get("rounds_opened") else "",
        f"loss {number(row.get('loss'))}",
        f"{number(row.get('steps_per_second'))} steps/s",
        f"{number(row.get('updates_per_second'))} updates/s",
        f"actors {whole(row['actors'])}" if "actors" in row else "",
        f"{time_left(row, total_steps)} left",
    ]
    return " | ".join(part for part in parts if part).replace(DASH, "-")
