"""Which running processes are frozen. A state machine without sockets and clock."""

from __future__ import annotations

from collections.abc import Mapping

from dpsr_apex import timeouts

MOST_DOUBLINGS = 5  # of the patience with a process that freezes again and again


class FrozenWatch:
    """Detects processes that have been members and are silent although the head answers.

    The patience is somewhat more than the lease, because a process that was only suspended joins again. It is doubled
    for a process that freezes soon after a restart, because it may only be slow. A process that has not joined yet is
    never frozen, however long it takes to start.
    """

    def __init__(self, lease: float, now: float) -> None:
        self._lease = lease  # seconds
        self._heard_at: dict[str, float] = {}  # by name: when the head last heard from it
        self._freezes: dict[str, int] = {}  # by name: restarts in a row
        self._members: frozenset[str] = frozenset()  # of the head, when it last answered
        self._era: int | None = None
        self._answered_at = self._listening_since = now  # the head, without an interruption

    def head_answered(self, era: int, heard: Mapping[str, float], now: float) -> None:
        """Note the answer of a head; `heard` is the time in seconds since the last message of each member."""
        if era == self._era:
            for name in self._members - heard.keys():
                if now - self._heard_at.get(name, now) < self._lease:
                    self.ended(name)  # it has left, and may have other things to do
        if era != self._era or now - self._answered_at > timeouts.REPLAY_SILENCE:
            self._listening_since = now  # members may need some time to join a head that has restarted
        self._era, self._answered_at, self._members = era, now, frozenset(heard)
        self._heard_at |= {name: now - ago for name, ago in heard.items()}

    def frozen_for(self, name: str, started_at: float, now: float) -> float | None:
        """Return the seconds since the last message of a process that is frozen; None if it is not."""
        heard_at = self._heard_at.get(name)
        if heard_at is None or heard_at < started_at:  # not yet a member, or its predecessor was
            return None
        is_stable = heard_at - started_at > timeouts.STABLE_AFTER
        patience = (self._lease + timeouts.FROZEN) * 2 ** (0 if is_stable else self._freezes.get(name, 0))
        return now - heard_at if now - max(heard_at, self._listening_since) > patience else None

    def restarted(self, name: str, started_at: float) -> None:
        """Note that a frozen process is being restarted."""
        is_stable = self._heard_at[name] - started_at > timeouts.STABLE_AFTER
        self._freezes[name] = min(1 if is_stable else self._freezes.get(name, 0) + 1, MOST_DOUBLINGS)

    def ended(self, name: str) -> None:
        """Forget when a process was heard from that has ended or left the run."""
        self._heard_at.pop(name, None)
