"""Whose turn it is: the favourite's before others, everybody's in order, nobody never."""

from __future__ import annotations

from collections import deque

import numpy as np
import pytest

from dpsr_apex.processes.turns import AHEAD, IN_A_ROW, Turns
from dpsr_apex.wire.sockets import Received

FAVOURITE = b"learner"


def message(sender: bytes, number: int) -> Received:
    return Received(sender, [b"%d" % number])


def drained(turns: Turns, favourite: bytes | None = FAVOURITE) -> list[Received]:
    answered = []
    while received := turns.next(favourite):
        answered.append(received)
    return answered


def coming(*messages: Received) -> Turns:
    waiting = deque(messages)
    return Turns(lambda: waiting.popleft() if waiting else None)


def test_without_a_favourite_messages_are_answered_as_they_came() -> None:
    messages = [message(b"%d" % (i % 3), i) for i in range(3 * AHEAD)]
    assert drained(coming(*messages), favourite=None) == messages


def test_the_favourite_goes_before_those_that_are_held() -> None:
    chunks = [message(b"actor", i) for i in range(AHEAD - 1)]
    request = message(FAVOURITE, 0)
    assert drained(coming(*chunks, request)) == [request, *chunks]


def test_what_came_too_long_before_goes_first() -> None:
    chunks = [message(b"actor", i) for i in range(AHEAD)]
    request = message(FAVOURITE, 0)
    assert drained(coming(*chunks, request)) == [chunks[0], request, *chunks[1:]]


def test_a_favourite_that_floods_does_not_keep_others_waiting() -> None:
    chunk = message(b"actor", 0)
    flood = [message(FAVOURITE, i) for i in range(10 * IN_A_ROW)]
    assert drained(coming(chunk, *flood)).index(chunk) == IN_A_ROW


def test_what_is_held_is_counted() -> None:
    turns = coming(*(message(b"actor", i) for i in range(3)))
    assert len(turns) == 0
    turns.next(FAVOURITE)
    assert len(turns) == 2


@pytest.mark.parametrize("seed", range(20))
def test_all_are_answered_once_and_each_senders_in_order(seed: int) -> None:
    rng = np.random.default_rng(seed)
    senders = [FAVOURITE, b"a", b"b", b"c"]
    messages = [message(senders[int(rng.integers(4)) * int(rng.integers(2))], i) for i in range(300)]
    answered = drained(coming(*messages))
    for sender in senders:
        assert [one for one in answered if one.sender == sender] == [one for one in messages if one.sender == sender]
    assert len(answered) == len(messages)


def test_who_becomes_the_favourite_does_not_overtake_itself() -> None:
    messages = [message(b"actor", 0), *(message(FAVOURITE, i) for i in range(5))]
    turns = coming(*messages)
    before = [turns.next(None), turns.next(None)]
    assert [*before, *drained(turns)] == messages


def test_what_a_favourite_sent_before_it_was_one_keeps_its_place() -> None:
    early = [message(b"actor", 0), message(FAVOURITE, 0), message(b"actor", 1)]
    late = [message(FAVOURITE, 1), message(FAVOURITE, 2)]
    turns = coming(*early, *late)
    answered = [turns.next(b"nobody"), *drained(turns)]
    assert [one for one in answered if one and one.sender == FAVOURITE] == [early[1], *late]
