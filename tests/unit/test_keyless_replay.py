"""The replay without keys, which a benchmark compares with the real one, serves the same clients."""

from __future__ import annotations

import inspect
from contextlib import closing

import pytest

from benchmarks.keyless_replay import KeylessServer
from dpsr_apex.processes import replay
from dpsr_apex.wire.codec import encode
from dpsr_apex.wire.messages import Heartbeat
from dpsr_apex.wire.sockets import ClientSocket, ServerSocket, wait
from tests.unit.protocol.watched_service import join


def test_it_takes_the_place_of_the_server_of_the_real_process() -> None:
    assert replay.__dict__["ServerSocket"] is ServerSocket
    inspect.signature(KeylessServer).bind(*inspect.signature(ServerSocket).parameters)


@pytest.mark.parametrize("role", ["actor", "learner"])
def test_the_role_of_a_sender_is_that_of_its_join(role: str) -> None:
    with (
        closing(KeylessServer("tcp://127.0.0.1:0", None)) as server,
        closing(ClientSocket(server.endpoint, None)) as client,
    ):
        for message in (join("someone", role), Heartbeat(0)):
            while not client.send(encode(message)):
                wait([server, client], 0.01)
            while (received := server.receive()) is None:
                wait([server], 1.0)
            assert received.role == role
