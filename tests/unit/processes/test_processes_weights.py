from __future__ import annotations

import logging
from contextlib import closing
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from dpsr_apex.processes import weights
from dpsr_apex.processes.discovery import Address, Whereabouts
from dpsr_apex.processes.weights import WeightsClient, squeeze_weights
from dpsr_apex.wire.codec import decode, encode
from dpsr_apex.wire.messages import Weights, WeightsRequest
from dpsr_apex.wire.sockets import Server, wait

PATIENCE = 20.0


class Taker:
    """Who acts by the weights."""

    def __init__(self) -> None:
        self.taken: dict[str, dict[str, NDArray[Any]]] = {}

    def load_weights(self, network: str, arrays: dict[str, NDArray[Any]], /) -> None:
        self.taken[network] = arrays


def test_a_line_that_is_too_slow_for_the_first_answer_brings_a_later_one(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(weights, "ANSWER_SECONDS", 0.01)
    blob = squeeze_weights({"layer": np.ones(3)})
    with closing(Server("tcp://127.0.0.1:0")) as server, caplog.at_level(logging.WARNING):
        taker = Taker()
        client = WeightsClient(taker, Whereabouts(Address(server.endpoint, None)))
        client.follow((server.endpoint, b""))
        asked: set[bytes] = set()
        while len(asked) < 4:  # the first three answers never come
            client.ask()
            wait([server], 0.001)
            if (received := server.receive()) is not None:
                assert isinstance(decode(received.frames), WeightsRequest)
                asked.add(received.sender)
        assert received is not None
        assert server.send(received.sender, encode(Weights(1, 1, 5, blob, None)))
        assert client.client is not None
        wait([client.client], PATIENCE)
        assert client.receive()
        client.close()
    waited = [record.args[1] for record in caplog.records if isinstance(record.args, tuple)]
    assert waited[:3] == [0.01, 0.02, 0.04], "each time twice as long"
    assert client.t == 5
    assert taker.taken["online"]["layer"].tolist() == [1, 1, 1]
