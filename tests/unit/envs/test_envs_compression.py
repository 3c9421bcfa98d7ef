from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray

from dpsr_apex.checksums import add_checksum
from dpsr_apex.envs.compression import DamagedFrame, DamagedSnapshot, FrameCodec, SnapshotCodec

PIXELS = FrameCodec((6, 5), np.uint8)
VECTORS = FrameCodec((3,), np.float32)
STATE = bytes(range(256)) * 30


@given(arrays(np.uint8, (6, 5)))
def test_pixel_frames_round_trip(frame: np.ndarray) -> None:
    np.testing.assert_array_equal(PIXELS.decompress(PIXELS.compress(frame)), frame)


@given(arrays(np.float32, (3,)))
def test_vectors_round_trip_exactly(frame: np.ndarray) -> None:
    assert VECTORS.decompress(VECTORS.compress(frame)).tobytes() == frame.tobytes()


@given(st.lists(st.tuples(*[st.integers(0, 3)] * 4), max_size=5))
def test_stacks_that_share_frames_round_trip_in_order(picks: list[tuple[int, ...]]) -> None:
    frames = np.random.default_rng(0).integers(256, size=(4, 6, 5), dtype=np.uint8)
    compressed = [PIXELS.compress(frame) for frame in frames]
    decompressed = PIXELS.decompress_stacks([tuple(compressed[pick] for pick in picked) for picked in picks])
    assert decompressed.shape[0] == len(picks)
    for stack, picked in zip(decompressed, picks, strict=True):
        np.testing.assert_array_equal(stack, frames[list(picked)])


def test_a_non_contiguous_view_is_compressed_correctly() -> None:
    frame = np.arange(60, dtype=np.uint8).reshape(6, 10)[:, ::2]
    np.testing.assert_array_equal(PIXELS.decompress(PIXELS.compress(frame)), frame)


def test_a_decompressed_stack_is_a_new_array() -> None:
    stack = (VECTORS.compress(np.ones(3, np.float32)),)
    VECTORS.decompress_stack(stack)[:] = 7
    np.testing.assert_array_equal(VECTORS.decompress_stack(stack), np.ones((1, 3), np.float32))


@pytest.mark.parametrize("frame", [np.zeros((5, 6), np.uint8), np.zeros((6, 5), np.float32)])
def test_a_frame_of_another_shape_or_dtype_is_refused(frame: np.ndarray) -> None:
    with pytest.raises(ValueError, match="expected"):
        PIXELS.compress(frame)


@pytest.mark.parametrize("body", [b"", b"\xff\xff\xff", PIXELS.compress(np.zeros((6, 5), np.uint8))[4:-1]])
def test_bytes_that_are_no_pixels_are_refused(body: bytes) -> None:
    for compressed in (body, add_checksum(body)):
        with pytest.raises(DamagedFrame, match="damaged frame"):
            PIXELS.decompress(compressed)


@pytest.mark.parametrize("codec", [PIXELS, VECTORS])
@given(data=st.data())
def test_a_changed_bit_is_detected(codec: FrameCodec, data: st.DataObject) -> None:
    compressed = codec.compress(np.ones(codec.shape, codec.dtype))
    damaged = bytearray(compressed)
    damaged[data.draw(st.integers(0, len(damaged) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    for frame in (bytes(damaged), compressed[:-1], compressed + b"\0"):
        with pytest.raises(DamagedFrame, match="its checksum does not match"):
            codec.decompress_stacks([(compressed, frame)])


def pairs_of(codec: FrameCodec, *frames: NDArray[Any]) -> NDArray[np.void]:
    """Frames, compressed, in pairs."""
    joined = b"".join(map(codec.compress, frames))
    return np.frombuffer(joined, np.dtype((np.void, 2 * len(joined) // len(frames)))).copy()


@pytest.mark.parametrize("codec", [VECTORS, FrameCodec((2, 3), np.int16), FrameCodec((), np.int64)])
def test_pairs_are_read_as_the_frames_of_stacks(codec: FrameCodec) -> None:
    frames = [np.full(codec.shape, number, codec.dtype) for number in range(6)]
    first, second = codec.read_pairs(pairs_of(codec, *frames))
    expected = codec.decompress_stacks([(codec.compress(frame),) for frame in frames])[:, 0]
    for found, wanted in ((first, expected[::2]), (second, expected[1::2])):
        assert found.dtype == codec.dtype
        np.testing.assert_array_equal(found, wanted, strict=True)


@given(data=st.data())
def test_a_changed_bit_of_a_pair_is_detected(data: st.DataObject) -> None:
    pairs = pairs_of(VECTORS, *np.ones((6, 3), np.float32))
    raw = pairs.view(np.uint8)
    raw[data.draw(st.integers(0, raw.size - 1))] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(DamagedFrame, match="its checksum does not match"):
        VECTORS.read_pairs(pairs)


def test_pairs_of_another_size_are_refused() -> None:
    with pytest.raises(DamagedFrame, match=r"expected 32 bytes \(got 24\)"):
        VECTORS.read_pairs(pairs_of(FrameCodec((2,), np.float32), *np.ones((2, 2), np.float32)))


def test_a_frame_of_another_size_is_refused() -> None:
    smaller = FrameCodec((2, 5), np.uint8).compress(np.zeros((2, 5), np.uint8))
    larger = FrameCodec((60, 5), np.uint8).compress(np.zeros((60, 5), np.uint8))
    for compressed in (smaller, larger):
        with pytest.raises(ValueError, match="damaged frame"):
            PIXELS.decompress(compressed)
    with pytest.raises(ValueError, match=r"expected 12 bytes \(got 8\)"):
        VECTORS.decompress(add_checksum(bytes(8)))


def test_observations_of_different_depth_are_refused() -> None:
    frame = VECTORS.compress(np.zeros(3, np.float32))
    with pytest.raises(ValueError, match="different depth"):
        VECTORS.decompress_stacks([(frame,), (frame, frame)])


@given(st.binary(max_size=2000))
def test_snapshots_round_trip(state: bytes) -> None:
    codec = SnapshotCodec(STATE)
    assert codec.decompress(codec.compress(state)) == state


def test_a_state_similar_to_the_dictionary_takes_few_bytes() -> None:
    similar = bytearray(STATE)
    similar[100:104] = b"\1\2\3\4"
    assert len(SnapshotCodec(STATE).compress(bytes(similar))) < 60


@given(st.data())
def test_a_flipped_bit_never_yields_another_state(data: st.DataObject) -> None:
    codec = SnapshotCodec(STATE)
    state = STATE[:500] + b"something of its own" + STATE[500:]
    damaged = bytearray(codec.compress(state))
    damaged[data.draw(st.integers(0, len(damaged) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    try:
        decompressed = codec.decompress(bytes(damaged))
    except DamagedSnapshot:
        return
    assert decompressed == state  # an unused bit of the header


def test_truncated_extended_foreign_and_empty_snapshots_are_refused() -> None:
    codec = SnapshotCodec(STATE)
    compressed = codec.compress(STATE[::-1])
    foreign = SnapshotCodec(STATE[::-1]).compress(STATE[::-1])
    for damaged in (compressed[:-1], compressed + b"x", foreign, b"", STATE):
        with pytest.raises(DamagedSnapshot):
            codec.decompress(damaged)


def test_a_frame_without_checksum_is_refused() -> None:
    import zstandard

    with pytest.raises(DamagedSnapshot, match="header"):
        SnapshotCodec().decompress(zstandard.ZstdCompressor().compress(STATE))
