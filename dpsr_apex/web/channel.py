"""Messages between the server, its emulator processes and the browser: a JSON object and some bytes.

One message is the length of the JSON text (four bytes, little-endian), the text, and the concatenated parts, whose
sizes are in the text. On a pipe, the length of the whole message precedes it; a WebSocket delimits messages itself, so
the server forwards the messages of an emulator unchanged.
"""

from __future__ import annotations

import json
import math
import os
import select
from asyncio import IncompleteReadError, StreamReader
from collections.abc import Sequence
from typing import Any, NamedTuple

from dpsr_apex.inspection.stored import StoredTransition

MOST_BYTES = 64 * 2**20  # of one message; videos are the longest
_LENGTH = 4


class Message(NamedTuple):
    """One message."""

    head: dict[str, Any]
    parts: list[bytes]


class BrokenChannel(Exception):
    """Raised when the other end of a pipe is closed, or sends something else than messages."""


def pack(head: dict[str, Any], parts: Sequence[bytes] = ()) -> bytes:
    """Return a message as bytes."""
    text = json.dumps(head | {"sizes": [len(part) for part in parts]}, allow_nan=False).encode()
    return b"".join((len(text).to_bytes(_LENGTH, "little"), text, *parts))


def unpack(content: bytes) -> Message:
    """Return the message in these bytes; raise BrokenChannel if there is none."""
    try:
        end = _LENGTH + int.from_bytes(content[:_LENGTH], "little")
        head = json.loads(content[_LENGTH:end])
        parts = []
        for size in head["sizes"]:
            parts.append(content[end : end + size])
            end += size
    except (ValueError, KeyError, TypeError) as error:
        raise BrokenChannel(f"not a message: {error}") from error
    if end != len(content):
        raise BrokenChannel(f"a message of {len(content)} bytes should have {end}")
    return Message(head, parts)


class Pipe:
    """The channel of an emulator process, over two file descriptors."""

    def __init__(self, reads: int, writes: int) -> None:
        self._reads = reads
        self._writes = writes
        self._buffer = bytearray()

    def send(self, head: dict[str, Any], parts: Sequence[bytes] = ()) -> None:
        """Send a message; block until it is written."""
        content = framed(pack(head, parts))
        try:
            while content:
                content = content[os.write(self._writes, content) :]
        except OSError as error:
            raise BrokenChannel("the server is gone") from error

    def receive(self, seconds: float | None) -> Message | None:
        """Return the next message; None if there is none within `seconds` (None: wait for it)."""
        while (content := self._next()) is None:
            if not select.select([self._reads], [], [], seconds)[0]:
                return None
            received = os.read(self._reads, 2**16)
            if not received:
                raise BrokenChannel("the server is gone")
            self._buffer += received
        return unpack(content)

    def _next(self) -> bytes | None:
        if len(self._buffer) < _LENGTH:
            return None
        end = _LENGTH + int.from_bytes(self._buffer[:_LENGTH], "little")
        if len(self._buffer) < end:
            return None
        content = bytes(self._buffer[_LENGTH:end])
        del self._buffer[:end]
        return content


def framed(content: bytes) -> bytes:
    """Return a message as it is written to a pipe."""
    return len(content).to_bytes(_LENGTH, "little") + content


async def read_message(reader: StreamReader) -> bytes:
    """Return the next message on a pipe; raise BrokenChannel at its end."""
    try:
        size = int.from_bytes(await reader.readexactly(_LENGTH), "little")
        if size > MOST_BYTES:
            raise BrokenChannel(f"a message of {size} bytes")
        return await reader.readexactly(size)
    except (IncompleteReadError, ConnectionError) as error:
        raise BrokenChannel("the process has ended") from error


# Stored transitions in messages.

_BYTES = ("s_tm1", "s_t", "snapshot")


def encode_transition(stored: StoredTransition) -> tuple[dict[str, Any], list[bytes]]:
    """Return a transition as facts for JSON, and its frames and snapshot."""
    facts = {name: value for name, value in stored._asdict().items() if name not in _BYTES}
    facts["gain"] = None if math.isnan(stored.gain) else stored.gain
    return facts | {"depth_of_stack": len(stored.s_tm1)}, [*stored.s_tm1, *stored.s_t, stored.snapshot]


def decode_transition(facts: dict[str, Any], parts: list[bytes]) -> StoredTransition:
    """Return the transition that `encode_transition` has encoded."""
    depth = facts["depth_of_stack"]
    known = {name: value for name, value in facts.items() if name != "depth_of_stack"}
    known["gain"] = math.nan if known["gain"] is None else known["gain"]
    s_tm1, s_t = tuple(parts[:depth]), tuple(parts[depth:-1])
    return StoredTransition(**known, s_tm1=s_tm1, s_t=s_t, snapshot=parts[-1])
