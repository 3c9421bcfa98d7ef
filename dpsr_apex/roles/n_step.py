"""N-step returns: single steps in, transitions of up to n steps out, each with its own n."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from dpsr_apex.replay.transitions import Stack, Transitions, from_lists, from_rows, pack, unpack
from dpsr_apex.state import State


class Labels(NamedTuple):
    """The labels of a state; the first two are 0 where the replay's choice of states to re-enter does not need them."""

    state_key: int
    episode: int
    episode_step: int


UNLABELLED = Labels(0, 0, 0)
NO_TAG = 0  # of a snapshot that is not authenticated


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
    if not arrived:
        return from_lists(s_tm1=[])
    return from_rows(
        [
            (start.stack, start.action, reward, end, terminal, n_steps, start.snapshot, *start.labels, NO_TAG)
            for start, reward, end, terminal, n_steps in arrived
        ]
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
    """The pending steps of one environment, whose transitions have not completed their n steps.

    `end` is the observation that the last step led to; empty at the start of an episode.
    """

    def __init__(self, n_steps: int, discount: float) -> None:
        self.pending: deque[tuple[Start, float]] = deque()
        self.end: Stack = ()
        self._n_steps = n_steps
        self._discount = discount

    def push(self, start: Start, reward: float, end: Stack, terminal: bool, truncated: bool) -> list[Arrived]:
        """Add one step that led to `end`; return the transitions it completes: all pending ones if the episode ends."""
        self.pending.append((start, reward))
        is_last = terminal or truncated
        self.end = () if is_last else end
        count = len(self.pending) if is_last else len(self.pending) - self._n_steps + 1
        return [self._pop(end, terminal) for _ in range(count)]

    def interrupt(self) -> list[Arrived]:
        """End the episode after the last step, as a time limit does; return the pending transitions."""
        end, self.end = self.end, ()
        return [self._pop(end, terminal=False) for _ in range(len(self.pending))]

    def _pop(self, end: Stack, terminal: bool) -> Arrived:
        """Return the transition from the first pending step to `end`."""
        n_steps = len(self.pending)
        start, reward = self.pending.popleft()
        total = 0.0 + reward  # never -0.0
        for k, (_, reward) in enumerate(self.pending, 1):
            total += self._discount**k * reward
        return Arrived(start, total, end, terminal, n_steps)

    def save(self) -> State:
        """Return the pending steps, and in one more row `end`."""
        starts = _columns_of([start for start, _ in self.pending] + [Start((), 0, b"")])
        rows = from_lists(**starts, s_t=[self.end] * (len(self.pending) + 1))
        return State({"rewards": [reward for _, reward in self.pending]}, pack(rows))

    def load(self, state: State) -> None:
        """Restore a state returned by `save`."""
        rows, rewards = unpack(state.arrays), state.facts["rewards"]
        self.pending = deque(zip(_starts_of(rows.rows(0, len(rewards))), rewards, strict=True))
        self.end = rows.s_t[-1]
