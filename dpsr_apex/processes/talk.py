"""The learner's communication thread: it owns the sockets to the replay and to the clients that request weights.

`LearnerClient` decides what is sent and when. Batches are prepared for the network here, while the other thread
updates.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Iterable
from typing import NamedTuple

from dpsr_apex import timeouts
from dpsr_apex.config import Config
from dpsr_apex.envs.stacked import StackedEnv
from dpsr_apex.processes.discovery import Address, HeadLocator
from dpsr_apex.processes.link import ReplayLink, request_to_join
from dpsr_apex.protocol.client_instructions import LearnerInstruction, PublishWeights, SendWeights, Work
from dpsr_apex.protocol.clients import LearnerClient
from dpsr_apex.roles.learner import Learner, Prepared, unusable
from dpsr_apex.wire.addresses import is_loopback, own_host, with_host
from dpsr_apex.wire.codec import BadMessage, decode, encode
from dpsr_apex.wire.messages import (
    SENDERS,
    Batch,
    Goodbye,
    LearnerState,
    Learning,
    Priorities,
    SaveRequest,
    Unusable,
    Weights,
    WeightsRequest,
)
from dpsr_apex.wire.sockets import Received, ServerSocket, wait
from dpsr_apex.wire.waker import Waker

REQUESTS_AT_ONCE = 32  # answered before anything else is done
SERVING_SHARE = 0.1  # fraction of the time that answering requests may take, so that they cannot stop the training

log = logging.getLogger(__name__)


class Ready(NamedTuple):
    """A batch as it was received, and prepared for the network."""

    batch: Batch
    prepared: Prepared


class Updated(NamedTuple):
    """The result of one update, after which the weights have this version."""

    priorities: Priorities
    version: int


WorkItem = Ready | SaveRequest | LearnerState
Event = Updated | Weights | Learning | LearnerState | Unusable


class Talk(threading.Thread):
    """The communication thread. The updating thread calls `next_work`, `take_publish_request`, `report` and `stop`."""

    def __init__(
        self, config: Config, head: HeadLocator, run_id: str, bind: str | None, learner: Learner, env: StackedEnv
    ) -> None:
        super().__init__(name="talk", daemon=True)
        self._learner = learner
        self._work: queue.SimpleQueue[WorkItem] = queue.SimpleQueue()
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._publish_request = threading.Event()
        self._waker = Waker()
        self._stopped = threading.Event()
        self._error: BaseException | None = None
        self._server = _weights_server(bind, head.address)
        self._serve_at = 0.0  # when the next requests may be answered
        endpoint = _reachable_endpoint(self._server.endpoint, head.address.endpoint)
        request = request_to_join(run_id, "learner", "learner", env.description, env.layout)
        request = request._replace(weights_endpoint=endpoint)
        self._client = LearnerClient(request, config.system, time.monotonic())
        self._replay = ReplayLink(head, self._client)

    @property
    def goodbye(self) -> Goodbye | None:
        """The replay's Goodbye; None if it has not arrived."""
        return self._client.membership.goodbye

    def next_work(self) -> WorkItem | None:
        """Return the next work item; None after a short wait. Errors of the communication thread are raised here."""
        try:
            work = self._work.get(timeout=timeouts.LEARNER_POLL)
        except queue.Empty:
            work = None
        if self._error is not None:
            raise self._error
        if work is not None:
            self._waker.wake()  # fewer batches are ready, so another one can be requested
        return work

    def take_publish_request(self) -> bool:
        """Return whether newer weights were requested since the last call."""
        is_requested = self._publish_request.is_set()
        if is_requested:
            self._publish_request.clear()
        return is_requested

    def report(self, event: Event) -> None:
        """Report what the updating thread has done."""
        self._events.put(event)
        self._waker.wake()

    def stop(self) -> None:
        """Send all pending messages, leave the run, and end the thread."""
        self._stopped.set()
        self._waker.wake()
        self.join(timeout=timeouts.TALK_THREAD)

    def run(self) -> None:
        """Communicate until stopped or told to leave."""
        try:
            while not self._stopped.is_set() and self.goodbye is None:
                self._talk()
            self._take_events()
            self._replay.leave()
        except BaseException as error:  # raised again in the other thread
            self._error = error
        finally:
            self._server.close()

    def _talk(self) -> None:
        pause = self._serve_at - time.monotonic()
        serving = [self._server] if pause <= 0 else []
        wait([self._replay.socket, self._waker, *serving], pause if pause > 0 else timeouts.LEARNER_POLL)
        self._waker.clear()
        self._take_events()
        for message in self._replay.receive():
            self._execute(self._client.handle(message, time.monotonic()))
        if serving:
            self._take_requests()
        self._execute(self._client.tick(self._work.qsize(), time.monotonic()))

    def _prepare(self, batch: Batch) -> Ready:
        """Prepare a batch; report transitions that cannot be trained on before anything else is done about them."""
        prepared = self._learner.prepare(batch)
        for message in unusable(batch, prepared.faults):
            log.warning("left %d transitions out of a batch: %s", message.identities.size, message.reason)
            self._client.send(message)
        return Ready(batch, prepared)

    def _take_events(self) -> None:
        while not self._events.empty():
            match self._events.get():
                case Updated(priorities, version):
                    self._client.updated(priorities, version)
                case Weights() as weights:
                    self._execute(self._client.published(weights))
                case message:
                    self._client.send(message)
        self._execute(self._client.flush())

    def _take_requests(self) -> None:
        """Answer some requests for weights, and the others later."""
        began = time.monotonic()
        for _ in range(REQUESTS_AT_ONCE):
            if (received := self._server.receive()) is None:
                break
            self._take_request(received)
        ended = time.monotonic()
        self._serve_at = ended + (ended - began) * (1 / SERVING_SHARE - 1)

    def _take_request(self, received: Received) -> None:
        try:
            message = decode(received.frames)
        except BadMessage as error:
            self._server.blame(received)
            log.warning("cannot decode a request for weights: %s", received.problem or error)
            return
        if isinstance(message, WeightsRequest):
            self._execute(self._client.handle_request(received.sender, message))
        else:
            self._server.blame(received)

    def _execute(self, instructions: Iterable[LearnerInstruction]) -> None:
        for instruction in instructions:
            match instruction:
                case Work(item):
                    self._work.put(self._prepare(item) if isinstance(item, Batch) else item)
                case PublishWeights():
                    self._publish_request.set()
                case SendWeights(address, weights):
                    self._server.answer(address, encode(weights))
                case _:
                    self._execute(self._replay.execute(instruction))


def _weights_server(bind: str | None, head: Address) -> ServerSocket:
    """Return a socket that serves weights to the roles that may request them.

    Without `bind` it uses a free port on this machine's address towards the head.
    """
    bind = bind or f"tcp://{own_host(head.endpoint)}:0"
    return ServerSocket(bind, head.keys, accepted=SENDERS[WeightsRequest])


def _reachable_endpoint(endpoint: str, replay: str) -> str:
    """Return the address under which actors reach this learner.

    A learner on the replay's machine that listens on all interfaces is reached at the replay's address.
    """
    if is_loopback(endpoint) and not is_loopback(replay):
        log.warning(
            "weights are served to this machine only, at %s: to serve other machines, use --bind 0.0.0.0:PORT", endpoint
        )
    host = own_host(replay)
    return endpoint if is_loopback(f"tcp://{host}:0") else with_host(endpoint, host)
