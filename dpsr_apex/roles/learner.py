"""The learner as a role: a batch in, an update of the network, priorities out. It never sees a slot or a socket."""

from __future__ import annotations

from dpsr_apex.agent.dqn import DqnAgent, Staged, Update
from dpsr_apex.config import LearnerConfig
from dpsr_apex.envs.compression import FrameCodec
from dpsr_apex.roles.experience import inflate
from dpsr_apex.state import State
from dpsr_apex.wire.messages import Batch, Priorities, SampleRequest


class Learner:
    """Updates `agent` from batches, and its target network by the replay's clock."""

    def __init__(self, config: LearnerConfig, agent: DqnAgent, codec: FrameCodec) -> None:
        self.agent = agent
        self.updates = 0
        self.target_synced_at = 0  # clock t
        self._config = config
        self._codec = codec

    def want(self) -> SampleRequest:
        """Ask for the next batch."""
        return SampleRequest(self._config.batch_size)

    def prepare(self, batch: Batch) -> Staged:
        """The batch as the network takes it; another thread may do this while an update runs."""
        return self.agent.stage(inflate(batch.transitions, self._codec))

    def learn(self, batch: Batch, experience: Staged) -> tuple[Priorities, Update]:
        """One update from a batch that was prepared: the priorities to give back, and what the update saw."""
        update = self.agent.update(experience, batch.weights)
        self.updates += 1
        period = self._config.target_period
        if batch.t // period != self.target_synced_at // period:  # less after the replay went back to a checkpoint
            self.agent.sync_target()
            self.target_synced_at = batch.t
        return Priorities(batch.era, batch.identities, update.td_errors), update

    def save(self) -> State:
        """Both networks, the optimizer and the counters."""
        return State({"updates": self.updates, "target_synced_at": self.target_synced_at}, self.agent.save())

    def load(self, state: State) -> None:
        """Become what `save` was called on."""
        self.updates, self.target_synced_at = state.facts["updates"], state.facts["target_synced_at"]
        self.agent.load(state.arrays)
