"""The replay as a role: messages in, messages out. It owns the priorities and all that is replaced or recycled.

It never acts, never learns and never inflates anything, so it needs neither torch nor an emulator.
"""

from __future__ import annotations

from dataclasses import replace

from dpsr_apex.config import Config
from dpsr_apex.replay.memory import DpsrReplay
from dpsr_apex.replay.records import Round
from dpsr_apex.replay.transitions import Transitions
from dpsr_apex.roles.rate_limiter import RateLimiter
from dpsr_apex.state import State
from dpsr_apex.wire.messages import Batch, Insert, Inserted, Priorities, Recycle, Recycled, SampleRequest


class ReplayServer:
    """Serves one replay, and keeps the learner to its number of transitions per update.

    `era` names this life of it: answers to what another life gave are passed over.
    """

    def __init__(self, replay: DpsrReplay, config: Config, era: int = 0) -> None:
        self.replay = replay
        self.era = era
        self.rate = RateLimiter(
            config.learner.learning_starts, config.learner.steps_per_update, config.system.rate_tolerance
        )

    def insert(self, message: Insert) -> tuple[Inserted, list[Recycle]]:
        """Store new transitions; what is to be recycled now comes with the acknowledgement."""
        rounds = self.replay.insert(message.transitions, message.td_errors)
        return Inserted(self.replay.t), [self._request(round_) for round_ in rounds]

    def recycled(self, message: Recycled) -> None:
        """Take what recycling gave; a round that is complete ends."""
        if message.era == self.era:
            self.replay.answer(message.round_number, message.identities, message.transitions, message.td_errors)

    def sample(self, message: SampleRequest) -> Batch | None:
        """A batch, or None while there are too few transitions for another update."""
        if not self.rate.may_sample(self.replay.t):
            return None
        self.rate.batches += 1
        sample = self.replay.sample(message.batch_size)
        return Batch(self.era, self.replay.t, sample.identities, sample.weights, _without_snapshots(sample.transitions))

    def priorities(self, message: Priorities) -> None:
        """Take new priorities; those of transitions that were replaced meanwhile are passed over."""
        if message.era == self.era:
            self.replay.update_priorities(message.identities, message.td_errors)

    def save(self) -> State:
        """The whole replay."""
        facts, arrays = self.replay.save()
        return State({"rate": self.rate.save().facts, "replay": facts}, arrays)

    def load(self, state: State) -> None:
        """Become what `save` was called on."""
        self.rate.load(State(state.facts["rate"], {}))
        self.replay.load(state.facts["replay"], state.arrays)

    def _request(self, round_: Round) -> Recycle:
        stored = round_.stored
        return Recycle(self.era, round_.number, round_.candidates, replace(stored, s_t=[()] * len(stored)))


def _without_snapshots(transitions: Transitions) -> Transitions:
    """A learner has no use for them."""
    return replace(transitions, snapshots=[b""] * len(transitions))
