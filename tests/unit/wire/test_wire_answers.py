"""Answers that clients do not take keep a limited amount of memory, whoever asks for them."""

from __future__ import annotations

from contextlib import ExitStack, closing
from typing import Any
from unittest.mock import patch

import zmq

from dpsr_apex.wire import sockets
from dpsr_apex.wire.answers import MOST_PER_CLIENT, Answers
from dpsr_apex.wire.codec import MAX_FRAME
from dpsr_apex.wire.sockets import ClientSocket, ServerSocket
from tests.unit.wire.test_wire_sockets import client_at, client_receives, connect, pair, stack, until

__all__ = ["stack"]  # a fixture

create_socket = sockets._create_socket


def is_over() -> bool:
    return True


def is_under_way() -> bool:
    return False


def test_a_client_has_two_answers_on_their_way() -> None:
    answers = Answers(most=1_000)
    for _ in range(MOST_PER_CLIENT):
        assert answers.may_begin(b"one")
        answers.begin(b"one", [b"x"], is_under_way)
    assert not answers.may_begin(b"one")
    assert answers.may_begin(b"another")


def test_answers_that_were_taken_do_not_count() -> None:
    answers = Answers(most=1_000)
    for _ in range(3):
        assert answers.begin(b"one", [bytes(600)], is_over) == []
        assert answers.may_begin(b"one")
    assert answers.begin(b"one", [bytes(600)], is_under_way) == []
    assert answers.held == 600


def test_the_clients_that_take_longest_are_disconnected_if_all_answers_take_too_much() -> None:
    answers = Answers(most=1_000)
    for name in (b"first", b"second"):
        assert answers.begin(name, [bytes(400)], is_under_way) == []
    assert answers.begin(b"third", [bytes(700)], is_under_way) == [b"first", b"second"]
    assert answers.held == 700
    assert answers.begin(b"third", [bytes(900)], is_under_way) == [], "it is not disconnected for its own"


def test_an_answer_that_is_sent_to_many_counts_once() -> None:
    answers, frames = Answers(most=1_000), [bytes(600), b"x"]
    for number in range(100):
        assert answers.begin(str(number).encode(), frames, is_under_way) == []
    assert answers.held == 601


def connects_once(*arguments: Any) -> Any:
    """A socket that stays disconnected after it was disconnected."""
    socket = create_socket(*arguments)
    socket.set(zmq.RECONNECT_IVL, -1)
    return socket


def slow_client(stack: ExitStack, server: ServerSocket) -> tuple[ClientSocket, bytes]:
    """A client that asks, hardly takes anything, and does not return when it was disconnected."""
    with patch.object(sockets, "_create_socket", connects_once):
        client = stack.enter_context(closing(client_at(server.endpoint)))
    client._socket.set(zmq.RCVHWM, 1)
    client._socket.set(zmq.LINGER, 0)
    return client, connect(server, client)


def test_a_client_that_takes_nothing_gets_no_third_answer_and_one_that_does_gets_all(stack: ExitStack) -> None:
    server, client, sender = pair(stack)
    _, slow = slow_client(stack, server)
    large = bytes(20 * MAX_FRAME)  # more than the buffers of the system
    for _ in range(MOST_PER_CLIENT):
        assert server.answer(slow, [large])
    assert not server.answer(slow, [large])
    for number in range(20):
        answer = [bytes([number]) * MAX_FRAME]
        assert until(lambda: server.answer(sender, answer) or None)  # noqa: B023 -- called before it changes
        assert client_receives(client) == answer


def test_a_slow_client_is_disconnected_in_favour_of_others(stack: ExitStack) -> None:
    server, client, sender = pair(stack)
    server._answers = Answers(most=50 * MAX_FRAME)
    slow = [slow_client(stack, server)[1] for _ in range(4)]
    for address in slow:
        assert server.answer(address, [bytes(20 * MAX_FRAME)])
    until(lambda: server.connections == 1 + 2 or None, server)
    answer = [bytes(20 * MAX_FRAME)]
    assert server.answer(sender, answer)

    def taken() -> list[bytes] | None:
        server.receive()  # sends more
        return client.receive()

    assert until(taken, client) == answer
