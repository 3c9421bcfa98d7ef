"""Transitions against updates: who may go on, who waits for whom, and how much is missing.

Counts only; what is held back, and how, is the business of those who ask.
"""

from __future__ import annotations

import math

from dpsr_apex.state import State


class RateLimiter:
    """Allows one batch at every multiple of `steps_per_update` from clock `learning_starts` on; 0 = free running.

    Insertion may run ahead of the batches that it is owed by `tolerance` transitions, and by one batch at least. So
    one of the two sides may always go on.
    """

    def __init__(self, learning_starts: int, steps_per_update: int, tolerance: int) -> None:
        self.steps_per_update = steps_per_update
        self.batches = 0  # given so far, one for each update
        self._learning_starts = learning_starts
        self._tolerance = tolerance
        self._since = learning_starts - 1  # clock from which the present rate counts
        self._due_before = 0  # batches that were due by then

    def batches_due(self, t: int) -> float:
        """Batches that the transitions so far allow."""
        if self.steps_per_update == 0:
            return math.inf if t >= self._learning_starts else 0
        return self._due_before + max(t, self._since) // self.steps_per_update - self._since // self.steps_per_update

    def may_sample(self, t: int) -> bool:
        """Whether another batch may be given."""
        return self.batches < self.batches_due(t)

    def may_insert(self, t: int) -> bool:
        """Whether more transitions may come in."""
        return self.steps_per_update == 0 or self.batches_due(t) - self.batches <= self._backlog

    def change(self, t: int, steps_per_update: int) -> None:
        """Another rate from now on; what is owed by the old one stays owed."""
        due = self.batches_due(t)
        self._due_before = self.batches if due == math.inf else int(due)
        self._since = max(t, self._since)
        self.steps_per_update = steps_per_update

    def learner_waits_for(self, t: int) -> str:
        """What the learner is waiting for, when it may not sample."""
        if self.steps_per_update == 0:
            next_t = self._learning_starts
        else:
            next_t = (max(t, self._since) // self.steps_per_update + 1) * self.steps_per_update
        return f"The learner waits for transitions: the next batch is due at t = {next_t:,}, {next_t - t:,} are missing"

    def actors_wait_for(self, t: int) -> str:
        """What the actors are waiting for, when they may not insert."""
        owed = self.batches_due(t) - self.batches
        return (
            f"The actors wait for the learner: {owed:,} updates are owed at t = {t:,}, and {self._backlog:,} may be "
            f"(learner.steps_per_update = {self.steps_per_update}, system.rate_tolerance = {self._tolerance})"
        )

    def save(self) -> State:
        """What the next decisions depend on."""
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
        """Go on where `save` was called."""
        facts = state.facts
        self.batches, self.steps_per_update = facts["batches"], facts["steps_per_update"]
        self._since, self._due_before = facts["since"], facts["due_before"]

    @property
    def _backlog(self) -> int:
        return max(self._tolerance // self.steps_per_update, 1)
