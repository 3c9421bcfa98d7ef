"""Schedules: values that depend only on the clock t, the number of transitions inserted so far."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Schedule:
    """Linear from `start` at t = 0 to `end` at t = `over` x total steps, and constant at `end` afterwards.

    A constant is a line whose ends are equal. The paper's exploration max(1 - 9.8 t/T, 0.02) is
    `Schedule(1.0, 0.02, over=0.1)`; its bias annealing 0.4 + 0.6 t/T is `Schedule(0.4, 1.0)`.
    """

    start: float
    end: float
    over: float = 1.0  # share of the run's total steps, in (0, 1]

    @property
    def is_constant(self) -> bool:
        """Whether the value is the same at all times."""
        return self.start == self.end

    def at(self, t: int, total_steps: int) -> float:
        """Return the value at clock t of a run of `total_steps`."""
        if self.is_constant:
            return self.end
        progress = min(t / (self.over * total_steps), 1.0)
        return self.start + (self.end - self.start) * progress if progress < 1.0 else self.end


def constant(value: float) -> Schedule:
    """Return a schedule with a constant value."""
    return Schedule(value, value)
