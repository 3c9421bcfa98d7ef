"""Transfer of network weights from the learner to its clients: requested by them, never pushed.

Two state machines without sockets and clock: the subscription of a client, and the learner's publisher.
"""

from __future__ import annotations

import logging

from dpsr_apex import timeouts
from dpsr_apex.protocol.client_instructions import (
    ConnectToLearner,
    LoadWeights,
    PublishWeights,
    RequestWeights,
    SendWeights,
    WeightsInstruction,
)
from dpsr_apex.wire.messages import Message, Weights, WeightsRequest

UNKNOWN = -1  # a version that no learner has

log = logging.getLogger(__name__)


class WeightsSubscription:
    """Keeps a client up to date with the learner of its run.

    One request is open at a time. Without an answer it is repeated over a new socket, with a timeout that doubles each
    time: a slow connection must not be filled with answers that are no longer awaited.
    """

    def __init__(self, now: float) -> None:
        self.t: int | None = None  # clock of the newest weights; None before the first
        self.updates = 0  # that they have had
        self.answers = 0  # so far, including those without newer weights
        self._learner = ""  # its endpoint; empty without a learner
        self._is_reachable = False
        self._is_wanted = False
        self._requested_at: float | None = None  # None: no request is open
        self._patience = timeouts.WEIGHTS_ANSWER
        self._version = self._target_version = UNKNOWN
        self._began = now
        self._next_message = now + timeouts.WEIGHTS_MESSAGE

    def follow(self, learner: str) -> list[WeightsInstruction]:
        """Switch to the learner at this endpoint, if it has changed; empty without a learner."""
        if learner == self._learner:
            return []
        self._learner = learner
        self._patience = timeouts.WEIGHTS_ANSWER
        return self._connect()

    @property
    def is_requested(self) -> bool:
        """Whether a request is open."""
        return self._requested_at is not None

    def want(self) -> None:
        """Request newer weights at the next tick, or as soon as the open request is answered."""
        self._is_wanted = True

    def tick(self, now: float) -> list[WeightsInstruction]:
        """Send a wanted request; repeat a request whose answer is overdue."""
        instructions: list[WeightsInstruction] = []
        if self._requested_at is not None and now - self._requested_at > self._patience:
            log.warning("no answer from the learner at %s for %.3g s; asking again", self._learner, self._patience)
            self._patience *= 2
            instructions += self._connect()
        if self._is_wanted and self._is_reachable and self._requested_at is None:
            self._is_wanted = False
            self._requested_at = now
            instructions.append(RequestWeights(WeightsRequest(self._version, self._target_version)))
        return instructions

    def handle(self, message: Message | None) -> list[WeightsInstruction]:
        """Handle the learner's answer; None for one that cannot be decoded."""
        self._requested_at = None
        self._patience = timeouts.WEIGHTS_ANSWER
        self.answers += 1
        return [LoadWeights(message)] if isinstance(message, Weights) else []

    def loaded(self, weights: Weights) -> None:
        """Note that the agent has loaded these weights."""
        self._version, self._target_version = weights.version, weights.target_version
        self.t, self.updates = weights.t, weights.updates

    def undelivered(self) -> None:
        """Request again at the next tick, because the socket did not accept the request."""
        self._requested_at = None
        self._is_wanted = True

    def unreachable(self) -> None:
        """Request nothing until there is another learner, because this one cannot be reached."""
        self._is_reachable = False

    def log_waiting(self, now: float) -> None:
        """Log what a client without weights is waiting for, at increasing intervals."""
        if self.t is None and now >= self._next_message:
            source = f"the weights of the learner at {self._learner}" if self._learner else "a learner to join the run"
            waited = now - self._began
            log.info("waiting for %s for %.0f s", source, waited)
            self._next_message = now + waited

    def _connect(self) -> list[WeightsInstruction]:
        self._is_wanted |= self._requested_at is not None
        self._requested_at = None
        self._is_reachable = self._learner != ""
        return [ConnectToLearner(self._learner)]


class WeightsPublisher:
    """Answers each request with the newest weights, which the learner publishes when a client waits for them."""

    def __init__(self) -> None:
        self._published: Weights | None = None
        self._newest = UNKNOWN  # version of the learner's weights, published or not
        self._waiting: dict[bytes, WeightsRequest] = {}  # by address
        self._is_awaited = False  # whether the learner was asked to publish and has not done so yet

    def handle(self, sender: bytes, request: WeightsRequest) -> list[PublishWeights | SendWeights]:
        """Handle a request: it is answered at once if the published weights are the newest."""
        self._waiting[sender] = request
        return self._answer()

    def updated(self, version: int) -> None:
        """Note that the learner has weights of this version."""
        self._newest = version

    def published(self, weights: Weights) -> list[PublishWeights | SendWeights]:
        """Publish these weights, and answer all waiting clients with them."""
        self._published = weights
        self._newest = max(self._newest, weights.version)
        self._is_awaited = False
        return self._send_to_all(weights)

    def _answer(self) -> list[PublishWeights | SendWeights]:
        published = self._published
        if published is None or self._is_awaited:
            return []
        if published.version == self._newest:
            return self._send_to_all(published)
        self._is_awaited = True
        return [PublishWeights()]

    def _send_to_all(self, published: Weights) -> list[PublishWeights | SendWeights]:
        answers: list[PublishWeights | SendWeights] = [
            SendWeights(address, _newer(published, request)) for address, request in self._waiting.items()
        ]
        self._waiting.clear()
        return answers


def _newer(published: Weights, request: WeightsRequest) -> Weights:
    """Return the networks of which the client has another version."""
    return published._replace(
        online=published.online if published.version != request.version else None,
        target=published.target if published.target_version != request.target_version else None,
    )
