"""The recent speed of a run, from its rows of metrics, for the time left."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any, NamedTuple

from dpsr_apex import timeouts
from dpsr_apex.record.progress import Goal


class _Point(NamedTuple):
    seconds: float  # since the start of the run
    steps: int  # towards its goal


class Pace:
    """The speed over the last minutes of training; steps before the first update are much faster, and do not count."""

    def __init__(self, goal: Goal) -> None:
        self._goal = goal
        self._points: deque[_Point] = deque()

    def add(self, row: Mapping[str, Any]) -> None:
        """Add a row of metrics; rows of a run that has gone back to a checkpoint replace the later ones."""
        seconds = row.get("elapsed_seconds")
        if seconds is None or row.get("updates") == 0:
            return
        point = _Point(seconds, self._goal.done(row))
        while self._points and (self._points[-1].steps >= point.steps or self._points[-1].seconds >= seconds):
            self._points.pop()
        self._points.append(point)
        while len(self._points) > 2 and seconds - self._points[1].seconds >= timeouts.PACE_WINDOW:
            self._points.popleft()

    @property
    def steps_per_second(self) -> float | None:
        """Steps of the goal per second; None while fewer than two rows have updates."""
        if len(self._points) < 2:
            return None
        first, last = self._points[0], self._points[-1]
        return (last.steps - first.steps) / (last.seconds - first.seconds)
