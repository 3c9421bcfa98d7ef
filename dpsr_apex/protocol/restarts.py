"""The restart policy of one process: when it is restarted after it has ended, and when it is given up.

A state machine without clock and processes: exits and the time come in, the time of the next start comes out.
"""

from __future__ import annotations

from typing import NamedTuple

from dpsr_apex import timeouts

REFUSED = 2  # exit code of a process whose input was rejected: it never worked, however long it waited
MAX_NODE_LOSSES = 10  # in a row


class Exit(NamedTuple):
    """How a process ended."""

    code: int  # its exit code; for a process that was ended by a signal, the negative number of the signal
    cause: str  # text that follows its name
    seconds: float  # how long it ran
    is_lost: bool = False  # whether its node was lost, which is not counted as a crash
    output: str = ""  # its traceback, or the last lines that it printed

    @property
    def reason(self) -> str:
        """Why it ended, in one line: the cause, and the last line that it printed."""
        printed = self.output.strip().rpartition("\n")[2].strip()
        return f"{self.cause}: {printed}" if printed else self.cause


class Limits(NamedTuple):
    """What a role is allowed before its process is given up."""

    crashes: int  # in a row
    retries_refused: bool = True  # a Join may be rejected only because its name is still in use for a moment


LIMITS = {
    "replay": Limits(3),
    "learner": Limits(3),
    "evaluator": Limits(3),
    "actor": Limits(5),
    "run": Limits(2, retries_refused=False),  # of an experiment
}


class RestartPolicy:
    """Decides when one process is started, from its first start until it is given up."""

    def __init__(self, role: str, now: float) -> None:
        self.crashes = 0  # in a row
        self.losses = 0  # of its node, in a row
        self.given_up = False
        self.start_at: float | None = now  # None: it is running, has exited cleanly, or is given up
        self._limits = LIMITS[role]

    @property
    def failures(self) -> int:
        """Failed exits in a row."""
        return self.crashes + self.losses

    def is_due(self, now: float) -> bool:
        """Whether the process should be started now."""
        return self.start_at is not None and now >= self.start_at

    def started(self) -> None:
        """Note that the process was started."""
        self.start_at = None

    def exited(self, exit: Exit, now: float) -> None:
        """Plan the next start, unless the process exited cleanly or has failed too often."""
        if exit.code == 0:
            return
        if exit.seconds > timeouts.STABLE_AFTER and exit.code != REFUSED:
            self.crashes = self.losses = 0
        if exit.is_lost:
            self.losses += 1
        else:
            self.crashes += 1
        self.given_up = self._is_over_limit(exit)
        self.start_at = None if self.given_up else now + self._backoff(exit)

    def restart(self, now: float) -> None:
        """Restart a process that has exited cleanly."""
        self._start_at(now)

    def preempted(self, until: float) -> None:
        """Restart a process at `until` that is stopped to free its resources; this does not count as a crash."""
        self._start_at(until)

    def reset(self, now: float) -> None:
        """Reset the restart budget; a process that was given up is started now."""
        self.crashes = self.losses = 0
        if self.given_up:
            self.given_up = False
            self.start_at = now

    def _start_at(self, time: float) -> None:
        if not self.given_up:
            self.start_at = time

    def _is_over_limit(self, exit: Exit) -> bool:
        would_be_refused_again = exit.code == REFUSED and not self._limits.retries_refused
        return would_be_refused_again or self.crashes >= self._limits.crashes or self.losses >= MAX_NODE_LOSSES

    def _backoff(self, exit: Exit) -> float:
        if exit.is_lost:
            return timeouts.NODE_LOST_BACKOFF
        return min(timeouts.FIRST_BACKOFF * 2.0 ** (self.crashes - 1), timeouts.LONGEST_BACKOFF)
