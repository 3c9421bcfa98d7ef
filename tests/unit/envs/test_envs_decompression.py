"""A batch decompressed by compiled threads is what `FrameCodec` returns frame by frame; damage is always found."""

from __future__ import annotations

import lz4.block
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from dpsr_apex.agent.protocol import SharedExperience
from dpsr_apex.checksums import add_checksum
from dpsr_apex.envs.compression import DamagedFrame, FrameCodec
from dpsr_apex.envs.decompression import FEWEST, Decompressor
from dpsr_apex.envs.shared_frames import Observations, SharedFrames
from dpsr_apex.replay.transitions import Stack

SHAPE = (5, 7)
CODEC = FrameCodec(SHAPE, np.uint8)


def stacked(observations: Observations) -> NDArray[np.uint8]:
    """Return the observations as an array."""
    assert isinstance(observations, SharedFrames)
    array: NDArray[np.uint8] = observations.distinct[observations.index]
    return array


def episode(steps: int, depth: int = 4) -> list[Stack]:
    """Return stacks of random frames, of which consecutive ones share all but one."""
    rng = np.random.default_rng(steps)
    frames = [CODEC.compress(rng.integers(0, rng.integers(1, 256), SHAPE, np.uint8)) for _ in range(steps + depth)]
    return [tuple(frames[i : i + depth]) for i in range(steps)]


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("steps", [1, 5, 3 * FEWEST + 1])
def test_any_number_of_threads_returns_the_frames_of_the_codec(threads: int, steps: int) -> None:
    stacks = [*episode(steps), *episode(steps)[::-1]]
    found = Decompressor(CODEC, threads)(stacks)
    assert np.array_equal(stacked(found), CODEC.decompress_stacks(stacks))


def test_each_distinct_frame_is_decompressed_once() -> None:
    stacks = episode(20)
    found = Decompressor(CODEC)([*stacks, *stacks])
    assert isinstance(found, SharedFrames)
    assert len(found.distinct) == len({id(frame) for stack in stacks for frame in stack}) == 23


@given(st.data())
def test_a_changed_bit_in_any_frame_is_found(data: st.DataObject) -> None:
    frames = [frame for (frame,) in episode(4, depth=1)]
    row = data.draw(st.integers(0, 3))
    bit = data.draw(st.integers(0, 8 * len(frames[row]) - 1))
    changed = int.from_bytes(frames[row], "little") ^ 1 << bit
    frames[row] = changed.to_bytes(len(frames[row]), "little")
    with pytest.raises(DamagedFrame):
        Decompressor(CODEC)([(frame,) for frame in frames])


@pytest.mark.parametrize(
    "block",
    [b"", b"\x00", b"no LZ4 block", lz4.block.compress(bytes(34), store_size=False), lz4.block.compress(bytes(36))],
    ids=["empty", "no content", "garbage", "too short", "too long"],
)
def test_a_block_with_a_checksum_and_another_content_is_rejected(block: bytes) -> None:
    (good,) = episode(1, depth=1)[0]
    for threads in (1, 2):
        with pytest.raises(DamagedFrame):
            Decompressor(CODEC, threads)([(good,)] * 3 + [(add_checksum(block),)] + episode(2 * FEWEST, depth=1))


def test_observations_of_different_depth_are_rejected() -> None:
    with pytest.raises(ValueError, match="different depth"):
        Decompressor(CODEC)([*episode(1, depth=2), *episode(1, depth=1)])


def test_vectors_are_returned_as_an_array() -> None:
    codec = FrameCodec((3,), np.float32)
    vectors = np.arange(6, dtype=np.float32).reshape(2, 3)
    found = Decompressor(codec, 2)([(codec.compress(vector),) for vector in vectors])
    assert isinstance(found, np.ndarray)
    assert np.array_equal(found[:, 0], vectors)


def test_a_shared_experience_can_be_stacked() -> None:
    frames = np.arange(3 * 35, dtype=np.uint8).reshape(3, *SHAPE)
    first, second = np.array([[0, 1], [1, 2]]), np.array([[1, 2], [2, 2]])
    numbers = np.zeros(2, np.int64), np.ones(2, np.float32)
    ends = np.zeros(2, np.bool_), np.ones(2, np.uint8)
    found = SharedExperience(frames, first, *numbers, second, *ends).stacked()
    assert np.array_equal(found.s_tm1, frames[first])
    assert np.array_equal(found.s_t, frames[second])
    assert found.r_t is numbers[1]
