"""How many transitions the actors may have in flight: sent or about to be sent, but not acknowledged.

A chunk is acknowledged when it is inserted. While the learner is behind, chunks wait for updates, and every transition
in front of a new one makes the policy that chose it older. So few are allowed then: more would only add delay. The
limits are for all actors together, so more actors do not mean longer queues.
"""

from __future__ import annotations

from dpsr_apex import timeouts
from dpsr_apex.config import Config

FEWEST = 4  # transitions per actor: two chunks of two; with single transitions, messages cost more than they save


class Throttle:
    """Lowers the number of transitions in flight while chunks have to wait for the learner."""

    def __init__(self, config: Config) -> None:
        self.is_active = False
        self._waited_at = 0.0  # when a chunk last had to wait
        self._system = config.system
        self._environments = config.actor.environments

    def observe(self, chunks_wait: bool, now: float) -> None:
        """Note whether chunks have to wait at time `now`."""
        if chunks_wait:
            self.is_active = True
            self._waited_at = now
        elif now - self._waited_at > timeouts.THROTTLE_RELEASE:
            self.is_active = False

    def limit(self, actors: int, steps_per_update: int) -> int:
        """Return the number of transitions that each actor may have in flight; nobody waits in free running."""
        if steps_per_update == 0:
            return self._system.in_flight
        updates = self._system.in_flight_behind if self.is_active else self._system.in_flight_ahead
        share = updates * steps_per_update // max(actors, 1)
        return min(max(share, FEWEST, self._environments), self._system.in_flight)
