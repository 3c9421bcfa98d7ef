"""Decompression of a whole batch of frames in one compiled call without the GIL, so that threads share the work.

The learner decompresses each distinct frame of a batch once. Python only collects the bytes objects; their checksums
and their LZ4 blocks are read by compiled code, which calls the LZ4 library itself.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain, pairwise
from typing import Any, Final

import lz4.block
import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic
from numpy.typing import NDArray

from dpsr_apex.checksums import CHECKSUM_BYTES, RESIDUE
from dpsr_apex.envs.compression import DAMAGED, DamagedFrame, FrameCodec
from dpsr_apex.envs.shared_frames import Observations, SharedFrames
from dpsr_apex.replay.transitions import PackedStates, Stack

Bytes = NDArray[np.uint8]
Integers = NDArray[np.int64]

POLYNOMIAL: Final = 0xEDB88320  # of CRC-32, bits reversed
STEP: Final = 8  # bytes that the checksum takes at once
FEWEST: Final = 128  # frames for a thread of their own


def _tables() -> NDArray[np.uint32]:
    """Return the tables of CRC-32 for `STEP` bytes at once: entry [k, b] is for the byte b with k bytes after it."""
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.where(table & 1, table >> 1 ^ np.uint32(POLYNOMIAL), table >> 1).astype(np.uint32)
    tables = [table]
    for _ in range(STEP - 1):
        tables.append(table[tables[-1] & 255] ^ tables[-1] >> 8)
    return np.array(tables, np.uint32)


TABLES: Final = _tables()
_LZ4: Final = ctypes.CDLL(lz4.block._block.__file__).LZ4_decompress_safe
LZ4_ADDRESS: Final = int(ctypes.cast(_LZ4, ctypes.c_void_p).value or 0)


def _typed_call(_context: Any, _address: Any, _source: Any, _target: Any, _size: Any, _capacity: Any) -> Any:
    """Return the type and the code of a call of LZ4_decompress_safe: int f(const char*, char*, int, int)."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        number, pointer = ir.IntType(32), ir.IntType(8).as_pointer()
        kind = ir.FunctionType(number, [pointer, pointer, number, number])
        function, start, end, *sizes = arguments
        called = builder.inttoptr(function, kind.as_pointer())
        pointers = [builder.inttoptr(place, pointer) for place in (start, end)]
        return builder.call(called, [*pointers, *(builder.trunc(length, number) for length in sizes)])

    return types.int32(*[types.int64] * 5), generate


_call_lz4: Any = intrinsic(_typed_call)


@njit(cache=True, nogil=True)
def _crc32(data: Bytes, tables: NDArray[np.uint32]) -> np.uint32:
    """Return the CRC-32 of these bytes."""
    crc = np.uint32(0xFFFFFFFF)
    low = np.uint32(255)
    i = 0
    while i + STEP <= data.size:
        first = crc ^ (
            np.uint32(data[i])
            | np.uint32(data[i + 1]) << np.uint32(8)
            | np.uint32(data[i + 2]) << np.uint32(16)
            | np.uint32(data[i + 3]) << np.uint32(24)
        )
        crc = (
            tables[7, first & low]
            ^ tables[6, first >> np.uint32(8) & low]
            ^ tables[5, first >> np.uint32(16) & low]
            ^ tables[4, first >> np.uint32(24)]
            ^ tables[3, data[i + 4]]
            ^ tables[2, data[i + 5]]
            ^ tables[1, data[i + 6]]
            ^ tables[0, data[i + 7]]
        )
        i += STEP
    while i < data.size:
        crc = tables[0, (crc ^ np.uint32(data[i])) & low] ^ crc >> np.uint32(8)
        i += 1
    return crc ^ np.uint32(0xFFFFFFFF)


@njit(cache=True, nogil=True)
def _decompress(
    frames: Bytes, joined: Bytes, ends: Integers, first: int, tables: NDArray[np.uint32], residue: int, lz4_address: int
) -> int:
    """Fill the rows of `frames` with the blocks from number `first` on; return how many rows precede a damaged one."""
    size = frames.shape[1]
    for row in range(frames.shape[0]):
        block = first + row
        start, end = ends[block - 1] if block else 0, ends[block]
        if _crc32(joined[start:end], tables) != residue:
            return row
        source, target = joined.ctypes.data + start, frames.ctypes.data + row * size
        if _call_lz4(lz4_address, source, target, end - start - CHECKSUM_BYTES, size) != size:
            return row
    return int(frames.shape[0])


class Decompressor:
    """Decompresses batches of frames of one environment, with a number of threads."""

    def __init__(self, codec: FrameCodec, threads: int = 1) -> None:
        self._codec = codec
        self._pool = ThreadPoolExecutor(threads - 1, "decompress") if threads > 1 else None
        self._threads = threads

    def __call__(self, stacks: Sequence[Stack] | PackedStates) -> Observations:
        """Return these observations: compressed ones with their distinct frames, each decompressed once.

        Raise DamagedFrame for bytes that the codec did not return, and ValueError for different depths.
        """
        if isinstance(stacks, PackedStates):
            return SharedFrames(self._frames(np.frombuffer(stacks.pieces, np.uint8), stacks.ends), stacks.frames)
        if not self._codec.is_compressed or not stacks:
            return self._codec.decompress_stacks(stacks)
        depth = len(stacks[0])
        if set(map(len, stacks)) != {depth}:
            raise ValueError("observations of different depth in one batch")
        mentions = list(chain.from_iterable(stacks))
        keys = list(map(id, mentions))
        distinct = dict(zip(keys, mentions, strict=True))
        numbers = dict(zip(distinct, range(len(distinct)), strict=True))
        index = np.fromiter(map(numbers.__getitem__, keys), np.int64, len(keys)).reshape(len(stacks), depth)
        ends = np.cumsum(np.fromiter(map(len, distinct.values()), np.int64, len(distinct)))
        return SharedFrames(self._frames(np.frombuffer(b"".join(distinct.values()), np.uint8), ends), index)

    def _frames(self, joined: Bytes, ends: Integers) -> NDArray[Any]:
        """Return the frames of which the bytes consist, decompressed by all threads."""
        count = ends.size
        if np.diff(ends, prepend=0).min() <= CHECKSUM_BYTES:
            raise DamagedFrame(DAMAGED)
        frames = np.empty((count, self._codec.frame_bytes), np.uint8)
        parts = max(min(self._threads, count // FEWEST), 1)
        bounds = [count * part // parts for part in range(parts + 1)]
        tasks = [(frames[start:end], joined, ends, start) for start, end in pairwise(bounds)]
        others = [self._pool.submit(read_blocks, *task) for task in tasks[1:]] if self._pool else []
        sound = read_blocks(*tasks[0])
        if not all([sound, *(other.result() for other in others)]):
            raise DamagedFrame("damaged frame: its checksum does not match, or its content has another size")
        return frames.reshape(count, *self._codec.shape)


def read_blocks(frames: Bytes, joined: Bytes, ends: Integers, first: int) -> bool:
    """Decompress the blocks from number `first` on into the rows of `frames`; return whether all were sound."""
    return bool(_decompress(frames, joined, ends, first, TABLES, RESIDUE, LZ4_ADDRESS) == len(frames))
