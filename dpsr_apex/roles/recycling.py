"""Recycling: re-enter stored states one by one, take another action than before, and continue for a few steps."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from dpsr_apex.agent.protocol import Experience
from dpsr_apex.config import Config
from dpsr_apex.envs.compression import DamagedSnapshot, raising_damage
from dpsr_apex.envs.stacked import Step
from dpsr_apex.protocol.validation import good_chains
from dpsr_apex.replay.records import Chains
from dpsr_apex.replay.transitions import Stack, Transitions
from dpsr_apex.roles.experience import NO_FAULTS, Faults, decompress_sound, fault_of, with_replacements
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
        self,
        config: Config,
        request: Recycle,
        agent: Scorer,
        env: ReenteredEnv,
        rng: np.random.Generator,
        known: Mapping[int, str] = NO_FAULTS,
    ) -> None:
        """Begin recycling; candidates with `known` faults fail without being restored."""
        self._request = request
        self._agent = agent
        self._env = env
        self._rng = rng
        self._most_steps = config.replay.recycle_steps
        self._exploration = config.replay.recycle_exploration
        self._n_step = NStep(config.actor.n_steps, config.learner.discount)
        self._labeller = Labeller(config.replay, env, rng)
        self._frames: list[NDArray[Any]] = []  # observations of the current chain; empty between chains
        self._complete = 0  # transitions of complete chains
        self._begin_answer()
        self._failed |= known
        self._s_tm1 = self._decompress_starts()
        self._pending = deque(row for row in range(len(request.starts)) if row not in self._failed)
        self._actions = self._choose_actions() if self._pending else np.zeros(0, dtype=np.int64)

    def advance(self) -> Recycled | None:
        """Take one environment step, or find that a state cannot be re-entered; None while others remain."""
        row = self._entered[-1] if self._frames else -1
        try:
            if self._frames:
                self._continue()
            elif self._pending:
                row = self._pending.popleft()
                self._re_enter(row)
        except DamagedSnapshot as damage:
            self._abandon(row, damage)
        return None if self._pending or self._frames else self._answer()

    def ended_chains(self) -> Recycled | None:
        """Return the answer for the candidates since the last answer; None during a chain, or if there is none."""
        return None if self._frames or not (self._entered or self._failed) else self._answer()

    def _begin_answer(self) -> None:
        self._entered: list[int] = []  # rows
        self._failed: Faults = {}
        self._lengths: list[int] = []  # of the chains
        self._rewards: list[float] = []  # of the chains
        self._arrived: list[Arrived] = []  # of all chains
        self._starts: list[NDArray[Any]] = []  # s_tm1 of `_arrived`
        self._ends: list[NDArray[Any]] = []  # s_t of `_arrived`

    def _decompress_starts(self) -> NDArray[Any]:
        """Return the observations of the candidates; those that are damaged fail, and are replaced by another one."""
        stacks, decompress_stacks = self._request.starts.s_tm1, self._env.codec.decompress_stacks
        observations = decompress_sound(stacks, decompress_stacks)
        if observations is not None:
            return observations
        faults = {row: fault_of([stack], decompress_stacks) for row, stack in enumerate(stacks)}
        self._failed |= {row: fault for row, fault in faults.items() if fault}
        rows = with_replacements(len(stacks), self._failed)
        return np.zeros(0) if rows is None else decompress_stacks([stacks[row] for row in rows.tolist()])

    def _abandon(self, row: int, damage: DamagedSnapshot) -> None:
        """Drop the current chain: its state could not be restored, or is not one of the environment."""
        identity, trace = self._request.identities[row], damage.__cause__
        log.warning("transition %d cannot be re-entered: %s", identity, damage, exc_info=trace)
        self._failed[row] = str(damage)
        if self._entered and self._entered[-1] == row:
            for of_chains in (self._entered, self._lengths, self._rewards):
                of_chains.pop()
            del self._arrived[self._complete :], self._ends[self._complete :]
        self._n_step.interrupt()
        self._frames = []

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
        with raising_damage():
            self._env.restore(starts.snapshots[row], starts.s_tm1[row], self._s_tm1[row].copy())
            self._labeller.begin_episode(int(starts.episode_steps[row]))
            labels = self._labeller.label()
        self._entered.append(row)
        self._lengths.append(0)
        self._rewards.append(0.0)
        self._frames = [self._s_tm1[row]]
        self._complete = len(self._arrived)
        self._step(Start(starts.s_tm1[row], int(self._actions[row]), starts.snapshots[row], labels))

    def _continue(self) -> None:
        """Take a later step of a chain: greedy, but for a share of random actions."""
        if self._rng.random() < self._exploration:
            action = int(self._rng.integers(self._env.actions))
        else:
            action = int(self._agent.act(self._env.frames[np.newaxis])[0])
        with raising_damage():
            snapshot, labels = self._env.snapshot(), self._labeller.label()
        self._step(Start(self._env.stack, action, snapshot, labels))

    def _step(self, start: Start) -> None:
        with raising_damage():
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
        chains = self._scored_chains()
        failed = sorted(self._failed)
        answer = Recycled(
            self._request.era,
            self._request.round_number,
            *chains,
            self._request.identities[failed],
            [self._failed[row] for row in failed],
        )
        self._begin_answer()
        return answer

    def _scored_chains(self) -> Chains:
        """Return the chains with their TD errors; those with one that is not finite fail."""
        transitions, identities = as_transitions(self._arrived), self._request.identities[self._entered]
        parts = [self._td_errors(transitions, first) for first in range(0, len(transitions), TD_ERRORS_AT_ONCE)]
        td_errors = np.concatenate(parts) if parts else np.zeros(0)
        lengths, rewards = np.array(self._lengths, dtype=np.int64), np.array(self._rewards, dtype=np.float64)
        chains = Chains(identities, lengths, rewards, transitions, td_errors)
        bad = np.flatnonzero(~np.isfinite(td_errors)).tolist()
        if not bad:
            return chains
        good = good_chains(chains, bad)
        lost = set(identities.tolist()) - set(good.identities.tolist())
        dropped = [row for row in self._entered if self._request.identities[row] in lost]
        self._failed |= dict.fromkeys(dropped, "a TD error of its chain is not finite")
        return good

    def _td_errors(self, transitions: Transitions, first: int) -> NDArray[np.float64]:
        """Return |TD error| of at most `TD_ERRORS_AT_ONCE` transitions, from row `first` on."""
        part = slice(first, first + TD_ERRORS_AT_ONCE)
        rows = transitions.rows(part.start, part.stop)
        s_tm1, s_t = np.stack(self._starts[part]), np.stack(self._ends[part])
        return self._agent.td_errors(Experience(s_tm1, rows.a_tm1, rows.r_t, s_t, rows.terminal, rows.n_steps))
