"""Compression of frames and snapshots.

Frames are stored and sent compressed, each with a checksum; only the learner and a recycling actor decompress them.
Nothing is unpickled.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import Any, Final

import lz4.block
import numpy as np
import zstandard
from numpy.typing import DTypeLike, NDArray

from dpsr_apex.checksums import CHECKSUM_BYTES, add_checksum, are_intact, is_intact
from dpsr_apex.envs.snapshot import Frame
from dpsr_apex.replay.transitions import Stack

DAMAGED: Final = "damaged frame: its checksum does not match"


class DamagedFrame(ValueError):
    """A frame whose checksum does not match, or that is none of this environment."""


class DamagedSnapshot(ValueError):
    """A snapshot that is truncated, corrupted, or from another game."""


@contextmanager
def raising_damage() -> Iterator[None]:
    """Convert any exception into DamagedSnapshot: in a damaged state, an environment can raise anything."""
    try:
        yield
    except DamagedSnapshot:
        raise
    except DamagedFrame as error:
        raise DamagedSnapshot(str(error)) from error
    except Exception as error:
        raise DamagedSnapshot(f"{type(error).__name__}: {error}") from error


class FrameCodec:
    """Compresses one environment's frames: pixels (uint8) as LZ4 blocks; other dtypes are stored uncompressed.

    Compressed bytes end with their checksum.
    """

    def __init__(self, shape: tuple[int, ...], dtype: DTypeLike) -> None:
        self.shape = shape
        self.dtype = np.dtype(dtype)
        self.frame_bytes = int(np.prod(shape)) * self.dtype.itemsize
        self.is_compressed = self.dtype == np.uint8
        self._strides = np.empty(shape, dtype).strides

    def compress(self, frame: Frame) -> bytes:
        """Return the compressed bytes of a frame; its shape and dtype must be the codec's."""
        if frame.shape != self.shape or frame.dtype != self.dtype:
            raise ValueError(f"expected a frame of {self.dtype}{self.shape} (got {frame.dtype}{frame.shape})")
        if not self.is_compressed:
            return add_checksum(frame.tobytes())
        return add_checksum(lz4.block.compress(np.ascontiguousarray(frame), store_size=False))

    def decompress(self, compressed: bytes) -> Frame:
        """Return the frame as a new array."""
        frame: Frame = self.decompress_stacks([(compressed,)])[0, 0]
        return frame

    def decompress_stack(self, stack: Stack) -> NDArray[Any]:
        """Return one observation as a new array of shape (stack, *frame shape)."""
        frames: NDArray[Any] = self.decompress_stacks([stack])[0]
        return frames

    def decompress_stacks(self, stacks: Sequence[Stack]) -> NDArray[Any]:
        """Return observations of equal depth as one new array of shape (batch, stack, *frame shape).

        A bytes object that occurs several times is decompressed once. Raise DamagedFrame for bytes that `compress` did
        not return, and ValueError if the observations have different depths.
        """
        depth = len(stacks[0]) if stacks else 0
        if set(map(len, stacks)) != {depth} and stacks:
            raise ValueError("observations of different depth in one batch")
        frames = list(chain.from_iterable(stacks))
        read = self._decompressed if self.is_compressed else self._uncompressed
        return read(frames).reshape(len(stacks), depth, *self.shape)

    def _decompressed(self, frames: Sequence[bytes]) -> NDArray[Any]:
        """Return the content of these frames, concatenated; each bytes object is decompressed once."""
        keys = list(map(id, frames))  # not their content, which takes as long to hash as to decompress
        distinct = dict(zip(keys, frames, strict=True))
        _ensure_intact(distinct.values())
        size = self.frame_bytes
        try:
            raw = [lz4.block.decompress(frame[:-CHECKSUM_BYTES], size) for frame in distinct.values()]
        except (lz4.block.LZ4BlockError, OverflowError) as error:
            raise DamagedFrame(f"damaged frame: {error}") from error
        _ensure_size(raw, size)
        raw_by_key = dict(zip(distinct, raw, strict=True))
        return np.frombuffer(bytearray().join(map(raw_by_key.__getitem__, keys)), self.dtype)

    def read_pairs(self, pairs: NDArray[np.void]) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return the first and the second frame of each pair, which are not compressed; raise DamagedFrame."""
        size = self.frame_bytes + CHECKSUM_BYTES
        if pairs.dtype.itemsize != 2 * size:
            raise DamagedFrame(f"damaged frames: expected {2 * size} bytes (got {pairs.dtype.itemsize})")
        if not is_intact(pairs.data, 2 * pairs.size):
            raise DamagedFrame(DAMAGED)
        shape, strides = (pairs.size, *self.shape), (2 * size, *self._strides)
        first = np.ndarray(shape, self.dtype, pairs, 0, strides)
        return first.copy(), np.ndarray(shape, self.dtype, pairs, size, strides).copy()

    def _uncompressed(self, frames: Sequence[bytes]) -> NDArray[Any]:
        """Return the content of these frames, which are not compressed, concatenated."""
        size = self.frame_bytes
        joined = b"".join(frames)
        if set(map(len, frames)) - {size + CHECKSUM_BYTES} or (frames and not is_intact(joined, len(frames))):
            _ensure_intact(frames)
            _ensure_size(frames, size, CHECKSUM_BYTES)
        rows = np.frombuffer(joined, np.uint8).reshape(len(frames), size + CHECKSUM_BYTES)
        return rows[:, :size].copy().view(self.dtype)


def _ensure_intact(frames: Collection[bytes]) -> None:
    if not are_intact(frames):
        raise DamagedFrame(DAMAGED)


def _ensure_size(frames: Collection[bytes], size: int, extra: int = 0) -> None:
    if wrong := set(map(len, frames)) - {size + extra}:
        raise DamagedFrame(f"damaged frame: expected {size} bytes (got {min(wrong) - extra})")


class SnapshotCodec:
    """Compresses snapshots of one game, with a state of that game that every process can derive as the dictionary.

    The zstd frame carries a checksum of its content, so that a damaged snapshot is rejected before it reaches an
    emulator: an emulator trusts its input, and corrupted bytes can crash the whole process.
    """

    MAX_STATE_BYTES = 1 << 24  # of a decompressed snapshot

    def __init__(self, dictionary: bytes = b"") -> None:
        zstd_dictionary = zstandard.ZstdCompressionDict(dictionary, dict_type=zstandard.DICT_TYPE_RAWCONTENT)
        self._compressor = zstandard.ZstdCompressor(level=3, dict_data=zstd_dictionary, write_checksum=True)
        self._decompressor = zstandard.ZstdDecompressor(dict_data=zstd_dictionary)

    def compress(self, state: bytes) -> bytes:
        """Compress a serialized state."""
        return self._compressor.compress(state)

    def decompress(self, snapshot: bytes) -> bytes:
        """Return the serialized state; raise DamagedSnapshot unless `compress` made `snapshot` for this game."""
        try:
            header = zstandard.get_frame_parameters(snapshot)
            if not header.has_checksum or header.content_size > self.MAX_STATE_BYTES:
                raise DamagedSnapshot("damaged snapshot: unexpected header")
            return self._decompressor.decompress(snapshot, allow_extra_data=False)
        except zstandard.ZstdError as error:
            raise DamagedSnapshot(f"damaged snapshot, or one of another game: {error}") from error


def verify_checksum(data: bytes) -> bytes:
    """Return the snapshot that was passed to `add_checksum`; raise DamagedSnapshot if it is empty or has changed."""
    body = data[:-CHECKSUM_BYTES]
    if not body or not are_intact([data]):
        raise DamagedSnapshot("damaged snapshot: its checksum does not match")
    return body
