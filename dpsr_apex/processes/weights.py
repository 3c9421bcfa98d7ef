"""Network weights as bytes (safetensors, without torch), and the socket of a client to the learner that serves them."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from dpsr_apex.processes.discovery import HeadLocator
from dpsr_apex.protocol.client_instructions import ConnectToLearner, LoadWeights, RequestWeights, WeightsInstruction
from dpsr_apex.protocol.weights import WeightsSubscription
from dpsr_apex.state import State
from dpsr_apex.wire.addresses import BadAddress, host_of, with_host
from dpsr_apex.wire.codec import BadMessage, decode, encode
from dpsr_apex.wire.messages import LEARNER, LearnerState, Message, Weights
from dpsr_apex.wire.sockets import ClientSocket

log = logging.getLogger(__name__)


class TakesWeights(Protocol):
    """An agent into which weights can be loaded."""

    def load_weights(self, network: Any, arrays: dict[str, NDArray[Any]], /) -> None:
        """Load the weights of one network, "online" or "target"; raise ValueError if they do not fit."""


def pack_weights(arrays: dict[str, NDArray[Any]]) -> bytes:
    """Serialize named arrays as safetensors."""
    return save(arrays)


def unpack_weights(blob: bytes) -> dict[str, NDArray[Any]]:
    """Return the named arrays in safetensors; raise ValueError for invalid bytes, or numbers that are not finite."""
    try:
        arrays = load(blob)
    except (SafetensorError, KeyError) as error:  # KeyError: a dtype that numpy does not have
        raise ValueError(f"not valid weights: {error}") from error
    for name, array in arrays.items():
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise ValueError(f"not valid weights: {name} has numbers that are not finite")
    return arrays


def opened_state(learner: LearnerState) -> State:
    """Return the state in a message of the learner; raise ValueError if it could not be saved in a checkpoint."""
    facts = json.loads(learner.facts)
    if not isinstance(facts, dict):
        raise ValueError("its facts are not a JSON object")
    updates = facts.get("updates")
    if type(updates) is not int or updates < 0:  # a bool would be an int
        raise ValueError("it lacks the number of updates")
    return State(facts, unpack_weights(learner.arrays))


class LearnerLink:
    """The socket of one client to the learner; executes the instructions of its weights subscription."""

    def __init__(self, agent: TakesWeights, head: HeadLocator, subscription: WeightsSubscription) -> None:
        self.socket: ClientSocket | None = None  # None while no learner is known
        self._agent = agent
        self._head = head
        self._subscription = subscription

    def receive(self) -> Iterator[Message | None]:
        """Yield the messages that have arrived; None for one that cannot be decoded."""
        while self.socket is not None and (frames := self.socket.receive()) is not None:
            try:
                yield decode(frames)
            except BadMessage as error:
                log.warning("cannot decode an answer from the learner: %s", error)
                yield None

    def execute(self, instruction: WeightsInstruction) -> None:
        """Execute one instruction."""
        match instruction:
            case ConnectToLearner(endpoint):
                self._connect(endpoint)
            case RequestWeights(request):
                if self.socket is None or not self.socket.send(encode(request)):
                    self._subscription.undelivered()
            case LoadWeights(weights):
                self._load(weights)

    def close(self) -> None:
        """Close the socket."""
        if self.socket is not None:
            self.socket.close()
            self.socket = None

    def _connect(self, endpoint: str) -> None:
        self.close()
        if not endpoint:
            return
        replay, keys = self._head.address
        try:
            # A learner that advertises a wildcard address is on the replay's machine.
            self.socket = ClientSocket(with_host(endpoint, host_of(replay)), keys, server=LEARNER)
        except BadAddress as error:
            log.warning("cannot connect to the learner for weights: %s", error)
            self._subscription.unreachable()

    def _load(self, weights: Weights) -> None:
        try:
            if weights.online is not None:
                self._agent.load_weights("online", unpack_weights(weights.online))
            if weights.target is not None:
                self._agent.load_weights("target", unpack_weights(weights.target))
        except ValueError as error:
            log.warning("cannot use the weights from the learner: %s", error)
        else:
            self._subscription.loaded(weights)
