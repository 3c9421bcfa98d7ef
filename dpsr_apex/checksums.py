"""Checksums of bytes, which reveal a bit that has changed on the way or in memory. They do not authenticate."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from zlib import crc32

CHECKSUM_BYTES = 4
RESIDUE = crc32(bytes(CHECKSUM_BYTES))  # the CRC of any bytes that end with their own CRC


def add_checksum(body: bytes) -> bytes:
    """Return `body` followed by its CRC-32."""
    return body + crc32(body).to_bytes(CHECKSUM_BYTES, "little")


def are_intact(pieces: Iterable[bytes]) -> bool:
    """Whether `add_checksum` has returned each of these bytes."""
    return not set(map(crc32, pieces)) - {RESIDUE}


def is_intact(joined: bytes | memoryview, count: int) -> bool:
    """Whether `joined` is the concatenation of `count` results of `add_checksum`, all of the same length.

    The state of a CRC after bytes that end with their own CRC depends on their length only, not on their content. So
    the CRC of all of them is known, and one call checks it.
    """
    return crc32(joined) == _crc_of_intact(memoryview(joined).nbytes, count)


@lru_cache(maxsize=256)
def _crc_of_intact(length: int, count: int) -> int:
    return crc32(add_checksum(bytes(length // count - CHECKSUM_BYTES)) * count)
