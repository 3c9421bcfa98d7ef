"""Validation of transitions before they are stored: everything that can be checked without decompressing a frame.

What passes can still be unusable, such as a frame with a correct checksum that does not decompress, or a snapshot that
cannot be restored. Whoever finds that reports it, and the transition is quarantined.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dpsr_apex.checksums import CHECKSUM_BYTES, are_intact
from dpsr_apex.config import Config
from dpsr_apex.formatting import counted
from dpsr_apex.replay.layout import Layout
from dpsr_apex.replay.records import Chains, Floats
from dpsr_apex.replay.slots import GREATEST_TD_ERROR
from dpsr_apex.replay.transitions import Stack, Transitions

MOST_SNAPSHOT_BYTES: Final = 2**24

ACTION: Final = "actions"
FRAME: Final = "frames"
OBSERVATION: Final = "observations"
REWARD: Final = "rewards"
STEPS: Final = "steps"
PRIORITY: Final = "priorities"
SNAPSHOT: Final = "snapshots"
KINDS: Final = (ACTION, FRAME, OBSERVATION, REWARD, STEPS, PRIORITY, SNAPSHOT)


class Fault(NamedTuple):
    """Why a transition is not stored."""

    kind: str  # one of KINDS
    reason: str


Faults = dict[int, Fault]
"""The first fault of each transition that has one, by its row."""


class Validation:
    """Checks transitions against the config of a run, and against the layout of its environment."""

    def __init__(self, config: Config) -> None:
        self._reward_limit = config.env.reward_limit
        self._most_steps = config.actor.n_steps

    def faults(self, transitions: Transitions, td_errors: Floats | None, layout: Layout) -> Faults:
        """Return the transitions that must not be stored; an unknown layout allows any action and any frame."""
        found: Faults = {}
        self._check_numbers(transitions, layout, found)
        if td_errors is not None:
            for row in _where(~((td_errors >= 0) & (td_errors <= GREATEST_TD_ERROR))):
                found.setdefault(row, Fault(PRIORITY, f"the absolute TD error {td_errors[row]}"))
        for row, snapshot in enumerate(transitions.snapshots):
            if len(snapshot) > MOST_SNAPSHOT_BYTES:
                found.setdefault(row, Fault(SNAPSHOT, f"a snapshot of {len(snapshot):,} bytes"))
        if layout.is_known:
            _check_states(transitions, layout, found)
        return found

    def _check_numbers(self, transitions: Transitions, layout: Layout, found: Faults) -> None:
        actions, rewards, steps = transitions.a_tm1, transitions.r_t, transitions.n_steps
        if layout.is_known:
            for row in _where((actions < 0) | (actions >= layout.actions)):
                found.setdefault(row, Fault(ACTION, f"action {actions[row]} of {counted(layout.actions, 'action')}"))
        limit = self._reward_limit
        for row in _where(~(np.abs(rewards) <= limit * steps)):  # of NaN too
            found.setdefault(row, Fault(REWARD, f"the reward {rewards[row]} (env.reward_limit is {limit:g})"))
        for row in _where(steps > self._most_steps):
            found.setdefault(row, Fault(STEPS, f"{steps[row]} steps (actor.n_steps is {self._most_steps})"))


def good_chains(chains: Chains, bad: Iterable[int]) -> Chains:
    """Return the chains without those that contain a `bad` transition, by its row; invalid ones are left unchanged."""
    count, lengths = len(chains.transitions), chains.lengths
    is_possible = ((lengths > 0) & (lengths <= count)).all()  # checked first: their sum could overflow
    if not is_possible or lengths.size != chains.identities.size or lengths.sum() != count:
        return chains
    belongs_to = np.repeat(np.arange(lengths.size), lengths)
    good = np.setdiff1d(np.arange(lengths.size), belongs_to[list(bad)])
    rows = np.flatnonzero(np.isin(belongs_to, good))
    return Chains(
        chains.identities[good],
        lengths[good],
        chains.rewards[good],
        chains.transitions.pick(rows),
        chains.td_errors[rows],
    )


def _where(is_bad: NDArray[np.bool_]) -> list[int]:
    """Return the rows in which it is true."""
    rows: list[int] = is_bad.nonzero()[0].tolist() if is_bad.any() else []
    return rows


def _check_states(transitions: Transitions, layout: Layout, found: Faults) -> None:
    """Check each frame once, although consecutive states share most of them."""
    stacks = [*zip(transitions.s_tm1, transitions.s_t, strict=True)]
    frames = {id(frame): frame for frame in chain.from_iterable(chain.from_iterable(stacks))}
    bad = _bad_frames(frames, layout)
    is_regular = all(len(stack) == layout.frames for stack in chain.from_iterable(stacks))
    if is_regular and not bad:
        return
    for row, states in enumerate(stacks):
        if fault := next(filter(None, (_fault_of(state, bad, layout) for state in states)), None):
            found.setdefault(row, fault)


def _fault_of(state: Stack, bad: dict[int, Fault], layout: Layout) -> Fault | None:
    if len(state) != layout.frames:
        return Fault(FRAME, f"a state of {counted(len(state), 'frame')} instead of {layout.frames}")
    return next((bad[id(frame)] for frame in state if id(frame) in bad), None)


def _bad_frames(frames: dict[int, bytes], layout: Layout) -> dict[int, Fault]:
    """Return the frames that are bad, by their keys."""
    size = CHECKSUM_BYTES + layout.frame_bytes
    # Pixels that cannot be compressed grow by at most this much (LZ4_compressBound).
    low, high = (size, size) if layout.is_vector else (CHECKSUM_BYTES + 1, size + layout.frame_bytes // 255 + 16)
    bad = {
        key: Fault(FRAME, f"a frame of {len(frame):,} bytes, which must be {_range(low, high)}")
        for key, frame in frames.items()
        if not low <= len(frame) <= high
    }
    if not are_intact(frames.values()):
        damaged = Fault(FRAME, "a frame whose checksum does not match")
        bad |= {key: damaged for key, frame in frames.items() if key not in bad and not are_intact([frame])}
    if not layout.is_vector:
        return bad
    return bad | _not_finite({key: frame for key, frame in frames.items() if key not in bad})


def _not_finite(vectors: dict[int, bytes]) -> dict[int, Fault]:
    """Return the vectors with a number that is not finite; all must have the same size."""
    if not vectors:
        return {}
    rows = np.frombuffer(b"".join(vectors.values()), np.float32).reshape(len(vectors), -1)
    finite = np.isfinite(rows[:, : -CHECKSUM_BYTES // rows.itemsize])
    keys, fault = list(vectors), Fault(OBSERVATION, "an observation that is not finite")
    return {keys[row]: fault for row in _where(np.asarray(~finite.all(axis=1)))}


def _range(low: int, high: int) -> str:
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"
