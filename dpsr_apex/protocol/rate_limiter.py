"""The rate limiter: keeps the ratio of transitions to updates, and decides who may continue and who must wait.

It only counts; the caller holds back transitions or batches.
"""

from __future__ import annotations

import math

from dpsr_apex.config import Config
from dpsr_apex.state import State
from dpsr_apex.wire.statistics import ActorsPaused, LearnerPaused


class RateLimiter:
    """Allows one batch at every multiple of `steps_per_update` from clock `learning_starts` on; 0 = free running.

    Insertion may run ahead of the due batches by `tolerance` transitions, and by at least one batch. So one of the two
    sides can always continue.
    """

    def __init__(self, learning_starts: int, steps_per_update: int, tolerance: int) -> None:
        self.steps_per_update = steps_per_update
        self.batches = 0  # sent so far, one per update
        self._learning_starts = learning_starts
        self._tolerance = tolerance
        self._since = learning_starts - 1  # clock from which the current rate applies
        self._due_before = 0  # batches due by then

    @classmethod
    def of(cls, config: Config) -> RateLimiter:
        """Return the rate limiter of a config."""
        return cls(config.learner.learning_starts, config.learner.steps_per_update, config.system.rate_tolerance)

    def batches_due(self, t: int) -> float:
        """Return the total number of batches that the transitions so far allow."""
        if self.steps_per_update == 0:
            return math.inf if t >= self._learning_starts else 0
        return self._due_before + max(t, self._since) // self.steps_per_update - self._since // self.steps_per_update

    def may_sample(self, t: int) -> bool:
        """Whether another batch may be sampled."""
        return self.batches < self.batches_due(t)

    def may_insert(self, t: int) -> bool:
        """Whether more transitions may be inserted."""
        return self.steps_per_update == 0 or self.batches_due(t) - self.batches <= self._backlog

    def change(self, t: int, steps_per_update: int) -> None:
        """Change the rate from now on; batches that are due at the old rate stay due."""
        due = self.batches_due(t)
        self._due_before = self.batches if due == math.inf else int(due)
        self._since = max(t, self._since)
        self.steps_per_update = steps_per_update

    def learner_waits_for(self, t: int) -> LearnerPaused:
        """Return what the learner is waiting for, when it may not sample."""
        if self.steps_per_update == 0:
            next_t = self._learning_starts
        else:
            next_t = (max(t, self._since) // self.steps_per_update + 1) * self.steps_per_update
        return LearnerPaused(next_t - t)

    def actors_wait_for(self, t: int) -> ActorsPaused:
        """Return what the actors are waiting for, when they may not insert."""
        return ActorsPaused(int(self.batches_due(t)) - self.batches, self._backlog)

    def save(self) -> State:
        """Return everything that future decisions depend on."""
        return State(
            {
                "batches": self.batches,
                "steps_per_update": self.steps_per_update,
                "since": self._since,
                "due_before": self._due_before,
            },
            {},
        )

    def load(self, state: State) -> None:
        """Restore a state returned by `save`."""
        facts = state.facts
        self.batches, self.steps_per_update = facts["batches"], facts["steps_per_update"]
        self._since, self._due_before = facts["since"], facts["due_before"]

    @property
    def _backlog(self) -> int:
        return max(self._tolerance // self.steps_per_update, 1)
