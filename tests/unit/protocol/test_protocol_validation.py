"""What is refused before it is stored, against a check of each transition on its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpsr_apex.checksums import add_checksum
from dpsr_apex.config import ActorConfig, Config, EnvConfig
from dpsr_apex.envs.compression import FrameCodec
from dpsr_apex.protocol import validation
from dpsr_apex.protocol.validation import (
    ACTION,
    FRAME,
    OBSERVATION,
    PRIORITY,
    REWARD,
    SNAPSHOT,
    STEPS,
    Validation,
    good_chains,
)
from dpsr_apex.replay.layout import UNKNOWN, Layout
from dpsr_apex.replay.records import Chains
from dpsr_apex.replay.transitions import Transitions, from_lists

CONFIG = Config(env=EnvConfig(reward_limit=10.0), actor=ActorConfig(n_steps=3))
CODECS = {True: FrameCodec((3,), np.float32), False: FrameCodec((6, 5), np.uint8)}
LAYOUTS = {is_vector: Layout(4, 2, codec.frame_bytes, is_vector) for is_vector, codec in CODECS.items()}


def made(count: int, is_vector: bool) -> Transitions:
    """Good transitions of two frames per state, which neighbours share."""
    codec = CODECS[is_vector]
    frames = [codec.compress(np.full(codec.shape, i, codec.dtype)) for i in range(count + 2)]
    return from_lists(
        s_tm1=[(frames[i], frames[i + 1]) for i in range(count)],
        a_tm1=[i % 4 for i in range(count)],
        r_t=[float(i % 10) for i in range(count)],
        s_t=[(frames[i + 1], frames[i + 2]) for i in range(count)],
        n_steps=[1 + i % 3 for i in range(count)],
        snapshots=[b"snapshot"] * count,
    )


def kinds(transitions: Transitions, layout: Layout, td_errors: Any = None) -> dict[int, str]:
    faults = Validation(CONFIG).faults(transitions, td_errors, layout)
    return {row: fault.kind for row, fault in faults.items()}


Spoil = Callable[[Transitions, int, bool], None]


def frame_of(content: bytes) -> Spoil:
    def spoil(rows: Transitions, row: int, _: bool) -> None:
        rows.s_t[row] = (rows.s_t[row][0], content)

    return spoil


def set_to(column: str, value: float) -> Spoil:
    def spoil(rows: Transitions, row: int, _: bool) -> None:
        getattr(rows, column)[row] = value

    return spoil


def flip(rows: Transitions, row: int, _: bool) -> None:
    old = rows.s_tm1[row][1]
    rows.s_tm1[row] = (rows.s_tm1[row][0], bytes([old[0] ^ 1]) + old[1:])


def without_frame(rows: Transitions, row: int, _: bool) -> None:
    rows.s_tm1[row] = rows.s_tm1[row][:1]


def nan(rows: Transitions, row: int, is_vector: bool) -> None:
    vector = add_checksum(np.array([0, np.nan, 0], np.float32).tobytes())
    frame_of(vector if is_vector else b"\0" * 4)(rows, row, is_vector)


def large_snapshot(rows: Transitions, row: int, _: bool) -> None:
    rows.snapshots[row] = bytes(validation.MOST_SNAPSHOT_BYTES + 1)


SPOILS: dict[str, tuple[Spoil, str]] = {
    "action 4": (set_to("a_tm1", 4), ACTION),
    "action -1": (set_to("a_tm1", -1), ACTION),
    "reward": (set_to("r_t", 30.5), REWARD),
    "nan": (set_to("r_t", np.nan), REWARD),
    "infinity": (set_to("r_t", -np.inf), REWARD),
    "steps": (set_to("n_steps", 4), STEPS),
    "no bytes": (frame_of(b""), FRAME),
    "too long": (frame_of(add_checksum(bytes(100))), FRAME),
    "no checksum": (frame_of(bytes(16)), FRAME),
    "flipped bit": (flip, FRAME),
    "frames": (without_frame, FRAME),
    "snapshot": (large_snapshot, SNAPSHOT),
}


@pytest.mark.parametrize("is_vector", [True, False])
def test_good_transitions_have_no_fault(is_vector: bool) -> None:
    assert kinds(made(50, is_vector), LAYOUTS[is_vector]) == {}
    random = np.random.default_rng(0).integers(256, size=(6, 5), dtype=np.uint8)  # which does not compress
    rows = made(3, is_vector=False)
    frame_of(CODECS[False].compress(random))(rows, 1, False)
    assert kinds(rows, LAYOUTS[False]) == {}


@pytest.mark.parametrize("is_vector", [True, False])
@settings(max_examples=100, deadline=None, derandomize=True, database=None)
@given(spoilt=st.dictionaries(st.integers(0, 9), st.sampled_from([*SPOILS]), max_size=5))
def test_each_bad_transition_is_found_and_no_other(is_vector: bool, spoilt: dict[int, str]) -> None:
    rows = made(10, is_vector)
    for row, name in spoilt.items():
        SPOILS[name][0](rows, row, is_vector)
    expected = {row: SPOILS[name][1] for row, name in spoilt.items()}
    assert kinds(rows, LAYOUTS[is_vector]) == expected
    alone = {row: kinds(rows.rows(row, row + 1), LAYOUTS[is_vector]).get(0) for row in range(10)}
    assert {row: kind for row, kind in alone.items() if kind} == expected


def test_a_vector_with_a_number_that_is_none_is_an_observation_that_is_not_finite() -> None:
    rows = made(4, is_vector=True)
    nan(rows, 2, True)
    assert kinds(rows, LAYOUTS[True]) == {2: OBSERVATION}


def test_a_bad_frame_that_is_shared_spoils_every_transition_that_has_it() -> None:
    rows = made(6, is_vector=False)
    shared = rows.s_tm1[3][0]
    for stacks in (rows.s_tm1, rows.s_t):
        stacks[:] = [tuple(b"bad" if frame is shared else frame for frame in stack) for stack in stacks]
    assert kinds(rows, LAYOUTS[False]) == dict.fromkeys((1, 2, 3), FRAME)


def test_impossible_td_errors_are_priorities_that_are_bad() -> None:
    errors = np.array([0.0, -1e-9, np.nan, np.inf, 1e50, 1.1e50])
    assert kinds(made(6, True), LAYOUTS[True], errors) == dict.fromkeys((1, 2, 3, 5), PRIORITY)


def test_the_reward_limit_is_that_of_a_step() -> None:
    rows = made(3, True)
    rows.r_t[:] = [10.0, 20.0, 30.0]
    assert kinds(rows, LAYOUTS[True]) == {}
    rows.r_t[:] = [-10.5, -20.5, -30.5]
    assert kinds(rows, LAYOUTS[True]) == dict.fromkeys(range(3), REWARD)


def test_without_a_layout_only_numbers_and_sizes_are_checked() -> None:
    rows = made(2, True)
    for row, name in enumerate(("action 4", "no bytes")):
        SPOILS[name][0](rows, row, True)
    assert kinds(rows, UNKNOWN) == {}
    assert kinds(replace(rows, r_t=np.full(2, np.nan, np.float32)), UNKNOWN) == dict.fromkeys(range(2), REWARD)


@settings(max_examples=100, deadline=None, derandomize=True, database=None)
@given(lengths=st.lists(st.integers(1, 4), min_size=1, max_size=6), bad=st.sets(st.integers(0, 23)))
def test_chains_with_a_fault_are_left_out_whole(lengths: list[int], bad: set[int]) -> None:
    count = sum(lengths)
    names = np.arange(100, 100 + len(lengths))
    chains = Chains(
        names, np.array(lengths), names.astype(np.float64), made(count, True), np.arange(count, dtype=np.float64)
    )
    faults = {row: validation.Fault(REWARD, "") for row in bad if row < count}
    kept = dict(good_chains(chains, faults).split())
    starts = np.cumsum([0, *lengths])
    whole = [place for place in range(len(lengths)) if not bad & set(range(starts[place], starts[place + 1]))]
    assert sorted(kept) == [100 + place for place in whole]
    for place in whole:
        chain = kept[100 + place]
        assert chain.td_errors.tolist() == list(range(starts[place], starts[place + 1]))
        assert (len(chain.transitions), chain.reward) == (lengths[place], 100.0 + place)


@pytest.mark.parametrize("lengths", [[1, 1], [1, 2, 3], [0, 1, 2], [-1, 2, 2], [2**62, 2**62, 3 - 2**63]])
def test_chains_that_do_not_add_up_are_left_to_the_replay(lengths: list[int]) -> None:
    chains = Chains(np.arange(3), np.array(lengths), np.zeros(3), made(3, True), np.zeros(3))
    assert good_chains(chains, {0: validation.Fault(REWARD, "")}) is chains
