"""The replay as a role: messages in, messages out. It owns the priorities and all that is replaced or recycled.

It never acts, never learns and never inflates anything, so it needs neither torch nor an emulator.
"""

from __future__ import annotations

from dpsr_apex.config import LearnerConfig
from dpsr_apex.replay.memory import DpsrReplay, Round
from dpsr_apex.state import State
from dpsr_apex.wire.messages import Batch, Candidate, Insert, Inserted, Priorities, Recycle, Recycled, SampleRequest


class ReplayServer:
    """Serves one replay, and keeps the learner to its number of transitions per update."""

    def __init__(self, replay: DpsrReplay, config: LearnerConfig) -> None:
        self.replay = replay
        self.batches = 0  # given so far, one for each update
        self._config = config

    def insert(self, message: Insert) -> tuple[Inserted, list[Recycle]]:
        """Store new transitions; what is to be recycled now comes with the acknowledgement."""
        rounds = self.replay.insert(message.transitions, message.td_errors)
        return Inserted(self.replay.t), [_request(round_) for round_ in rounds]

    def recycled(self, message: Recycled) -> None:
        """Take what recycling gave; a round that is complete ends."""
        self.replay.answer(message.round_number, message.identities, message.transitions, message.td_errors)

    def sample(self, message: SampleRequest) -> Batch | None:
        """A batch, or None while there are too few transitions for another update."""
        if self.batches >= self.batches_due:
            return None
        self.batches += 1
        sample = self.replay.sample(message.batch_size)
        return Batch(self.replay.t, sample.identities, sample.weights, sample.transitions)

    def priorities(self, message: Priorities) -> None:
        """Take new priorities; those of transitions that were replaced meanwhile are passed over."""
        self.replay.update_priorities(message.identities, message.td_errors)

    @property
    def batches_due(self) -> int:
        """Updates that the transitions so far allow: one at every multiple of F_s, from `learning_starts` on."""
        starts, period = self._config.learning_starts, self._config.steps_per_update
        return max(self.replay.t // period - (starts - 1) // period, 0)

    def save(self) -> State:
        """The whole replay."""
        facts, arrays = self.replay.save()
        return State({"batches": self.batches, "replay": facts}, arrays)

    def load(self, state: State) -> None:
        """Become what `save` was called on."""
        self.batches = state.facts["batches"]
        self.replay.load(state.facts["replay"], state.arrays)


def _request(round_: Round) -> Recycle:
    stored = round_.stored
    columns = zip(round_.candidates.tolist(), stored.s_tm1, stored.a_tm1.tolist(), stored.snapshots, strict=True)
    return Recycle(round_.number, [Candidate(*row) for row in columns])
