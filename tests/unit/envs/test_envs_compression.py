from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from dpsr_apex.envs.compression import DamagedSnapshot, FrameCodec, SnapshotCodec

PIXELS = FrameCodec((6, 5), np.uint8)
VECTORS = FrameCodec((3,), np.float32)
STATE = bytes(range(256)) * 30


@given(arrays(np.uint8, (6, 5)))
def test_a_pixel_frame_comes_back(frame: np.ndarray) -> None:
    np.testing.assert_array_equal(PIXELS.inflate(PIXELS.squeeze(frame)), frame)


@given(arrays(np.float32, (3,)))
def test_a_vector_comes_back_to_the_last_bit(frame: np.ndarray) -> None:
    assert VECTORS.inflate(VECTORS.squeeze(frame)).tobytes() == frame.tobytes()


@given(st.lists(st.tuples(*[st.integers(0, 3)] * 4), max_size=5))
def test_stacks_that_share_frames_come_back_in_their_places(picks: list[tuple[int, ...]]) -> None:
    frames = np.random.default_rng(0).integers(256, size=(4, 6, 5), dtype=np.uint8)
    squeezed = [PIXELS.squeeze(frame) for frame in frames]
    inflated = PIXELS.inflate_stacks([tuple(squeezed[pick] for pick in picked) for picked in picks])
    assert inflated.shape[0] == len(picks)
    for stack, picked in zip(inflated, picks, strict=True):
        np.testing.assert_array_equal(stack, frames[list(picked)])


def test_a_view_that_is_not_contiguous_is_squeezed_as_it_looks() -> None:
    frame = np.arange(60, dtype=np.uint8).reshape(6, 10)[:, ::2]
    np.testing.assert_array_equal(PIXELS.inflate(PIXELS.squeeze(frame)), frame)


def test_an_inflated_stack_belongs_to_the_caller() -> None:
    stack = (VECTORS.squeeze(np.ones(3, np.float32)),)
    VECTORS.inflate_stack(stack)[:] = 7
    np.testing.assert_array_equal(VECTORS.inflate_stack(stack), np.ones((1, 3), np.float32))


@pytest.mark.parametrize("frame", [np.zeros((5, 6), np.uint8), np.zeros((6, 5), np.float32)])
def test_a_frame_of_another_kind_is_refused(frame: np.ndarray) -> None:
    with pytest.raises(ValueError, match="expected"):
        PIXELS.squeeze(frame)


@pytest.mark.parametrize("squeezed", [b"", b"\xff\xff\xff", PIXELS.squeeze(np.zeros((6, 5), np.uint8))[:-1]])
def test_damaged_pixels_are_refused(squeezed: bytes) -> None:
    with pytest.raises(ValueError, match="damaged frame"):
        PIXELS.inflate(squeezed)


def test_a_frame_of_another_size_is_refused() -> None:
    smaller = FrameCodec((2, 5), np.uint8).squeeze(np.zeros((2, 5), np.uint8))
    larger = FrameCodec((60, 5), np.uint8).squeeze(np.zeros((60, 5), np.uint8))
    for squeezed in (smaller, larger):
        with pytest.raises(ValueError, match="damaged frame"):
            PIXELS.inflate(squeezed)
    with pytest.raises(ValueError, match="8 bytes where 12"):
        VECTORS.inflate(bytes(8))


def test_observations_of_different_depth_are_refused() -> None:
    frame = VECTORS.squeeze(np.zeros(3, np.float32))
    with pytest.raises(ValueError, match="different depth"):
        VECTORS.inflate_stacks([(frame,), (frame, frame)])


@given(st.binary(max_size=2000))
def test_a_snapshot_comes_back(state: bytes) -> None:
    codec = SnapshotCodec(STATE)
    assert codec.inflate(codec.squeeze(state)) == state


def test_a_state_near_the_dictionary_takes_few_bytes() -> None:
    near = bytearray(STATE)
    near[100:104] = b"\1\2\3\4"
    assert len(SnapshotCodec(STATE).squeeze(bytes(near))) < 60


@given(st.data())
def test_a_flipped_bit_never_gives_another_state(data: st.DataObject) -> None:
    codec = SnapshotCodec(STATE)
    state = STATE[:500] + b"something of its own" + STATE[500:]
    damaged = bytearray(codec.squeeze(state))
    damaged[data.draw(st.integers(0, len(damaged) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    try:
        inflated = codec.inflate(bytes(damaged))
    except DamagedSnapshot:
        return
    assert inflated == state  # a bit of the header that says nothing about the content


def test_cut_lengthened_foreign_and_empty_snapshots_are_refused() -> None:
    codec = SnapshotCodec(STATE)
    squeezed = codec.squeeze(STATE[::-1])
    foreign = SnapshotCodec(STATE[::-1]).squeeze(STATE[::-1])
    for damaged in (squeezed[:-1], squeezed + b"x", foreign, b"", STATE):
        with pytest.raises(DamagedSnapshot):
            codec.inflate(damaged)


def test_a_frame_without_checksum_is_refused() -> None:
    import zstandard

    with pytest.raises(DamagedSnapshot, match="header"):
        SnapshotCodec().inflate(zstandard.ZstdCompressor().compress(STATE))
