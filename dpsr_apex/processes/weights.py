"""Networks on their way from the learner to those who act: asked for, never pushed. Safetensors, so no torch here."""

from __future__ import annotations

import logging
import time
from typing import Any, Protocol

from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from dpsr_apex.processes.discovery import Whereabouts
from dpsr_apex.wire.addresses import BadAddress, host_of, with_host
from dpsr_apex.wire.codec import BadMessage, decode, encode
from dpsr_apex.wire.keys import ClientKeys
from dpsr_apex.wire.messages import Weights, WeightsRequest
from dpsr_apex.wire.sockets import Client

UNKNOWN = -1  # a version that no learner has
ANSWER_SECONDS = 10.0  # then the question is asked again, over a new socket, with twice the patience each time

log = logging.getLogger(__name__)


class TakesWeights(Protocol):
    """Who acts by the weights: an agent."""

    def load_weights(self, network: Any, arrays: dict[str, NDArray[Any]], /) -> None:
        """Take over the weights of one network, "online" or "target"."""


def squeeze_weights(arrays: dict[str, NDArray[Any]]) -> bytes:
    """Named arrays as safetensors."""
    return save(arrays)


def inflate_weights(blob: bytes) -> dict[str, NDArray[Any]]:
    """Named arrays from safetensors; ValueError for what is none."""
    try:
        return load(blob)
    except (SafetensorError, KeyError) as error:  # KeyError: of a type that numpy does not have
        raise ValueError(f"these are no weights: {error}") from error


class WeightsClient:
    """Keeps an agent's networks up to date with the learner that it is told of."""

    def __init__(self, agent: TakesWeights, replay: Whereabouts) -> None:
        self.t: int | None = None  # the clock of the weights; None before the first ones
        self.answers = 0  # so far, also those that there is nothing newer
        self._agent = agent
        self._replay = replay
        self._learner: tuple[str, bytes] = ("", b"")
        self._client: Client | None = None
        self._endpoint = ""  # of the learner, as it is reached from here
        self._asked_at: float | None = None  # None: no question is open
        self._patience = ANSWER_SECONDS  # for an answer; a full line must not be asked for the same again and again
        self._version = self._target_version = UNKNOWN

    @property
    def client(self) -> Client | None:
        """The socket to wait for; None while no learner is known."""
        return self._client

    @property
    def source(self) -> str:
        """Where weights come from, in words."""
        return f"the weights of the learner at {self._endpoint}" if self._endpoint else "a learner to join the run"

    def follow(self, learner: tuple[str, bytes]) -> None:
        """Turn to the learner at this endpoint with this public key, where that is another one than before."""
        if learner != self._learner:
            self._learner = learner
            self._patience = ANSWER_SECONDS
            self._connect()

    def ask(self) -> None:
        """Ask for newer weights, unless a question is open."""
        now = time.monotonic()
        if self._asked_at is not None and now - self._asked_at > self._patience:
            log.warning("no answer from the learner at %s for %.3g s; asking again", self._endpoint, self._patience)
            self._patience *= 2
            self._connect()
        if self._client is not None and self._asked_at is None:
            question = WeightsRequest(self._version, self._target_version)
            self._asked_at = now if self._client.send(encode(question)) else None

    def receive(self) -> bool:
        """Take what has come; True when the agent has newer weights."""
        renewed = False
        while self._client is not None and (frames := self._client.receive()) is not None:
            self._asked_at = None
            self._patience = ANSWER_SECONDS
            self.answers += 1
            try:
                message = decode(frames)
                if isinstance(message, Weights):
                    renewed |= self._take(message)
            except (BadMessage, ValueError) as error:
                log.warning("weights of the learner cannot be used: %s", error)
        return renewed

    def close(self) -> None:
        """Let go of the socket."""
        if self._client is not None:
            self._client.close()

    def _take(self, weights: Weights) -> bool:
        if weights.online is not None:
            self._agent.load_weights("online", inflate_weights(weights.online))
        if weights.target is not None:
            self._agent.load_weights("target", inflate_weights(weights.target))
        self._version, self._target_version = weights.version, weights.target_version
        self.t = weights.t
        return weights.online is not None

    def _connect(self) -> None:
        self.close()
        self._client = self._asked_at = None
        self._endpoint, public_key = self._learner
        if not self._endpoint:
            return
        keys = self._replay.address.keys
        if keys is not None:
            keys = ClientKeys(public_key, keys.public, keys.secret)
        try:
            # One that listens everywhere and does not say where is where the replay is.
            self._endpoint = with_host(self._endpoint, host_of(self._replay.address.endpoint))
            self._client = Client(self._endpoint, keys)
        except BadAddress as error:
            log.warning("the learner cannot be asked for weights: %s", error)
