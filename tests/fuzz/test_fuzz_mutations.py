"""Damaged messages of clients with valid keys never raise, break no invariant and no journal, and take no memory."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from random import Random

import pytest

from dpsr_apex.machine import resident_memory
from dpsr_apex.wire.codec import BadMessage, decode
from tests.fuzz.head import Message, fresh, play
from tests.fuzz.mutations import mutated, seeds

IN_A_ROW = 20  # messages of one head
GROWTH = 300 * 2**20  # bytes


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    with caplog.at_level(logging.CRITICAL):
        yield


def attack(count: int, seed: int) -> int:
    """Let heads handle this number of damaged messages; return how many of them were valid nevertheless."""
    rng, valid = Random(seed), 0
    messages = seeds()
    for _ in range(count // IN_A_ROW):
        head = fresh()
        for _ in range(IN_A_ROW):
            message = mutated(rng.choice(messages), messages, rng)
            valid += is_valid(message)
            head.receive(message)
        head.check()
    return valid


def is_valid(message: Message) -> bool:
    try:
        decode(message.frames)
    except BadMessage:
        return False
    return True


def test_undamaged_messages_are_handled() -> None:
    for message in seeds():
        play([message])


def test_damaged_messages_do_no_harm() -> None:
    valid = attack(4_000, seed=1)
    assert 200 < valid < 3_000  # some of them reach the service


@pytest.mark.thorough
@pytest.mark.slow
def test_a_million_damaged_messages_do_no_harm() -> None:
    attack(10_000, seed=2)
    before = resident_memory()
    attack(1_000_000, seed=3)
    after = resident_memory()
    assert before is not None
    assert after is not None
    assert after - before < GROWTH
