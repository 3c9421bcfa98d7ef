"""Compression of frames and snapshots.

Frames are stored and sent compressed; only the learner and a recycling actor decompress them. Nothing is unpickled.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import chain
from typing import Any
from zlib import crc32

import lz4.block
import numpy as np
import zstandard
from numpy.typing import DTypeLike, NDArray

from dpsr_apex.envs.snapshot import Frame
from dpsr_apex.replay.transitions import Stack


class DamagedSnapshot(ValueError):
    """A snapshot that is truncated, corrupted, or from another game."""


class FrameCodec:
    """Compresses one environment's frames: pixels (uint8) as LZ4 blocks; other dtypes are stored uncompressed."""

    def __init__(self, shape: tuple[int, ...], dtype: DTypeLike) -> None:
        self.shape = shape
        self.dtype = np.dtype(dtype)
        self._frame_bytes = int(np.prod(shape)) * self.dtype.itemsize
        self._compressible = self.dtype == np.uint8

    def compress(self, frame: Frame) -> bytes:
        """Return the compressed bytes of a frame; its shape and dtype must be the codec's."""
        if frame.shape != self.shape or frame.dtype != self.dtype:
            raise ValueError(f"expected a frame of {self.dtype}{self.shape} (got {frame.dtype}{frame.shape})")
        if not self._compressible:
            return frame.tobytes()
        compressed: bytes = lz4.block.compress(np.ascontiguousarray(frame), store_size=False)
        return compressed

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

        A bytes object that occurs several times is decompressed once. Bytes that are not a frame of this shape raise
        ValueError; there is no checksum, so a changed pixel is not detected.
        """
        depth = len(stacks[0]) if stacks else 0
        if any(len(stack) != depth for stack in stacks):
            raise ValueError("observations of different depth in one batch")
        frames = list(chain.from_iterable(stacks))
        keys = list(map(id, frames))  # not their content, which takes as long to hash as to decompress
        distinct = dict(zip(keys, frames, strict=True))
        raw_by_key = dict(zip(distinct, self._raw(distinct.values()), strict=True))
        decompressed = np.frombuffer(bytearray().join(map(raw_by_key.__getitem__, keys)), self.dtype)
        return decompressed.reshape(len(stacks), depth, *self.shape)

    def _raw(self, frames: Collection[bytes]) -> Collection[bytes]:
        """Decompress each frame and check its size."""
        size = self._frame_bytes
        try:
            raw = [lz4.block.decompress(frame, size) for frame in frames] if self._compressible else frames
        except (lz4.block.LZ4BlockError, OverflowError) as error:
            raise ValueError(f"damaged frame: {error}") from error
        if wrong := set(map(len, raw)) - {size}:
            raise ValueError(f"damaged frame: expected {size} bytes (got {min(wrong)})")
        return raw


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


def add_checksum(body: bytes) -> bytes:
    """Return `body` prefixed with its CRC-32."""
    return crc32(body).to_bytes(4, "little") + body


def verify_checksum(data: bytes) -> bytes:
    """Return the body that was passed to `add_checksum`; raise DamagedSnapshot if it is empty or has changed."""
    body = data[4:]
    if not body or crc32(body).to_bytes(4, "little") != data[:4]:
        raise DamagedSnapshot("damaged snapshot: its checksum does not match")
    return body
