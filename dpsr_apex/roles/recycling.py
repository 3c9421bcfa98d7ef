"""Recycling: re-enter stored states one by one, and take another action than before."""

from __future__ import annotations

import logging
from collections import deque
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpsr_apex.agent.protocol import Agent, Experience
from dpsr_apex.envs.compression import DamagedSnapshot
from dpsr_apex.envs.stacked import StackedEnv
from dpsr_apex.roles.n_step import Arrived, Start, as_transitions
from dpsr_apex.wire.messages import Recycle, Recycled

log = logging.getLogger(__name__)


class Recycling:
    """One request to recycle in progress: `advance` re-enters the next state, and returns the answer after the last.

    The candidates' states are decompressed once, and the resulting observations are used without a round trip through
    compression.
    """

    def __init__(self, request: Recycle, agent: Agent, env: StackedEnv, rng: np.random.Generator) -> None:
        self._request = request
        self._agent = agent
        self._env = env
        self._s_tm1 = env.codec.decompress_stacks(request.starts.s_tm1)
        self._actions = self._choose_actions(rng)
        self._pending = deque(range(len(request.starts)))  # rows
        self._entered: list[int] = []  # rows
        self._arrived: list[Arrived] = []
        self._s_t: list[NDArray[Any]] = []
        self._failed: list[int] = []  # rows

    def advance(self) -> Recycled | None:
        """Re-enter one more candidate; None while others remain."""
        if self._pending:
            row = self._pending.popleft()
            try:
                self._re_enter(row)
            except DamagedSnapshot as damage:
                log.warning("transition %d cannot be re-entered: %s", self._request.identities[row], damage)
                self._failed.append(row)
        return None if self._pending else self._answer()

    def _choose_actions(self, rng: np.random.Generator) -> NDArray[np.int64]:
        """Return the newest network's action in each state; if that is the stored action, another one at random."""
        stored = self._request.starts.a_tm1
        greedy = self._agent.act(self._s_tm1)
        others = rng.integers(self._env.actions - 1, size=len(stored))
        others += others >= stored
        return np.where(greedy == stored, others, greedy)

    def _re_enter(self, row: int) -> None:
        starts = self._request.starts
        start = Start(starts.s_tm1[row], int(self._actions[row]), starts.snapshots[row])
        # A copy, because an environment may keep or modify the frames.
        self._env.restore(start.snapshot, start.stack, self._s_tm1[row].copy())
        step = self._env.step(start.action)
        self._entered.append(row)
        self._arrived.append(Arrived(start, step.reward, self._env.stack, step.terminal, n_steps=1))
        self._s_t.append(self._env.frames)

    def _answer(self) -> Recycled:
        transitions = as_transitions(self._arrived)
        if self._arrived:
            s_tm1, s_t = self._s_tm1[self._entered], np.stack(self._s_t)
            columns = transitions.a_tm1, transitions.r_t, s_t, transitions.terminal, transitions.n_steps
            td_errors = self._agent.td_errors(Experience(s_tm1, *columns))
        else:
            td_errors = np.zeros(0)
        identities = self._request.identities
        return Recycled(
            self._request.era,
            self._request.round_number,
            identities[self._entered],
            transitions,
            td_errors,
            identities[self._failed],
        )
