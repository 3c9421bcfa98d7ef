"""The socket to the learner: instructions of a subscription, executed over a real connection."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from dpsr_apex import timeouts
from dpsr_apex.processes.discovery import Address, HeadLocator
from dpsr_apex.processes.weights import LearnerLink, pack_weights
from dpsr_apex.protocol.client_instructions import ConnectToLearner, LoadWeights
from dpsr_apex.protocol.weights import WeightsSubscription
from dpsr_apex.wire.codec import decode, encode
from dpsr_apex.wire.keys import new_keys
from dpsr_apex.wire.messages import ACTOR, LEARNER, Weights, WeightsRequest
from dpsr_apex.wire.sockets import Received, ServerSocket, wait

PATIENCE = 20.0
BLOB = pack_weights({"layer": np.ones(3)})


KEYS = new_keys()


class Taker:
    """An agent that keeps what it is given."""

    def __init__(self) -> None:
        self.taken: dict[str, dict[str, NDArray[Any]]] = {}

    def load_weights(self, network: str, arrays: dict[str, NDArray[Any]], /) -> None:
        self.taken[network] = arrays


@pytest.fixture
def server() -> Iterator[ServerSocket]:
    with closing(ServerSocket("tcp://127.0.0.1:0", KEYS[LEARNER], accepted=[ACTOR])) as socket:
        yield socket


class Client:
    """A subscription with its socket, at a clock of its own."""

    def __init__(self, server: ServerSocket) -> None:
        self.server = server
        self.agent = Taker()
        self.subscription = WeightsSubscription(0.0)
        self.link = LearnerLink(self.agent, HeadLocator(Address(server.endpoint, KEYS[ACTOR])), self.subscription)
        for instruction in self.subscription.follow(server.endpoint):
            self.link.execute(instruction)

    def request(self, now: float) -> Received:
        """Tick until a request has come to the server, which a socket that is still connecting does not take."""
        self.subscription.want()
        while True:
            for instruction in self.subscription.tick(now):
                self.link.execute(instruction)
            wait([self.server], 0.001)
            if (received := self.server.receive()) is not None:
                return received

    def receive(self) -> None:
        assert self.link.socket is not None
        wait([self.link.socket], PATIENCE)
        for answer in self.link.receive():
            for instruction in self.subscription.handle(answer):
                self.link.execute(instruction)


def test_a_line_that_is_too_slow_for_the_first_answers_brings_a_later_one(server: ServerSocket) -> None:
    client = Client(server)
    now, asked = 0.0, set[bytes]()
    for attempt in range(4):  # the first three answers never come
        received = client.request(now)
        assert isinstance(decode(received.frames), WeightsRequest)
        asked.add(received.sender)
        now += timeouts.WEIGHTS_ANSWER * 2**attempt + 0.1
    assert len(asked) == 4, "each time over a new socket"
    assert server.send(received.sender, encode(Weights(1, 1, 5, 1, BLOB, None)))
    client.receive()
    client.link.close()
    assert client.subscription.t == 5
    assert client.agent.taken["online"]["layer"].tolist() == [1, 1, 1]
    assert "target" not in client.agent.taken


@pytest.mark.parametrize("damage", ["no message", "no weights"])
def test_an_answer_that_cannot_be_used_closes_the_request_and_changes_nothing(
    damage: str, server: ServerSocket
) -> None:
    client = Client(server)
    received = client.request(0.0)
    server.send(received.sender, [b"?"] if damage == "no message" else encode(Weights(1, 1, 5, 1, b"garbage", None)))
    client.receive()
    assert client.subscription.answers == 1
    assert client.subscription.t is None
    request = decode(client.request(0.1).frames)
    assert request == WeightsRequest(-1, -1), "all of it is requested again"
    client.link.close()


def test_a_learner_without_an_address_closes_the_socket_and_a_bad_one_is_given_up(server: ServerSocket) -> None:
    client = Client(server)
    client.link.execute(ConnectToLearner(""))
    assert client.link.socket is None
    for instruction in client.subscription.follow("nowhere"):
        client.link.execute(instruction)
    client.subscription.want()
    assert client.link.socket is None
    assert client.subscription.tick(0.0) == [], "until there is another learner"


def test_networks_that_did_not_come_keep_their_weights(server: ServerSocket) -> None:
    client = Client(server)
    client.link.execute(LoadWeights(Weights(1, 1, 5, 1, BLOB, BLOB)))
    client.agent.taken.clear()
    client.link.execute(LoadWeights(Weights(2, 1, 6, 2, BLOB, None)))
    assert set(client.agent.taken) == {"online"}
    client.link.close()
