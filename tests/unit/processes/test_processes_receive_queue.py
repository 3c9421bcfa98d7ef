"""The order of answers: the preferred sender first, each sender's in order, and nobody waits for ever."""

from __future__ import annotations

from collections import deque

import numpy as np
import pytest

from dpsr_apex.processes.receive_queue import LOOKAHEAD, MAX_IN_A_ROW, ReceiveQueue
from dpsr_apex.wire.sockets import Received

PREFERRED = b"learner"


def message(sender: bytes, number: int) -> Received:
    return Received(sender, [b"%d" % number])


def drained(queue: ReceiveQueue, preferred: bytes | None = PREFERRED) -> list[Received]:
    answered = []
    while received := queue.next(preferred):
        answered.append(received)
    return answered


def coming(*messages: Received) -> ReceiveQueue:
    waiting = deque(messages)
    return ReceiveQueue(lambda: waiting.popleft() if waiting else None)


def test_without_a_preferred_sender_messages_are_answered_as_they_came() -> None:
    messages = [message(b"%d" % (i % 3), i) for i in range(3 * LOOKAHEAD)]
    assert drained(coming(*messages), preferred=None) == messages


def test_the_preferred_sender_goes_before_those_that_are_held() -> None:
    chunks = [message(b"actor", i) for i in range(LOOKAHEAD - 1)]
    request = message(PREFERRED, 0)
    assert drained(coming(*chunks, request)) == [request, *chunks]


def test_what_came_too_long_before_goes_first() -> None:
    chunks = [message(b"actor", i) for i in range(LOOKAHEAD)]
    request = message(PREFERRED, 0)
    assert drained(coming(*chunks, request)) == [chunks[0], request, *chunks[1:]]


def test_a_preferred_sender_that_floods_does_not_keep_others_waiting() -> None:
    chunk = message(b"actor", 0)
    flood = [message(PREFERRED, i) for i in range(10 * MAX_IN_A_ROW)]
    assert drained(coming(chunk, *flood)).index(chunk) == MAX_IN_A_ROW


def test_what_is_held_is_counted() -> None:
    queue = coming(*(message(b"actor", i) for i in range(3)))
    assert len(queue) == 0
    queue.next(PREFERRED)
    assert len(queue) == 2


@pytest.mark.parametrize("seed", range(20))
def test_all_are_answered_once_and_each_senders_in_order(seed: int) -> None:
    rng = np.random.default_rng(seed)
    senders = [PREFERRED, b"a", b"b", b"c"]
    messages = [message(senders[int(rng.integers(4)) * int(rng.integers(2))], i) for i in range(300)]
    answered = drained(coming(*messages))
    for sender in senders:
        assert [one for one in answered if one.sender == sender] == [one for one in messages if one.sender == sender]
    assert len(answered) == len(messages)


def test_who_becomes_the_preferred_sender_does_not_overtake_itself() -> None:
    messages = [message(b"actor", 0), *(message(PREFERRED, i) for i in range(5))]
    queue = coming(*messages)
    before = [queue.next(None), queue.next(None)]
    assert [*before, *drained(queue)] == messages


def test_what_a_preferred_sender_sent_before_it_was_one_keeps_its_place() -> None:
    early = [message(b"actor", 0), message(PREFERRED, 0), message(b"actor", 1)]
    late = [message(PREFERRED, 1), message(PREFERRED, 2)]
    queue = coming(*early, *late)
    answered = [queue.next(b"nobody"), *drained(queue)]
    assert [one for one in answered if one and one.sender == PREFERRED] == [early[1], *late]
