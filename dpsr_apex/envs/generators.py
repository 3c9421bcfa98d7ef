"""The state of a numpy random generator in a few bytes, for snapshots. Supports PCG64, numpy's default."""

from __future__ import annotations

import struct

import numpy as np

# State, increment, buffered 32-bit number, and whether there is one.
_STATE = struct.Struct("<16s16sIB")

GENERATOR_BYTES = _STATE.size


def pack_generator(generator: np.random.Generator) -> bytes:
    """Serialize the state of a generator into `GENERATOR_BYTES` bytes."""
    state = generator.bit_generator.state
    return _STATE.pack(
        state["state"]["state"].to_bytes(16, "little"),
        state["state"]["inc"].to_bytes(16, "little"),
        state["uinteger"],
        state["has_uint32"],
    )


def set_generator(generator: np.random.Generator, packed: bytes) -> None:
    """Set the state of `generator` to one that `pack_generator` serialized; raise ValueError if it cannot be one."""
    try:
        state, increment, buffered, has_buffered = _STATE.unpack(packed)
    except struct.error as error:
        raise ValueError(f"not the state of a generator: {error}") from error
    # An increment is always odd. With an even one the numbers could repeat so soon that a caller never finishes.
    if not increment[0] & 1 or has_buffered > 1:
        raise ValueError("not the state of a PCG64 generator")
    generator.bit_generator.state = {
        "bit_generator": "PCG64",
        "state": {"state": int.from_bytes(state, "little"), "inc": int.from_bytes(increment, "little")},
        "has_uint32": has_buffered,
        "uinteger": buffered,
    }
