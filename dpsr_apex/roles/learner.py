"""The learner role: takes a batch, updates the network, and returns priorities.

A transition that cannot be trained on does not stop it: it is left out of the update, and reported.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np

from dpsr_apex.agent.protocol import Agent, Experience, Update
from dpsr_apex.config import LearnerConfig
from dpsr_apex.envs.compression import FrameCodec
from dpsr_apex.replay.transitions import PackedTransitions, Transitions, unpacked
from dpsr_apex.roles.experience import Faults, Sifted, read_packed, sift
from dpsr_apex.state import State
from dpsr_apex.wire.messages import Batch, Priorities, Unusable

NOT_FINITE: Final = "its loss or the gradient of its loss is not finite"


class Prepared(NamedTuple):
    """A batch that is ready for an update."""

    staged: Any  # by the agent; None if no transition can be trained on
    faults: Faults  # the transitions that are left out: their weight is 0


class Learned(NamedTuple):
    """The outcome of a batch."""

    priorities: Priorities  # of the transitions that were trained on
    update: Update | None  # None if there were none
    unusable: list[Unusable]  # transitions that were found to be unusable during the update


class Learner:
    """Updates `agent` from batches; its learning rate and its target network follow the replay's clock.

    `actions` is the number of actions of the environment. Each batch is decompressed by `decompression_threads`.
    """

    def __init__(
        self,
        config: LearnerConfig,
        total_steps: int,
        agent: Agent,
        codec: FrameCodec,
        actions: int,
        decompression_threads: int = 1,
    ) -> None:
        self.agent = agent
        self.updates = 0
        self.target_synced_at = 0  # clock t
        self._config = config
        self._total_steps = total_steps
        self._codec = codec
        self._decompress = _decompress_with(codec, decompression_threads)
        self._actions = actions
        self._sound: Any = None  # the staged batch of the last update

    def prepare(self, batch: Batch, known: Faults | None = None) -> Prepared:
        """Decompress a batch and stage it for the network, without transitions of `known` faults.

        Another thread may do this while an update runs.
        """
        experience, faults = self._sift(batch.transitions, known or {})
        if experience is None:
            return Prepared(None, faults)
        weights = batch.weights.copy()
        weights[list(faults)] = 0.0
        return Prepared(self.agent.stage(experience, weights), faults)

    def _sift(self, transitions: Transitions | PackedTransitions, known: Faults) -> Sifted:
        """Decompress a batch, without the transitions that cannot be used."""
        if isinstance(transitions, PackedTransitions) and self._codec.is_compressed and not known:
            experience = read_packed(transitions, self._decompress, self._actions)  # without an object for each frame
            if experience is not None:
                return Sifted(experience, {})
        return sift(unpacked(transitions), self._decompress, self._actions, known)

    def learn(self, batch: Batch, prepared: Prepared) -> Learned:
        """Update once from a prepared batch, unless none of its transitions can be trained on.

        Raise FloatingPointError, without changing the weights, if a loss is not finite because of the network.
        """
        found: Faults = {}
        try:
            update = self._update(batch, prepared.staged)
        except FloatingPointError:
            if not (found := self._faults_of_losses(batch, prepared)):
                raise
            prepared = self.prepare(batch, prepared.faults | found)
            update = self._update(batch, prepared.staged)
        good = [row for row in range(len(batch.transitions)) if row not in prepared.faults]
        errors = np.zeros(0) if update is None else update.priorities[good]
        return Learned(Priorities(batch.era, batch.identities[good], errors), update, unusable(batch, found))

    def save(self) -> State:
        """Return both networks, the optimizer state and the counters."""
        return State({"updates": self.updates, "target_synced_at": self.target_synced_at}, self.agent.save())

    def load(self, state: State) -> None:
        """Restore a state returned by `save`."""
        self.updates, self.target_synced_at = state.facts["updates"], state.facts["target_synced_at"]
        self.agent.load(state.arrays)

    def _update(self, batch: Batch, staged: Any) -> Update | None:
        """Update once; return None if nothing is staged."""
        if staged is None:
            return None
        update = self.agent.update(staged, self._config.learning_rate.at(batch.t, self._total_steps))
        self._sound = staged
        self.updates += 1
        period = self._config.target_period
        if batch.t // period != self.target_synced_at // period:  # != because t decreases after a restart
            self.agent.sync_target()
            self.target_synced_at = batch.t
        return update

    def _faults_of_losses(self, batch: Batch, prepared: Prepared) -> Faults:
        """Return the transitions whose losses are not finite; none if the network is the cause."""
        reference = self._sound if self._sound is not None else self._stage_blank(batch)
        if self.agent.rows_not_finite(reference):
            return {}
        rows = set(self.agent.rows_not_finite(prepared.staged)) - prepared.faults.keys()
        return dict.fromkeys(sorted(rows), NOT_FINITE)

    def _stage_blank(self, batch: Batch) -> Any:
        """Stage one transition of zeros, for which the loss of any sane network is finite."""
        rows = unpacked(batch.transitions).rows(0, 1)
        state = np.zeros((1, len(rows.s_tm1[0]), *self._codec.shape), self._codec.dtype)
        blank = Experience(state, rows.a_tm1 * 0, rows.r_t * 0, state, rows.terminal, rows.n_steps)
        return self.agent.stage(blank, np.ones(1, np.float32))


def unusable(batch: Batch, faults: Faults) -> list[Unusable]:
    """Return the messages about transitions of a batch that cannot be trained on, one per reason."""
    reasons = sorted(set(faults.values()))
    rows = {reason: [row for row in sorted(faults) if faults[row] == reason] for reason in reasons}
    return [Unusable(batch.era, batch.identities[rows[reason]], reason) for reason in reasons]


def _decompress_with(codec: FrameCodec, threads: int) -> Any:
    """Return the function that decompresses a batch: `Decompress`, for compressed frames also `DecompressPacked`."""
    if not codec.is_compressed:
        return codec.decompress_stacks
    from dpsr_apex.envs.decompression import Decompressor  # here, because it loads numba

    return Decompressor(codec, threads)
