"""Limit how often something is reported that a client can cause as often as it likes. Pure: time is passed in."""

from __future__ import annotations


class RateLimit:
    """Admits at most `most` events within `seconds` of the first one, and counts those that it leaves out."""

    def __init__(self, most: int, seconds: float = 60.0) -> None:
        self._most = most
        self._seconds = seconds
        self._began = 0.0  # when the current period began
        self._admitted = 0  # in the current period
        self._left_out = 0  # since the last admitted event

    def admit(self, now: float) -> int | None:
        """Return how many events were left out since the last admitted one; None if this one is left out too."""
        if not self._admitted or not 0 <= now - self._began < self._seconds:
            self._began, self._admitted = now, 0
        if self._admitted == self._most:
            self._left_out += 1
            return None
        self._admitted += 1
        left_out, self._left_out = self._left_out, 0
        return left_out


def with_left_out(text: str, left_out: int) -> str:
    """Add the number of similar lines that were left out before this one."""
    return f"{text} ({left_out:,} similar lines were left out before this one)" if left_out else text
