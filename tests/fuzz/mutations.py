"""Damage messages at random: bytes, frames, numbers in headers and columns, and parts of other messages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import msgpack
import numpy as np

from dpsr_apex.processes.weights import pack_weights
from dpsr_apex.wire import messages as wire
from dpsr_apex.wire.codec import MAX_PARTS, encode
from dpsr_apex.wire.fragments import fragments
from dpsr_apex.wire.messages import (
    Heartbeat,
    LearnerState,
    Leave,
    Priorities,
    Recycle,
    Recycled,
    SampleRequest,
    WeightsRequest,
)
from tests.fuzz.head import TO_CLIENTS, FuzzedHead, Message, fresh
from tests.unit.protocol.watched_service import ERA, answer, chunk, join, transitions
from tests.unit.wire.examples import ALL

Frames = list[bytes]

EDGES: tuple[Any, ...] = (
    *(
        0,
        1,
        -1,
        2,
        7,
        127,
        128,
        255,
        256,
        65_535,
        65_536,
        100_000,
        100_001,
        2**31 - 1,
        2**31,
        2**32,
        2**63 - 1,
        -(2**63),
    ),
    *(2**64 - 1, 0.0, -0.0, 1e-300, 1e300, float("nan"), float("inf"), float("-inf"), None, True, False, "", "x" * 300),
    *("\x00", "\ud800", [], [0], [[[]]], {}, b"", b"x"),
)
"""Values that headers may contain by mistake or malice."""

PATTERNS = (
    b"\x00",
    b"\xff",
    b"\x7f",
    b"\x80",
    b"\x01",
    b"\xff\xff\xff\x7f",
    b"\x00" * 8,
    b"\xff" * 8,
    b"\x00\x00\xf0\x7f",
)


def seeds() -> list[Message]:
    """Valid messages of every client, and of servers, among them what the head of the fuzzer expects next."""
    head = fresh()
    whole: list[tuple[int, wire.Message]] = [(sender, message) for message in ALL for sender in range(TO_CLIENTS + 1)]
    expected: list[tuple[int, wire.Message]] = [
        *((0, chunk(7)), (1, chunk(0, owner=1)), (2, SampleRequest()), (0, Heartbeat(35)), (0, Leave(35))),
        *((2, Priorities(ERA, head.service.replay.identities[:3], np.ones(3))), (2, _state()), (0, _answer(head))),
        *((TO_CLIENTS, WeightsRequest(-1, -1)), (5, join("actor-5")), (6, join("learner-1", "learner"))),
    ]
    made = [Message(sender, [bytes(frame) for frame in encode(message)]) for sender, message in [*whole, *expected]]
    large = [bytes(2**20), b"x"]
    pieces = [Message(0, [bytes(frame) for frame in part]) for part in fragments(large, 1)]
    return [*made, *(Message(0, [*part.frames[:2], part.frames[2][:100]]) for part in pieces)]


def _state() -> LearnerState:
    return LearnerState('{"updates": 1}', pack_weights({"online.weight": np.ones((3, 2), np.float32)}))


def _answer(head: FuzzedHead) -> Recycled:
    """What actor-0 answers to the open round."""
    number, round_ = next(iter(head.service.replay.rounds.items()))
    return answer(Recycle(ERA, number, round_.candidates, transitions(len(round_.candidates))))


def mutated(message: Message, others: Sequence[Message], rng: Random) -> Message:
    """Return a damaged copy: one to four mutations, rarely with another sender."""
    frames = list(message.frames)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        rng.choice(MUTATIONS)(frames, others, rng)
    sender = rng.randrange(TO_CLIENTS + 1) if rng.random() < 0.05 else message.sender
    return Message(sender, frames[: 2 * MAX_PARTS])


# Mutations change the frames in place.

Mutation = Callable[[Frames, Sequence[Message], Random], None]


def change_bytes(frames: Frames, _others: Sequence[Message], rng: Random) -> None:
    """Overwrite some bytes, at a place that is often near the beginning."""
    at = _choose(frames, rng)
    if at is not None and frames[at]:
        frame = bytearray(frames[at])
        place = rng.randrange(min(len(frame), rng.choice((4, 40, len(frame)))))
        pattern = rng.choice((*PATTERNS, rng.randbytes(rng.choice((1, 2, 8)))))
        frame[place : place + len(pattern)] = pattern
        frames[at] = bytes(frame[: len(frames[at])])


def flip_a_bit(frames: Frames, _others: Sequence[Message], rng: Random) -> None:
    """Flip one bit, as a memory error does."""
    at = _choose(frames, rng)
    if at is not None and frames[at]:
        frame = bytearray(frames[at])
        frame[rng.randrange(len(frame))] ^= 1 << rng.randrange(8)
        frames[at] = bytes(frame)


def change_a_number(frames: Frames, _others: Sequence[Message], rng: Random) -> None:
    """Overwrite an aligned number, as in a column."""
    at = _choose(frames, rng)
    width = rng.choice((1, 2, 4, 8))
    if at is not None and len(frames[at]) >= width:
        place = rng.randrange(len(frames[at]) // width) * width
        number = rng.choice((0, 1, 2**31 - 1, 2**32 - 1, 2**63 - 1, 2**64 - 1, 0x7FF0 << 48, 0x7F80 << 16))
        number_bytes = (number & (256**width - 1)).to_bytes(width, "little")
        frames[at] = frames[at][:place] + number_bytes + frames[at][place + width :]


def cut(frames: Frames, _others: Sequence[Message], rng: Random) -> None:
    """Remove some bytes."""
    at = _choose(frames, rng)
    if at is not None:
        start = rng.randrange(len(frames[at]) + 1)
        frames[at] = frames[at][:start] + frames[at][start + rng.choice((1, 4, 1_000_000)) :]


def insert(frames: Frames, _others: Sequence[Message], rng: Random) -> None:
    """Insert some bytes."""
    at = _choose(frames, rng)
    if at is not None:
        place = rng.randrange(len(frames[at]) + 1)
        frames[at] = frames[at][:place] + rng.randbytes(rng.choice((1, 4, 64))) + frames[at][place:]


def remove_a_frame(frames: Frames, _others: Sequence[Message], rng: Random) -> None:
    """Remove a frame."""
    at = _choose(frames, rng)
    if at is not None:
        del frames[at]


def repeat_a_frame(frames: Frames, _others: Sequence[Message], rng: Random) -> None:
    """Insert a copy of a frame somewhere."""
    at = _choose(frames, rng)
    if at is not None:
        frames.insert(rng.randrange(len(frames) + 1), frames[at])


def swap_frames(frames: Frames, _others: Sequence[Message], rng: Random) -> None:
    """Change the order of the frames."""
    rng.shuffle(frames)


def take_from_another(frames: Frames, others: Sequence[Message], rng: Random) -> None:
    """Replace a frame, or all but the header, with those of another message."""
    other = rng.choice(others).frames
    at = _choose(frames, rng)
    if at is not None and other and rng.random() < 0.5:
        frames[at] = rng.choice(other)
    else:
        frames[1:] = other[1:]


def change_the_header(frames: Frames, _others: Sequence[Message], rng: Random) -> None:
    """Replace an entry of the header with an edge case, or change the number of entries."""
    try:
        header = list(msgpack.unpackb(frames[0]))
    except (IndexError, TypeError, ValueError, msgpack.UnpackException):
        return
    if not header:
        return
    at = rng.randrange(len(header))
    match rng.randrange(8):
        case 0:
            header.insert(at, rng.choice(EDGES))
        case 1:
            del header[at]
        case 2 if type(header[at]) is int:
            header[at] = max(min(header[at] + rng.choice((-2, -1, 1, 2, 256)), 2**64 - 1), -(2**63))
        case _:
            header[at] = rng.choice(EDGES)
    try:
        frames[0] = msgpack.packb(header, unicode_errors="surrogatepass")
    except (OverflowError, ValueError):
        return


def change_values(frames: Frames, _others: Sequence[Message], rng: Random) -> None:
    """Replace one of the packed values in a later frame with an edge case."""
    at = _choose(frames, rng)
    if at is None:
        return
    unpacker = msgpack.Unpacker(strict_map_key=False)
    unpacker.feed(frames[at])
    try:
        values = list(unpacker)
    except Exception:  # it is no frame of values
        return
    if values:
        values[rng.randrange(len(values))] = rng.choice(EDGES)
        frames[at] = b"".join(msgpack.packb(value, unicode_errors="surrogatepass") for value in values)


def be_random(frames: Frames, _others: Sequence[Message], rng: Random) -> None:
    """Replace everything with noise."""
    frames[:] = [rng.randbytes(rng.randrange(64)) for _ in range(rng.randrange(MAX_PARTS + 2))]


def _choose(frames: Frames, rng: Random) -> int | None:
    return rng.randrange(len(frames)) if frames else None


MUTATIONS: tuple[Mutation, ...] = (
    *(change_bytes, flip_a_bit, change_a_number, cut, insert, remove_a_frame, repeat_a_frame, swap_frames),
    *(take_from_another, change_the_header, change_the_header, change_the_header, change_values, be_random),
)
