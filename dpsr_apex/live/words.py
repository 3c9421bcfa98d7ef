"""Statistics and rows of metrics as text for people. No code parses this text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, assert_never

from dpsr_apex.formatting import DASH, counted, duration, number, percent, whole
from dpsr_apex.record.progress import Goal
from dpsr_apex.wire.statistics import (
    ActorsMissing,
    ActorsPaused,
    JournalBlocked,
    LearnerMissing,
    LearnerPaused,
    RoundsOpen,
    UpdatesOwed,
    Wait,
)


def describe_waits(waits: Iterable[Wait]) -> str:
    """Describe which process waits for what; empty if none does."""
    return ". ".join(map(_describe, waits))


def _describe(wait: Wait) -> str:
    match wait:
        case LearnerMissing(seconds):
            return "No learner has joined yet" if seconds is None else f"Learner silent for {seconds:.0f} s"
        case ActorsMissing(seconds):
            return "No actor has joined yet" if seconds is None else f"Actors silent for {seconds:.0f} s"
        case ActorsPaused(behind, limit):
            return f"Actors paused: the learner is {counted(behind, 'update')} behind (limit {limit:,})"
        case LearnerPaused(missing):
            return f"Learner paused: the next update needs {counted(missing, 'more transition')}"
        case UpdatesOwed(updates):
            return f"{counted(updates, 'update')} left"
        case RoundsOpen(rounds):
            return f"{counted(rounds, 'recycling round')} still open"
        case JournalBlocked(reason):
            return reason
        case _:
            assert_never(wait)


def time_left(row: Mapping[str, Any], goal: Goal, pace: float | None) -> str:
    """Return the time to the end of the run at this number of the goal's steps per second; a dash for None."""
    return duration(max(goal.steps - goal.done(row), 0) / pace) if pace else DASH


def plain_line(row: Mapping[str, Any], goal: Goal, pace: float | None) -> str:
    """Return a row as one line of ASCII, for logs; missing and null values are shown as a dash."""
    rounds = ", ".join(f"{whole(row.get(f'rounds_{what}'))} {what}" for what in ("opened", "closed", "expired"))
    parts = [
        _progress(row, goal),
        f"return {_of(row, 'return_mean')} best {_of(row, 'return_best')}",
        f"evaluation {_of(row, 'evaluation_mean')}" if "evaluation_mean" in row else "",
        f"epsilon {_of(row, 'epsilon')}",
        f"fill {percent(row.get('fill'))}",
        f"rounds {rounds}" if row.get("rounds_opened") else "",
        f"loss {_of(row, 'loss')}",
        f"{_of(row, 'steps_per_second')} steps/s",
        f"{_of(row, 'updates_per_second')} updates/s",
        f"actors {whole(row['actors'])}" if "actors" in row else "",
        f"{time_left(row, goal, pace)} left",
    ]
    return " | ".join(part for part in parts if part).replace(DASH, "-")


def _progress(row: Mapping[str, Any], goal: Goal) -> str:
    t = f"t {whole(row.get('t'))}"
    return f"{t}/{goal.steps:,}" if goal.metric == "t" else f"{t} | {goal.unit} {goal.done(row):,}/{goal.steps:,}"


def _of(row: Mapping[str, Any], key: str) -> str:
    return number(row.get(key), 3)
