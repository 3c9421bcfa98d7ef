"""The learner role: takes a batch, updates the network, and returns priorities."""

from __future__ import annotations

from typing import Any

from dpsr_apex.agent.protocol import Agent, Update
from dpsr_apex.config import LearnerConfig
from dpsr_apex.envs.compression import FrameCodec
from dpsr_apex.roles.experience import decompress
from dpsr_apex.state import State
from dpsr_apex.wire.messages import Batch, Priorities


class Learner:
    """Updates `agent` from batches; its learning rate and its target network follow the replay's clock."""

    def __init__(self, config: LearnerConfig, total_steps: int, agent: Agent, codec: FrameCodec) -> None:
        self.agent = agent
        self.updates = 0
        self.target_synced_at = 0  # clock t
        self._config = config
        self._total_steps = total_steps
        self._codec = codec

    def prepare(self, batch: Batch) -> Any:
        """Decompress a batch and stage it for the network; another thread may do this while an update runs."""
        return self.agent.stage(decompress(batch.transitions, self._codec), batch.weights)

    def learn(self, batch: Batch, staged: Any) -> tuple[Priorities, Update]:
        """Update once from a prepared batch; return the new priorities and the statistics of the update."""
        update = self.agent.update(staged, self._config.learning_rate.at(batch.t, self._total_steps))
        self.updates += 1
        period = self._config.target_period
        if batch.t // period != self.target_synced_at // period:  # != because t decreases after a restart
            self.agent.sync_target()
            self.target_synced_at = batch.t
        return Priorities(batch.era, batch.identities, update.priorities), update

    def save(self) -> State:
        """Return both networks, the optimizer state and the counters."""
        return State({"updates": self.updates, "target_synced_at": self.target_synced_at}, self.agent.save())

    def load(self, state: State) -> None:
        """Restore a state returned by `save`."""
        self.updates, self.target_synced_at = state.facts["updates"], state.facts["target_synced_at"]
        self.agent.load(state.arrays)
