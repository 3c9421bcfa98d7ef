"""The socket to the replay: instructions of a client, executed over a real connection."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, closing

import pytest

from dpsr_apex.config import SystemConfig
from dpsr_apex.processes.discovery import Address, Found, HeadLocator
from dpsr_apex.processes.link import RefusedByReplay, ReplayLink, ReplayLost
from dpsr_apex.protocol.client_instructions import HeadLost, LookUpHead, Reconnect, Rejected, Send
from dpsr_apex.protocol.clients import EvaluatorClient
from dpsr_apex.wire.codec import decode, encode
from dpsr_apex.wire.keys import new_keys
from dpsr_apex.wire.messages import EVALUATOR, SERVER, Alive, Heartbeat, Join, Leave, Message, Welcome
from dpsr_apex.wire.sockets import Received, ServerSocket, wait
from tests.unit.protocol.watched_service import join

PATIENCE = 20.0
REQUEST = join("evaluator", "evaluator")
KEYS = new_keys()
WELCOME = Welcome(7, 30, -1, 1, 0, "")


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def server(stack: ExitStack) -> ServerSocket:
    return stack.enter_context(closing(ServerSocket("tcp://127.0.0.1:0", KEYS[SERVER], accepted=[EVALUATOR])))


class Linked:
    """An evaluator's client with its socket to a head that may move to another server."""

    def __init__(self, server: ServerSocket, stack: ExitStack) -> None:
        self.found: Found | None = None
        self.now = time.monotonic()  # what the link reads, too
        self.client = EvaluatorClient(REQUEST, SystemConfig(), self.now)
        self.link = ReplayLink(HeadLocator(Address(server.endpoint, KEYS[EVALUATOR]), lambda: self.found), self.client)
        stack.callback(lambda: self.link.socket.close())

    def send(self, message: Message, server: ServerSocket) -> Received:
        """Send until the server has it, which a socket that is still connecting does not take."""
        while True:
            self.link.execute(Send(message))
            wait([server], 0.001)
            if (received := server.receive()) is not None:
                return received


def test_messages_are_sent_and_received(server: ServerSocket, stack: ExitStack) -> None:
    linked = Linked(server, stack)
    received = linked.send(Heartbeat(3), server)
    assert decode(received.frames) == Heartbeat(3)
    alive = Alive(5, 1, "")
    for frames in ([b"?"], encode(alive)):
        assert server.send(received.sender, frames)
    messages: list[Message] = []
    while not messages:
        wait([linked.link.socket], PATIENCE)
        messages += linked.link.receive()
    assert messages == [alive], "what cannot be read is passed over"


def test_what_the_socket_does_not_take_is_reported(stack: ExitStack) -> None:
    with closing(ServerSocket("tcp://127.0.0.1:0", KEYS[SERVER], accepted=[EVALUATOR])) as gone:
        linked = Linked(gone, stack)
    assert linked.client.tick(linked.now) == [Send(REQUEST)]
    assert linked.client.tick(linked.now + 0.1) == []
    linked.link.execute(Send(REQUEST))
    assert linked.client.tick(linked.now + 0.2) == [Send(REQUEST)]


def test_a_head_that_has_moved_is_connected_to_where_it_is(server: ServerSocket, stack: ExitStack) -> None:
    linked = Linked(server, stack)
    assert linked.link.execute(LookUpHead()) == [Send(REQUEST)], "no other head is known"
    other = stack.enter_context(closing(ServerSocket("tcp://127.0.0.1:0", KEYS[SERVER], accepted=[EVALUATOR])))
    linked.found = Found(Address(other.endpoint, KEYS[EVALUATOR]), 2)
    linked.client.membership.undelivered(REQUEST)
    reconnect, request = linked.link.execute(LookUpHead())
    assert isinstance(reconnect, Reconnect)
    assert request == Send(REQUEST)
    linked.link.execute(reconnect)
    assert decode(linked.send(REQUEST, other).frames) == REQUEST
    assert server.receive() is None


def test_a_lost_head_and_a_refusal_end_the_process(server: ServerSocket, stack: ExitStack) -> None:
    linked = Linked(server, stack)
    with pytest.raises(ReplayLost, match="600") as lost:
        linked.link.execute(HeadLost(600.0))
    assert server.endpoint in str(lost.value)
    assert lost.value.exit_code == 1
    with pytest.raises(RefusedByReplay, match="no such run"):
        linked.link.execute(Rejected("no such run"))


@pytest.mark.parametrize("is_member", [True, False])
def test_only_a_member_says_that_it_leaves(is_member: bool, server: ServerSocket, stack: ExitStack) -> None:
    linked = Linked(server, stack)
    assert isinstance(decode(linked.send(REQUEST, server).frames), Join)
    if is_member:
        linked.client.handle(WELCOME, 0.0)
    linked.link.leave()
    received: list[Message | None] = [REQUEST]  # it may have been sent more than once
    while received[-1] == REQUEST:
        wait([server], PATIENCE if is_member else 0.2)
        arrival = server.receive()
        received.append(decode(arrival.frames) if arrival else None)
    assert received[-1] == (Leave(0) if is_member else None)
