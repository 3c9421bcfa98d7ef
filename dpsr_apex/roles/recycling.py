"""Recycling: re-enter stored states one by one, take another action than before, and continue for a few steps."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from dpsr_apex.agent.protocol import Experience
from dpsr_apex.config import Config
from dpsr_apex.envs.compression import DamagedSnapshot
from dpsr_apex.envs.stacked import Step
from dpsr_apex.replay.transitions import Stack, Transitions
from dpsr_apex.roles.labels import HasStateKey, Labeller
from dpsr_apex.roles.n_step import Arrived, NStep, Start, as_transitions
from dpsr_apex.wire.messages import Recycle, Recycled

TD_ERRORS_AT_ONCE = 512  # transitions: bounds the memory of observations and activations

log = logging.getLogger(__name__)


class Scorer(Protocol):
    """The part of an agent that recycling needs."""

    def act(self, observations: NDArray[Any]) -> NDArray[np.int64]:
        """Return the greedy action for each observation."""

    def td_errors(self, experience: Experience) -> NDArray[np.float64]:
        """Return |TD error| of each row with the current networks."""


class StackCodec(Protocol):
    """Decompresses observations."""

    def decompress_stacks(self, stacks: Sequence[Stack]) -> NDArray[Any]:
        """Return observations as one new array, one row each."""


class ReenteredEnv(HasStateKey, Protocol):
    """The part of a `StackedEnv` that recycling needs."""

    @property
    def codec(self) -> StackCodec:
        """The codec of its observations."""

    @property
    def actions(self) -> int:
        """The number of actions."""

    @property
    def frames(self) -> NDArray[Any]:
        """The current observation."""

    @property
    def stack(self) -> Stack:
        """The current observation, compressed."""

    def snapshot(self) -> bytes:
        """Serialize the state."""

    def restore(self, snapshot: bytes, stack: Stack, frames: NDArray[Any] | None = None) -> None:
        """Return to the state of `snapshot`; raise DamagedSnapshot if it cannot be restored."""

    def step(self, action: int) -> Step:
        """Take one action."""


class Recycling:
    """One request to recycle in progress: `advance` takes the next step, and returns the answer after the last.

    `ended_chains` returns parts of the answer earlier, so that they are not lost if the rest comes too late.

    From the state of each candidate a chain of up to `replay.recycle_steps` steps is taken; it ends earlier with the
    episode. Every step becomes a transition, with returns of up to n steps that stay inside the chain. The candidates'
    states are decompressed once, and the resulting observations are used without a round trip through compression.
    """

    def __init__(
        self, config: Config, request: Recycle, agent: Scorer, env: ReenteredEnv, rng: np.random.Generator
    ) -> None:
        self._request = request
        self._agent = agent
        self._env = env
        self._rng = rng
        self._most_steps = config.replay.recycle_steps
        self._exploration = config.replay.recycle_exploration
        self._n_step = NStep(config.actor.n_steps, config.learner.discount)
        self._labeller = Labeller(config.replay, env, rng)
        self._s_tm1 = env.codec.decompress_stacks(request.starts.s_tm1)
        self._actions = self._choose_actions()
        self._pending = deque(range(len(request.starts)))  # rows
        self._frames: list[NDArray[Any]] = []  # observations of the current chain; empty between chains
        self._begin_answer()

    def advance(self) -> Recycled | None:
        """Take one environment step, or find that a state cannot be re-entered; None while others remain."""
        if self._frames:
            self._continue()
        elif self._pending:
            row = self._pending.popleft()
            try:
                self._re_enter(row)
            except DamagedSnapshot as damage:
                log.warning("transition %d cannot be re-entered: %s", self._request.identities[row], damage)
                self._failed.append(row)
        return None if self._pending or self._frames else self._answer()

    def ended_chains(self) -> Recycled | None:
        """Return the answer for the candidates since the last answer; None during a chain, or if there is none."""
        return None if self._frames or not (self._entered or self._failed) else self._answer()

    def _begin_answer(self) -> None:
        self._entered: list[int] = []  # rows
        self._failed: list[int] = []  # rows
        self._lengths: list[int] = []  # of the chains
        self._rewards: list[float] = []  # of the chains
        self._arrived: list[Arrived] = []  # of all chains
        self._starts: list[NDArray[Any]] = []  # s_tm1 of `_arrived`
        self._ends: list[NDArray[Any]] = []  # s_t of `_arrived`

    def _choose_actions(self) -> NDArray[np.int64]:
        """Return the newest network's action in each state; if that is the stored action, another one at random."""
        stored = self._request.starts.a_tm1
        greedy = self._agent.act(self._s_tm1)
        others = self._rng.integers(self._env.actions - 1, size=len(stored))
        others += others >= stored
        return np.where(greedy == stored, others, greedy)

    def _re_enter(self, row: int) -> None:
        """Take the first step of a chain."""
        starts = self._request.starts
        # A copy, because an environment may keep or modify the frames.
        self._env.restore(starts.snapshots[row], starts.s_tm1[row], self._s_tm1[row].copy())
        self._labeller.begin_episode()
        self._entered.append(row)
        self._lengths.append(0)
        self._rewards.append(0.0)
        self._frames = [self._s_tm1[row]]
        labels = self._labeller.label()
        self._step(Start(starts.s_tm1[row], int(self._actions[row]), starts.snapshots[row], labels))

    def _continue(self) -> None:
        """Take a later step of a chain: greedy, but for a share of random actions."""
        if self._rng.random() < self._exploration:
            action = int(self._rng.integers(self._env.actions))
        else:
            action = int(self._agent.act(self._env.frames[np.newaxis])[0])
        self._step(Start(self._env.stack, action, self._env.snapshot(), self._labeller.label()))

    def _step(self, start: Start) -> None:
        step = self._env.step(start.action)
        self._frames.append(self._env.frames)
        self._lengths[-1] += 1
        self._rewards[-1] += step.reward
        is_last = step.terminal or step.truncated or self._lengths[-1] == self._most_steps
        arrived = self._n_step.push(start, step.reward, self._env.stack, step.terminal, is_last)
        self._arrived += arrived
        self._ends += [self._env.frames] * len(arrived)
        if is_last:
            self._starts += self._frames[:-1]
            self._frames = []

    def _answer(self) -> Recycled:
        transitions = as_transitions(self._arrived)
        parts = [self._td_errors(transitions, first) for first in range(0, len(transitions), TD_ERRORS_AT_ONCE)]
        td_errors = np.concatenate(parts) if parts else np.zeros(0)
        identities = self._request.identities
        answer = Recycled(
            self._request.era,
            self._request.round_number,
            identities[self._entered],
            np.array(self._lengths, dtype=np.int64),
            np.array(self._rewards, dtype=np.float64),
            transitions,
            td_errors,
            identities[self._failed],
        )
        self._begin_answer()
        return answer

    def _td_errors(self, transitions: Transitions, first: int) -> NDArray[np.float64]:
        """Return |TD error| of at most `TD_ERRORS_AT_ONCE` transitions, from row `first` on."""
        part = slice(first, first + TD_ERRORS_AT_ONCE)
        rows = transitions.rows(part.start, part.stop)
        s_tm1, s_t = np.stack(self._starts[part]), np.stack(self._ends[part])
        return self._agent.td_errors(Experience(s_tm1, rows.a_tm1, rows.r_t, s_t, rows.terminal, rows.n_steps))
