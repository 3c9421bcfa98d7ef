"""N-step returns: single steps in, transitions of up to n steps out, each with its own n."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

import numpy as np

from dpsr_apex.replay.transitions import Stack, Transitions, pack, unpack
from dpsr_apex.state import State


class Start(NamedTuple):
    """Where a transition begins."""

    stack: Stack
    action: int
    snapshot: bytes


class Arrived(NamedTuple):
    """One transition, finished."""

    start: Start
    reward: float  # discounted sum over its steps
    end: Stack
    terminal: bool
    n_steps: int


class NStep:
    """The last steps of one environment that have not yet gone n steps."""

    def __init__(self, n_steps: int, discount: float) -> None:
        self.pending: deque[tuple[Start, float]] = deque()
        self._n_steps = n_steps
        self._discount = discount

    def push(self, start: Start, reward: float, end: Stack, terminal: bool, truncated: bool) -> list[Arrived]:
        """Add one step that led to `end`; returns what is finished by it: all that is pending when the episode ends."""
        self.pending.append((start, reward))
        arrived = []
        while self.pending and (len(self.pending) == self._n_steps or terminal or truncated):
            rewards = [step_reward for _, step_reward in self.pending]
            total = sum(self._discount**k * step_reward for k, step_reward in enumerate(rewards))
            arrived.append(Arrived(self.pending.popleft()[0], total, end, terminal, len(rewards)))
        return arrived

    def save(self) -> State:
        """The steps that are pending."""
        arrays = pack(
            Transitions(
                s_tm1=[start.stack for start, _ in self.pending],
                a_tm1=np.array([start.action for start, _ in self.pending], dtype=np.int64),
                r_t=np.zeros(len(self.pending), dtype=np.float32),
                s_t=[()] * len(self.pending),
                terminal=np.zeros(len(self.pending), dtype=np.bool_),
                n_steps=np.zeros(len(self.pending), dtype=np.uint8),
                snapshots=[start.snapshot for start, _ in self.pending],
            )
        )
        return State({"rewards": [reward for _, reward in self.pending]}, arrays)

    def load(self, state: State) -> None:
        """Become what `save` was called on."""
        saved = unpack(state.arrays)
        starts = map(Start, saved.s_tm1, saved.a_tm1.tolist(), saved.snapshots)
        self.pending = deque(zip(starts, state.facts["rewards"], strict=True))
