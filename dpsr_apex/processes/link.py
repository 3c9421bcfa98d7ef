"""A process's way to the replay: it joins, keeps its lease, and joins again when the link or the replay was lost.

What the messages mean is the business of the process; the link only deals with those about itself.
"""

from __future__ import annotations

import importlib.metadata
import logging
import secrets
import time
from collections.abc import Iterator

from dpsr_apex.processes.discovery import Address, Whereabouts
from dpsr_apex.wire.codec import BadMessage, WrongProtocol, decode, encode
from dpsr_apex.wire.messages import (
    Alive,
    Goodbye,
    Heartbeat,
    Hello,
    Join,
    Leave,
    Message,
    Refused,
    Stranger,
    Terms,
    Welcome,
)
from dpsr_apex.wire.sockets import Client, wait

HEARTBEAT_SECONDS = 1.0
CONNECT_SECONDS = 0.02  # until it is looked again whether a socket has connected
ANSWER_SECONDS = 20.0  # for the first word of a head, which may still be starting
SILENCE_SECONDS = 2.0  # then it is said that an answer is waited for
PATIENCE_SECONDS = 600.0  # without a word from the replay, before a process gives up

log = logging.getLogger(__name__)


class RefusedByReplay(Exception):
    """The replay said no, and why."""


class ReplayLost(Exception):
    """Nothing is heard from the replay."""


def ask(address: Address, question: Message, seconds: float) -> Message:
    """The answer to one question that needs no membership; ReplayLost when none comes in time."""
    client = Client(address.endpoint, address.keys)
    try:
        began = time.monotonic()
        told = False
        while (now := time.monotonic()) < began + seconds:
            if now - began > SILENCE_SECONDS and not told:
                log.info("waiting for %s to answer", address.endpoint)
                told = True
            pause = 1.0 if client.send(encode(question)) else CONNECT_SECONDS
            again = min(now + pause, began + seconds)
            while time.monotonic() < again:
                wait([client], again - time.monotonic())
                if (frames := client.receive()) is not None:
                    return _understood(address, frames)
    finally:
        client.close()
    with_keys, without = "Is the key file its own?", "One that other machines can reach asks for its key file (--key)"
    raise ReplayLost(
        f"Nothing answers at {address.endpoint} within {seconds:.0f} s. "
        f"Is a run listening there? {with_keys if address.keys else without}"
    )


def _understood(address: Address, frames: list[bytes]) -> Message:
    try:
        return decode(frames)
    except WrongProtocol as error:
        raise RefusedByReplay(f"{address.endpoint}: {error}; install the same version of dpsr_apex") from None
    except BadMessage as error:
        raise ReplayLost(f"What answers at {address.endpoint} is not the head of a run: {error}") from None


def ask_terms(address: Address) -> Terms:
    """The run and its config, from its head."""
    answer = ask(address, Hello(), ANSWER_SECONDS)
    if isinstance(answer, Refused):
        raise RefusedByReplay(answer.reason)
    if not isinstance(answer, Terms):
        raise ReplayLost(f"What answers at {address.endpoint} is not the head of a run")
    return answer


def ask_terms_of(where: Whereabouts) -> Terms:
    """The same of a head that may move: when one that is published does not answer, its next life may come."""
    began = time.monotonic()
    while True:
        try:
            return ask_terms(where.address)
        except ReplayLost:
            if not where.may_move or time.monotonic() - began > PATIENCE_SECONDS:
                raise
            where.look_again()


def request_to_join(run_id: str, role: str, name: str, environment: str) -> Join:
    """A request to join; the learner adds where it serves weights."""
    return Join(
        run_id=run_id,
        role=role,
        name=name,
        incarnation=secrets.randbits(62),
        emulator=importlib.metadata.version("ale-py"),
        environment=environment,
        sequence=0,
        weights_endpoint="",
        weights_key=b"",
    )


class Link:
    """One member's connection. Call `keep` and `receive` a few times a second at least."""

    def __init__(self, where: Whereabouts, request: Join, lease: float) -> None:
        self.request = request  # what to join with; an actor moves its `sequence` on
        self.sent = 0  # of an actor: transitions, for the replay's books
        self.welcome: Welcome | None = None  # None while it is outside
        self.goodbye: Goodbye | None = None
        self.weights: tuple[str, bytes] = ("", b"")  # where the learner serves weights, and its public key
        self.t = 0  # the replay's clock, as last heard
        self.actors = 1  # in the whole run, planned or there
        self._where = where
        self._lease = lease
        self._client = Client(*where.address)
        self._last_word = self._heard = self._looked = time.monotonic()
        self._asked = self._beat = -HEARTBEAT_SECONDS

    @property
    def client(self) -> Client:
        """The socket to wait for; another one after the link was lost."""
        return self._client

    def keep(self) -> None:
        """Join, say that one is alive, or try anew, whatever is due."""
        now = time.monotonic()
        if now - self._last_word > PATIENCE_SECONDS:
            raise ReplayLost(f"Nothing was heard from {self._endpoint} for {PATIENCE_SECONDS:.0f} s")
        if self._has_moved(now) or now - self._heard > self._lease:
            self._connect_again(now)
        if self.welcome is None:
            if now - self._asked >= HEARTBEAT_SECONDS and self.send(self.request):
                self._asked = now
        elif now - self._beat >= HEARTBEAT_SECONDS and self.send(Heartbeat(self.sent)):
            self._beat = now

    def send(self, message: Message) -> bool:
        """Send without waiting; False when the replay is not there, or the queue to it is full."""
        return self._client.send(encode(message))

    def receive(self) -> Iterator[Message]:
        """What has come, but for what the link deals with by itself; a Welcome is among it."""
        while (frames := self._client.receive()) is not None:
            try:
                message = decode(frames)
            except BadMessage as error:
                log.warning("a message of the replay cannot be read: %s", error)
                continue
            self._last_word = self._heard = time.monotonic()
            if not self._deals_with(message):
                yield message

    def join_again(self) -> None:
        """Ask anew for what a Welcome brings."""
        self.welcome = None
        self._asked = -HEARTBEAT_SECONDS

    def leave(self) -> None:
        """Say that one goes, and close."""
        if self.welcome is not None:
            self.send(Leave(self.sent))
        self._client.close()

    def _deals_with(self, message: Message) -> bool:
        match message:
            case Welcome():
                self.welcome = message
                self.t, self.actors = message.t, message.actors
                self.weights = (message.weights_endpoint, message.weights_key)
                return False
            case Alive():
                self.t, self.actors = message.t, message.actors
                self.weights = (message.weights_endpoint, message.weights_key)
            case Stranger():
                if self.welcome is not None:
                    log.warning("the replay does not know this process any more; joining again")
                self.join_again()
            case Refused():
                raise RefusedByReplay(message.reason)
            case Goodbye():
                self.goodbye = message
            case _:
                return False
        return True

    @property
    def _endpoint(self) -> str:
        return self._where.address.endpoint

    def _has_moved(self, now: float) -> bool:
        """Whether the head is silent because it is elsewhere, or in another life; looked up once a second."""
        if now - self._heard < SILENCE_SECONDS or now - self._looked < HEARTBEAT_SECONDS:
            return False
        self._looked = now
        return self._where.look_again()

    def _connect_again(self, now: float) -> None:
        silence = now - self._last_word
        log.warning(
            "nothing was heard for %.0f of %.0f s; connecting again, to %s", silence, PATIENCE_SECONDS, self._endpoint
        )
        self._client.close()
        self._client = Client(*self._where.address)
        self._heard = now
        self.join_again()
