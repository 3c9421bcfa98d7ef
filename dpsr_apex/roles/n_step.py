"""N-step returns: single steps in, transitions of up to n steps out, each with its own n."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from dpsr_apex.replay.transitions import Stack, Transitions, from_lists, pack, unpack
from dpsr_apex.state import State


class Labels(NamedTuple):
    """What the replay's choice of states to re-enter reads; 0 where it does not need it."""

    state_key: int
    episode: int
    episode_step: int


UNLABELLED = Labels(0, 0, 0)


class Start(NamedTuple):
    """The start of a transition."""

    stack: Stack
    action: int
    snapshot: bytes
    labels: Labels = UNLABELLED


class Arrived(NamedTuple):
    """One complete transition."""

    start: Start
    reward: float  # discounted sum over its steps
    end: Stack
    terminal: bool
    n_steps: int


def as_transitions(arrived: Sequence[Arrived]) -> Transitions:
    """Return these transitions column by column."""
    return from_lists(
        **_columns_of([one.start for one in arrived]),
        r_t=[one.reward for one in arrived],
        s_t=[one.end for one in arrived],
        terminal=[one.terminal for one in arrived],
        n_steps=[one.n_steps for one in arrived],
    )


def _columns_of(starts: Sequence[Start]) -> dict[str, list[Any]]:
    return {
        "s_tm1": [start.stack for start in starts],
        "a_tm1": [start.action for start in starts],
        "snapshots": [start.snapshot for start in starts],
        "state_keys": [start.labels.state_key for start in starts],
        "episodes": [start.labels.episode for start in starts],
        "episode_steps": [start.labels.episode_step for start in starts],
    }


def _starts_of(transitions: Transitions) -> Iterator[Start]:
    columns = transitions.state_keys, transitions.episodes, transitions.episode_steps
    labels = map(Labels, *(column.tolist() for column in columns))
    return map(Start, transitions.s_tm1, transitions.a_tm1.tolist(), transitions.snapshots, labels)


class NStep:
    """The pending steps of one environment, whose transitions have not completed their n steps."""

    def __init__(self, n_steps: int, discount: float) -> None:
        self.pending: deque[tuple[Start, float]] = deque()
        self._n_steps = n_steps
        self._discount = discount

    def push(self, start: Start, reward: float, end: Stack, terminal: bool, truncated: bool) -> list[Arrived]:
        """Add one step that led to `end`; return the transitions it completes: all pending ones if the episode ends."""
        self.pending.append((start, reward))
        arrived = []
        while self.pending and (len(self.pending) == self._n_steps or terminal or truncated):
            rewards = [step_reward for _, step_reward in self.pending]
            total = sum(self._discount**k * step_reward for k, step_reward in enumerate(rewards))
            arrived.append(Arrived(self.pending.popleft()[0], total, end, terminal, len(rewards)))
        return arrived

    def save(self) -> State:
        """Return the pending steps."""
        pending = from_lists(**_columns_of([start for start, _ in self.pending]))
        return State({"rewards": [reward for _, reward in self.pending]}, pack(pending))

    def load(self, state: State) -> None:
        """Restore a state returned by `save`."""
        self.pending = deque(zip(_starts_of(unpack(state.arrays)), state.facts["rewards"], strict=True))
