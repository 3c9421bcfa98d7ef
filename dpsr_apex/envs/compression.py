"""Frames and snapshots to small bytes and back.

Frames rest and travel squeezed; only the learner and a recycling actor inflate them. Nothing here knows a game, and
nothing here is ever unpickled.
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
    """A snapshot that was cut, changed on its way, or taken in another game."""


class FrameCodec:
    """One environment's frames: pixels (uint8) as LZ4 blocks, everything else as it is."""

    def __init__(self, shape: tuple[int, ...], dtype: DTypeLike) -> None:
        self.shape = shape
        self.dtype = np.dtype(dtype)
        self._frame_bytes = int(np.prod(shape)) * self.dtype.itemsize
        self._packed = self.dtype == np.uint8

    def squeeze(self, frame: Frame) -> bytes:
        """The frame as immutable bytes; its shape and dtype must be the codec's."""
        if frame.shape != self.shape or frame.dtype != self.dtype:
            raise ValueError(f"a frame of {frame.dtype}{frame.shape} where {self.dtype}{self.shape} was expected")
        if not self._packed:
            return frame.tobytes()
        packed: bytes = lz4.block.compress(np.ascontiguousarray(frame), store_size=False)
        return packed

    def inflate(self, squeezed: bytes) -> Frame:
        """The frame again, in an array of its own."""
        frame: Frame = self.inflate_stacks([(squeezed,)])[0, 0]
        return frame

    def inflate_stack(self, stack: Stack) -> NDArray[Any]:
        """One observation as an array of shape (stack, *frame shape)."""
        frames: NDArray[Any] = self.inflate_stacks([stack])[0]
        return frames

    def inflate_stacks(self, stacks: Sequence[Stack]) -> NDArray[Any]:
        """Observations of equal depth as one array of shape (batch, stack, *frame shape).

        A piece that occurs several times, as the same object, is inflated once. Bytes that are no frame of this shape
        raise ValueError; there is no checksum, so a changed pixel may pass.
        """
        depth = len(stacks[0]) if stacks else 0
        if any(len(stack) != depth for stack in stacks):
            raise ValueError("observations of different depth in one batch")
        pieces = list(chain.from_iterable(stacks))
        names = list(map(id, pieces))  # not their content, which takes as long to hash as to inflate
        different = dict(zip(names, pieces, strict=True))
        raw_of = dict(zip(different, self._raw(different.values()), strict=True))
        inflated = np.frombuffer(bytearray().join(map(raw_of.__getitem__, names)), self.dtype)
        return inflated.reshape(len(stacks), depth, *self.shape)

    def _raw(self, pieces: Collection[bytes]) -> Collection[bytes]:
        """The frames of these pieces, each of the codec's size."""
        size = self._frame_bytes
        try:
            raw = [lz4.block.decompress(piece, size) for piece in pieces] if self._packed else pieces
        except (lz4.block.LZ4BlockError, OverflowError) as error:
            raise ValueError(f"damaged frame: {error}") from error
        if wrong := set(map(len, raw)) - {size}:
            raise ValueError(f"damaged frame: {min(wrong)} bytes where {size} were expected")
        return raw


class SnapshotCodec:
    """Snapshots of one game, squeezed against a state of that game which every process can derive for itself.

    The frame carries a checksum of its content, so that a damaged snapshot is refused before an emulator sees it: an
    emulator trusts its bytes, and wrong ones can take the whole process along.
    """

    LARGEST = 1 << 24  # bytes of an inflated snapshot

    def __init__(self, dictionary: bytes = b"") -> None:
        known = zstandard.ZstdCompressionDict(dictionary, dict_type=zstandard.DICT_TYPE_RAWCONTENT)
        self._compressor = zstandard.ZstdCompressor(level=3, dict_data=known, write_checksum=True)
        self._decompressor = zstandard.ZstdDecompressor(dict_data=known)

    def squeeze(self, state: bytes) -> bytes:
        """The state in a few bytes."""
        return self._compressor.compress(state)

    def inflate(self, snapshot: bytes) -> bytes:
        """The state again; DamagedSnapshot if these are not bytes that `squeeze` gave for this game."""
        try:
            header = zstandard.get_frame_parameters(snapshot)
            if not header.has_checksum or header.content_size > self.LARGEST:
                raise DamagedSnapshot("damaged snapshot: its header is not one of ours")
            return self._decompressor.decompress(snapshot, allow_extra_data=False)
        except zstandard.ZstdError as error:
            raise DamagedSnapshot(f"damaged snapshot, or one of another game: {error}") from error


def seal(body: bytes) -> bytes:
    """`body` behind a checksum."""
    return crc32(body).to_bytes(4, "little") + body


def unseal(sealed: bytes) -> bytes:
    """What was sealed; DamagedSnapshot if it is not the same any more."""
    body = sealed[4:]
    if not body or crc32(body).to_bytes(4, "little") != sealed[:4]:
        raise DamagedSnapshot("damaged snapshot: its checksum does not match")
    return body
