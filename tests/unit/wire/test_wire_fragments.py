"""Large messages in fragments: split without copies, reassembled exactly, bounded in size, and lost as a whole."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pytest

from dpsr_apex import timeouts
from dpsr_apex.wire.codec import MAX_FRAME, MAX_PARTS, BadMessage, Frame, encode
from dpsr_apex.wire.fragments import Feed, Reassembly, fragments, is_fragment, is_large
from dpsr_apex.wire.messages import Fragment, Heartbeat
from tests.unit.wire.examples import ALL

MOST = 100 * MAX_FRAME
LARGE = [b"header", bytes(range(256)) * (3 * MAX_FRAME // 256), b"", b"x" * (MAX_FRAME + 1)]


def encoded(frames: Sequence[Frame] = LARGE, number: int = 1) -> list[list[bytes]]:
    return [[bytes(frame) for frame in fragment] for fragment in fragments(frames, number)]


def added(reassembly: Reassembly, *parts: list[bytes], sender: bytes = b"", now: float = 0.0) -> list[list[bytes]]:
    """The messages that these fragments complete."""
    return [whole for part in parts if (whole := reassembly.add(part, MOST, now, sender)) is not None]


def test_a_message_is_large_if_all_its_frames_together_are() -> None:
    assert not is_large([b"x" * (MAX_FRAME - 1), b"x"])
    assert is_large([b"x" * MAX_FRAME, b"x"])


def test_fragments_are_small_and_become_the_message_again() -> None:
    parts = encoded()
    assert all(len(frame) <= MAX_FRAME for part in parts for frame in part)
    assert all(is_fragment(part) for part in parts)
    assert added(Reassembly(), *parts) == [LARGE]


def test_no_other_message_is_taken_for_a_fragment() -> None:
    assert [type(message) for message in ALL if is_fragment(encode(message))] == [Fragment]
    assert not any(map(is_fragment, ([], [b""], [b"garbage"])))


def test_a_large_frame_is_not_copied() -> None:
    large = bytearray(3 * MAX_FRAME)
    parts = list(fragments([memoryview(large)], 1))
    large[:] = b"y" * len(large)
    assert all(bytes(part[-1]) == b"y" * len(part[-1]) for part in parts)


def test_messages_of_several_senders_may_arrive_at_the_same_time() -> None:
    reassembly = Reassembly()
    for one, other in zip(encoded()[:-1], encoded()[:-1], strict=True):
        assert added(reassembly, one, sender=b"one") == added(reassembly, other, sender=b"other") == []
    assert added(reassembly, encoded()[-1], sender=b"other") == [LARGE]
    assert list(reassembly.held) == [b"one"]


@pytest.mark.parametrize("lost", range(5))
def test_a_message_of_which_a_fragment_is_lost_is_lost_and_the_next_one_arrives(lost: int) -> None:
    reassembly, parts = Reassembly(), encoded()
    assert added(reassembly, *parts[:lost], *parts[lost + 1 :], *encoded(number=2)) == [LARGE]
    assert len(reassembly) == 0


def test_a_message_that_begins_again_replaces_the_former_one() -> None:
    parts = encoded()
    assert added(Reassembly(), *parts[:3], *parts) == [LARGE]


def test_a_fragment_that_is_repeated_or_of_another_message_loses_the_message() -> None:
    parts = encoded()
    assert added(Reassembly(), *parts[:3], *parts[2:]) == []
    assert added(Reassembly(), *parts[:3], *encoded(number=2)[3:]) == []
    assert added(Reassembly(), *parts[:3], *encoded([*LARGE[:-1], LARGE[-1][1:]])[3:]) == []


def fragment(sizes: list[int], offset: int, data: bytes) -> list[bytes]:
    return [bytes(frame) for frame in encode(Fragment(1, np.array(sizes, dtype=np.int64), offset, data))]


@pytest.mark.parametrize(
    ("part", "reason"),
    [
        (fragment([], 0, b"x"), "0 frames"),
        (fragment([1] * (MAX_PARTS + 1), 0, b"x"), "17 frames"),
        (fragment([10, -1], 0, b"x"), "more than"),
        (fragment([2**62, 2**62, 2**62, 2**62], 0, b"x"), "more than"),
        (fragment([MOST, 1], 0, b"x"), f"message of {MOST + 1} bytes"),
        (fragment([3], 0, b"long"), "outside"),
        (fragment([3], 3, b"x"), "outside"),
        (fragment([3], -1, b"x"), "outside"),
        (fragment([3], 2**62, b"x"), "outside"),
        (fragment([3], 0, b""), "outside"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_an_invalid_fragment_is_refused(part: list[bytes], reason: str) -> None:
    reassembly = Reassembly()
    with pytest.raises(BadMessage, match=reason):
        reassembly.add(part, MOST, 0.0)
    assert len(reassembly) == 0


def test_whoever_may_send_no_large_message_may_send_no_fragment() -> None:
    with pytest.raises(BadMessage, match="more than 0 bytes"):
        Reassembly().add(encoded()[0], 0, 0.0)


def test_the_largest_incomplete_message_is_dropped_when_all_together_are_too_large() -> None:
    reassembly = Reassembly(budget=6 * MAX_FRAME)
    for sender, count in ((b"small", 2), (b"greedy", 4), (b"other", 2)):
        added(reassembly, *encoded([bytes(50 * MAX_FRAME)])[:count], sender=sender)
    assert reassembly.held == {b"small": 2 * MAX_FRAME, b"other": 2 * MAX_FRAME}


def test_actors_cannot_displace_the_state_of_the_learner() -> None:
    reassembly, parts = Reassembly(budget=3 * MAX_FRAME), encoded([bytes(50 * MAX_FRAME)])
    for part in parts[:3]:
        reassembly.add(part, 2 * MOST, 0.0, b"learner")
    for name in (b"one", b"two", b"three"):
        added(reassembly, *parts[:2], sender=name)
    assert reassembly.held == {b"learner": 3 * MAX_FRAME, b"three": 2 * MAX_FRAME}


def test_a_message_that_does_not_grow_any_more_is_dropped() -> None:
    reassembly, parts = Reassembly(), encoded()
    added(reassembly, parts[0], now=100.0)
    reassembly.expire(100.0 + timeouts.SOCKET_SILENCE - 1)
    added(reassembly, parts[1], now=150.0)
    reassembly.expire(150.0 + timeouts.SOCKET_SILENCE - 1)
    assert len(reassembly) == 1
    reassembly.expire(150.0 + timeouts.SOCKET_SILENCE)
    assert len(reassembly) == 0


# Sending.


class Socket:
    """Accepts frames as long as it has space for messages; with None there is no peer."""

    def __init__(self, space: int | None) -> None:
        self.space = space
        self.accepted: list[list[Frame]] = []

    def offer(self, frames: Sequence[Frame]) -> bool | None:
        if self.space is None or not self.space:
            return None if self.space is None else False
        self.space -= 1
        self.accepted.append(list(frames))
        return True


def wholes(socket: Socket) -> Iterator[Sequence[Frame]]:
    reassembly = Reassembly()
    for frames in socket.accepted:
        whole = reassembly.add(frames, MOST, 0.0) if is_fragment(frames) else frames
        if whole is not None:
            yield whole


def test_a_large_message_is_sent_as_fast_as_the_socket_takes_it_and_small_ones_overtake_it() -> None:
    socket = Socket(space=2)
    feed = Feed(socket.offer)
    small = encode(Heartbeat(1))
    assert feed.send(LARGE)
    assert not feed.send(small), "the queue is full"
    assert not feed.send(LARGE), "another one is being sent"
    socket.space = 1
    assert feed.send(small)
    socket.space = 100
    feed.flush()
    assert feed.is_idle
    assert feed.send(LARGE)
    assert list(wholes(socket)) == [small, LARGE, LARGE]


def test_the_rest_of_a_large_message_is_dropped_with_its_peer() -> None:
    socket = Socket(space=2)
    feed = Feed(socket.offer)
    feed.send(LARGE)
    socket.space = None
    feed.flush()
    assert list(wholes(socket)) == []
    assert feed.is_idle
    assert not feed.send(encode(Heartbeat(1)))
