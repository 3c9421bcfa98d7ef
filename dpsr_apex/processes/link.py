"""The connection of a process to the replay: the socket, and requests that need no membership.

The state machines in `dpsr_apex.protocol` decide what is sent, and when.
"""

from __future__ import annotations

import importlib.metadata
import logging
import secrets
import time
from collections.abc import Iterator, Sequence
from typing import Protocol

from dpsr_apex import timeouts
from dpsr_apex.errors import UserError
from dpsr_apex.processes.discovery import Address, HeadLocator
from dpsr_apex.protocol.client_instructions import HeadLost, LinkInstruction, LookUpHead, Reconnect, Rejected, Send
from dpsr_apex.protocol.membership import Membership
from dpsr_apex.replay.layout import UNKNOWN, Layout
from dpsr_apex.wire.codec import BadMessage, WrongProtocol, decode, encode
from dpsr_apex.wire.messages import Hello, Join, Message, Refused, Terms
from dpsr_apex.wire.sockets import ClientSocket, wait

log = logging.getLogger(__name__)


class RefusedByReplay(UserError):
    """Raised when the replay rejects this process, with the reason."""


class ReplayLost(UserError):
    """Raised when the replay does not answer."""

    exit_code = 1


def ask(address: Address, question: Message, seconds: float) -> Message:
    """Return the answer to a request that needs no membership; raise ReplayLost if there is none in time."""
    client = ClientSocket(address.endpoint, address.keys)
    try:
        began = time.monotonic()
        has_logged = False
        while (now := time.monotonic()) < began + seconds:
            if now - began > timeouts.HEAD_SILENCE and not has_logged:
                log.info("waiting for %s to answer", address.endpoint)
                has_logged = True
            pause = timeouts.QUESTION_REPEAT if client.send(encode(question)) else timeouts.CONNECT_POLL
            again = min(now + pause, began + seconds)
            while time.monotonic() < again:
                wait([client], again - time.monotonic())
                if (frames := client.receive()) is not None:
                    return _decoded(address, frames)
    finally:
        client.close()
    raise ReplayLost(
        f"No answer from {address.endpoint} within {seconds:.0f} s. "
        "Is a run listening there, and does the key file (--key) belong to that run?"
    )


def _decoded(address: Address, frames: list[bytes]) -> Message:
    try:
        return decode(frames)
    except WrongProtocol as error:
        raise RefusedByReplay(f"{address.endpoint}: {error}; install the same version of dpsr_apex") from None
    except BadMessage as error:
        raise ReplayLost(f"The server at {address.endpoint} is not the head of a run: {error}") from None


def ask_terms(address: Address) -> Terms:
    """Return the run and its config, from the head at this address."""
    answer = ask(address, Hello(), timeouts.HEAD_ANSWER)
    if isinstance(answer, Refused):
        raise RefusedByReplay(answer.reason)
    if not isinstance(answer, Terms):
        raise ReplayLost(f"The server at {address.endpoint} is not the head of a run")
    return answer


def ask_terms_of(head: HeadLocator) -> Terms:
    """Return the run and its config, from a head that may move: while it does not answer, it is looked up again."""
    began = time.monotonic()
    while True:
        try:
            return ask_terms(head.address)
        except ReplayLost:
            if not head.may_move or time.monotonic() - began > timeouts.HEAD_LOST:
                raise
            head.look_again()


def request_to_join(run_id: str, role: str, name: str, environment: str, layout: Layout = UNKNOWN) -> Join:
    """Return the Join message of a new process; the learner adds the address at which it serves weights."""
    return Join(
        run_id=run_id,
        role=role,
        name=name,
        incarnation=secrets.randbits(62),
        emulator=importlib.metadata.version("ale-py"),
        environment=environment,
        sequence=0,
        acknowledged=0,
        weights_endpoint="",
        layout=layout,
    )


class Client(Protocol):
    """The state machine of any role."""

    membership: Membership

    def undelivered(self, message: Message, /) -> None:
        """Note that the socket to the replay did not accept this message."""


class ReplayLink:
    """The socket of one client to the replay; executes the instructions of its state machine."""

    def __init__(self, head: HeadLocator, client: Client) -> None:
        self.socket = ClientSocket(*head.address)  # replaced by a Reconnect
        self._head = head
        self._client = client

    def receive(self) -> Iterator[Message]:
        """Yield the messages that have arrived."""
        fragments = self.socket.fragments
        while (frames := self.socket.receive()) is not None:
            try:
                yield decode(frames)
            except BadMessage as error:
                log.warning("cannot decode a message from the replay: %s", error)
        if self.socket.fragments != fragments:
            self._client.membership.heard(time.monotonic())

    def execute(self, instruction: LinkInstruction) -> Sequence[LinkInstruction]:
        """Execute one instruction; return those that follow from its result."""
        match instruction:
            case Send(message):
                if not self.socket.send(encode(message)):
                    self._client.undelivered(message)
            case LookUpHead():
                moved = self._head.look_again()
                return self._client.membership.head_looked_up(moved, time.monotonic())
            case Reconnect(silence):
                self._reconnect(silence)
            case HeadLost(silence):
                raise ReplayLost(f"No message from {self._endpoint} for {silence:.0f} s")
            case Rejected(reason):
                raise RefusedByReplay(reason)
        return []

    def leave(self) -> None:
        """Leave the run, and close the socket."""
        for instruction in self._client.membership.leave():
            self.execute(instruction)
        self.socket.close()

    @property
    def _endpoint(self) -> str:
        return self._head.address.endpoint

    def _reconnect(self, silence: float) -> None:
        log.warning("no message for %.0f of %.0f s; reconnecting to %s", silence, timeouts.HEAD_LOST, self._endpoint)
        self.socket.close()
        self.socket = ClientSocket(*self._head.address)
