"""A batch read in packed form, without an object for each frame, is what is read transition by transition."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from dpsr_apex.agent.protocol import SharedExperience
from dpsr_apex.checksums import add_checksum
from dpsr_apex.envs.compression import FrameCodec
from dpsr_apex.envs.decompression import Decompressor
from dpsr_apex.replay.transitions import PackedTransitions, Stack, Transitions, from_lists, unpacked
from dpsr_apex.roles.experience import read_packed, sift
from dpsr_apex.wire.codec import decode, encode
from dpsr_apex.wire.messages import Batch

CODEC = FrameCodec((6, 5), np.uint8)
ROWS, ACTIONS = 9, 3


def episode() -> Transitions:
    """Transitions of which consecutive ones share frames, and one of which has the snapshot of another."""
    rng = np.random.default_rng(0)
    frames = [CODEC.compress(rng.integers(0, 256, CODEC.shape, np.uint8)) for _ in range(ROWS + 4)]
    stacks: list[Stack] = [tuple(frames[i : i + 4]) for i in range(ROWS + 1)]
    return from_lists(
        s_tm1=stacks[:-1],
        a_tm1=rng.integers(ACTIONS, size=ROWS),
        r_t=rng.normal(size=ROWS),
        s_t=stacks[1:],
        terminal=rng.random(ROWS) < 0.5,
        n_steps=rng.integers(1, 4, size=ROWS),
        snapshots=[b"", *(b"snapshot %d" % i for i in range(ROWS - 2)), b""],
    )


def received(transitions: Transitions) -> PackedTransitions:
    """The transitions as a learner receives them."""
    count = len(transitions)
    batch = decode(encode(Batch(0, 0, np.arange(count), np.ones(count, np.float32), transitions)))
    assert isinstance(batch, Batch)
    assert isinstance(batch.transitions, PackedTransitions)
    return batch.transitions


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("rows", [[0], [3, 3, 1], list(range(ROWS))])
def test_a_packed_batch_is_read_as_its_transitions_are(rows: list[int], threads: int) -> None:
    transitions = episode().pick(np.array(rows))
    found = read_packed(received(transitions), Decompressor(CODEC, threads), ACTIONS)
    expected = sift(transitions, Decompressor(CODEC), ACTIONS, {}).experience
    assert isinstance(found, SharedExperience)
    assert isinstance(expected, SharedExperience)
    assert len(found.frames) == len(expected.frames)
    for one, other in zip(found.stacked(), expected.stacked(), strict=True):
        np.testing.assert_array_equal(one, other, strict=True)


def with_state(state: Stack) -> Callable[[Transitions], Transitions]:
    """Replace the state that transition 4 leads to."""
    return lambda made: replace(made, s_t=[*made.s_t[:4], state, *made.s_t[5:]])


def with_number(name: str, number: float) -> Callable[[Transitions], Transitions]:
    """Replace a number of transition 4."""

    def spoil(made: Transitions) -> Transitions:
        numbers = getattr(made, name).copy()
        numbers[4] = number
        return replace(made, **{name: numbers})

    return spoil


GOOD = CODEC.compress(np.zeros(CODEC.shape, np.uint8))
SPOILT = {
    "a changed byte": with_state((GOOD, GOOD, GOOD, GOOD[:-1] + bytes([GOOD[-1] ^ 1]))),
    "no frame": with_state((GOOD, GOOD, GOOD, add_checksum(b"none"))),
    "an empty frame": with_state((GOOD, GOOD, GOOD, b"")),
    "another depth": with_state((GOOD, GOOD)),
    "no state": with_state(()),
    "a reward": with_number("r_t", float("inf")),
    "an action": with_number("a_tm1", ACTIONS),
}


@pytest.mark.parametrize("spoil", SPOILT.values(), ids=SPOILT)
def test_what_cannot_be_used_is_left_to_the_reader_of_single_transitions(
    spoil: Callable[[Transitions], Transitions],
) -> None:
    packed = received(spoil(episode()))
    assert read_packed(packed, Decompressor(CODEC), ACTIONS) is None
    sifted = sift(unpacked(packed), Decompressor(CODEC), ACTIONS, {})
    assert sifted.faults.keys() == {4} or "depth" in str(sifted.faults), sifted.faults


def test_an_empty_batch_has_no_states() -> None:
    assert received(from_lists(s_tm1=[])).states() is None
