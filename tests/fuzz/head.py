"""The head of a run without sockets, for fuzzers: any frames come in from its clients, and everything is checked.

Every client has a valid key, and most are members. What a server sends is fuzzed as well, at the clients' end.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from random import Random
from typing import NamedTuple

from dpsr_apex.config import Config
from dpsr_apex.processes.replay import _decoded
from dpsr_apex.processes.weights import unpack_weights
from dpsr_apex.protocol.clients import ActorClient, EvaluatorClient, LearnerClient
from dpsr_apex.protocol.replay_service import Outgoing, ReplayService
from dpsr_apex.record.journal.commit import Commit
from dpsr_apex.record.journal.encoding import digest_of
from dpsr_apex.record.journal.journal import Journal
from dpsr_apex.record.journal.recover import Base, journal_facts, recover
from dpsr_apex.state import State
from dpsr_apex.wire.codec import MAX_PARTS, BadMessage, Frame, WrongProtocol, decode, encode
from dpsr_apex.wire.fragments import MOST_BYTES, Reassembly, is_fragment
from dpsr_apex.wire.messages import ACTOR, EVALUATOR, LEARNER, OWNER, Chunk, LearnerState, SampleRequest, Weights
from dpsr_apex.wire.sockets import Received
from tests.simulation.disk import SimDisk
from tests.unit.protocol.watched_service import CONFIG, ERA, WatchedReplay, chunk, join

SENDERS = (
    *((b"actor-0", ACTOR), (b"actor-1", ACTOR), (b"learner-0", LEARNER), (b"evaluator-0", EVALUATOR)),
    *((b"owner", OWNER), (b"no member", ACTOR), (b"no learner", LEARNER)),
)
"""The address and the role of each client."""

TO_CLIENTS = len(SENDERS)
"""Sender of messages that a server sends to its clients."""

FUZZED = replace(
    CONFIG, run=replace(CONFIG.run, total_steps=10**6), learner=replace(CONFIG.learner, steps_per_update=0)
)
FOLDER = Path("journal")
MOST_SENT = 64 * 2**20  # bytes of the answers to one message


class Message(NamedTuple):
    """What one of the clients sends."""

    sender: int
    frames: list[bytes]


class FuzzedHead:
    """A head with members, stored transitions, an open round and a requested batch; and one client of each role."""

    def __init__(self, config: Config = FUZZED) -> None:
        self.service = _new_service(config)
        self._reassembly = Reassembly()
        self._clients = (
            ActorClient(join(), config.system, 0.0),
            LearnerClient(join("learner", "learner"), config.system, 0.0),
            EvaluatorClient(join("evaluator", "evaluator"), config.system, 0.0),
        )
        self._now = 0.0
        self._journal: FuzzedJournal | None = None
        for address, role in SENDERS[:4]:
            self.service.handle(address, join(address.decode(), role), 0.0, role)
        for number in range(7):
            self.service.handle(b"actor-0", chunk(number), 0.0, ACTOR)
        self.service.handle(b"learner-0", SampleRequest(), 0.0, LEARNER)
        assert self.service.replay.rounds

    def receive(self, message: Message) -> None:
        """Handle a message as the head does; AssertionError or any other exception is a bug."""
        self._now += 0.01
        if message.sender >= TO_CLIENTS:
            self._at_clients(message.frames)
        else:
            outgoing = self._answers(Received(SENDERS[message.sender][0], message.frames, SENDERS[message.sender][1]))
            outgoing += self.service.tick(self._now)
            if self._journal:
                self._journal.commit.commit(outgoing)
            sizes = [len(frame) for _, reply in outgoing for frame in encode(reply)]
            assert sum(sizes) <= MOST_SENT, "a message caused huge answers"

    def check(self) -> None:
        """Check the invariants of the service and its replay."""
        replay, traffic = self.service.replay, self.service.traffic
        assert replay.check_valid() == (True, "")
        assert traffic.received == traffic.inserted + traffic.refused + self.service.flow.inbox.queued_transitions
        self.service.stats(self._now)
        self.service.save()
        if self._journal:
            self._journal.check()

    def keep_journal(self) -> None:
        """From now on, write the events of the service to a journal, from which it must be possible to recover."""
        self._journal = FuzzedJournal(self.service)

    def _answers(self, received: Received) -> list[Outgoing]:
        """What the server's socket and the replay process do with a message."""
        if len(received.frames) > MAX_PARTS:
            received = received._replace(frames=[], problem="too many frames")
        try:
            if is_fragment(received.frames):
                is_member = self.service.sessions.at(received.sender) is not None
                most = MOST_BYTES.get(received.role, 0) if is_member else 0
                whole = self._reassembly.add(received.frames, most, self._now, received.sender)
                if whole is None:
                    return []
                received = received._replace(frames=whole)
            message = _decoded(received)
            if self._journal and isinstance(message, Chunk):
                self._journal.commit.received(message, received.frames)
        except WrongProtocol as error:
            return self.service.wrong_protocol(received.sender, str(error), self._now)
        except BadMessage as error:
            return self.service.malformed(received.sender, str(error), self._now)
        return self.service.handle(received.sender, message, self._now, received.role)

    def _at_clients(self, frames: Sequence[Frame]) -> None:
        try:
            message = decode(frames)
        except BadMessage:
            return
        for client in self._clients:
            client.handle(message, self._now)
        if isinstance(message, Weights):
            for weights in (message.online, message.target):
                _unpack(weights or b"")
        if isinstance(message, LearnerState):
            _unpack(message.arrays)


class FuzzedJournal:
    """The journal of a service on a simulated disk, from a checkpoint of its present state on."""

    def __init__(self, service: ReplayService) -> None:
        self._service = service
        facts, arrays = service.save()
        self._state = State(json.loads(json.dumps(facts)), arrays)
        self._disk = SimDisk(Random(0))
        journal = Journal(self._disk, FOLDER, ERA, 0, journal_facts(service.config), awaits_sync=False)
        self.commit = Commit(service, journal)

    def check(self) -> None:
        """Check that a recovery leads to the same state: nothing that a client sends can prevent it."""
        self.commit.commit([])
        base = Base(lambda new: new.load(self._state))
        recovered = recover(self._disk, FOLDER, self._service.config, _new_service, base)
        assert digest_of(recovered.service) == digest_of(self._service), "the recovered state is another one"


def _new_service(config: Config) -> ReplayService:
    return ReplayService(config, WatchedReplay(config), "run-1", "0.12.1", ERA)


def _unpack(weights: bytes) -> None:
    try:
        unpack_weights(weights)
    except ValueError:
        return


@cache
def _prepared() -> FuzzedHead:
    return FuzzedHead()


def fresh() -> FuzzedHead:
    """A head in its first state, with a journal; quicker than making one."""
    head = copy.deepcopy(_prepared())
    head.keep_journal()
    return head


def play(messages: Sequence[Message]) -> None:
    """Let a fresh head handle these messages, and check it."""
    head = fresh()
    for message in messages:
        head.receive(message)
    head.check()
