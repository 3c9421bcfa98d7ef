"""A connection of an observer to the head of a run, which it follows when the head moves."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import numpy as np

from dpsr_apex import timeouts
from dpsr_apex.processes.discovery import HeadLocator
from dpsr_apex.processes.link import RefusedByReplay, ReplayLost
from dpsr_apex.protocol.conversions import joined_survey
from dpsr_apex.replay.records import Integers
from dpsr_apex.replay.survey import Survey
from dpsr_apex.wire.codec import BadMessage, decode, encode
from dpsr_apex.wire.messages import Message, Refused, Stored, StoredRequest, SurveyPart, SurveyRequest
from dpsr_apex.wire.sockets import ClientSocket, wait


class HeadClient:
    """Sends requests that need no membership, and receives the answers.

    `find_head` is called until it returns a locator of the head, which then looks up where the head is.
    """

    def __init__(self, find_head: Callable[[], HeadLocator | None]) -> None:
        self._answered_at = time.monotonic()  # when the newest answer arrived, or when it began
        self._find_head = find_head
        self._head: HeadLocator | None = None
        self._client: ClientSocket | None = None
        self._looked_at = self._answered_at  # when the head was last looked up

    @property
    def is_connected(self) -> bool:
        """Whether there was a head to connect to; the connection is made in the background."""
        return self._client is not None

    def follow_head(self) -> None:
        """Connect to the head as soon as there is one; reconnect if it is silent and has moved."""
        if self._head is None:
            self._head = self._find_head()
            if self._head is not None:
                self._connect(self._head)
            return
        now = time.monotonic()
        if now - max(self._answered_at, self._looked_at) > timeouts.REPLAY_SILENCE:
            self._looked_at = now
            if self._head.look_again():
                self._connect(self._head)

    def send(self, message: Message) -> bool:
        """Send a message to the head; return False if it is not connected."""
        return self._client is not None and self._client.send(encode(message))

    def receive(self, seconds: float) -> Iterator[Message]:
        """Wait up to `seconds` for messages, and yield those that have arrived; others cannot be decoded."""
        if self._client is None:
            time.sleep(seconds)
            return
        wait([self._client], seconds)
        while self._client is not None and (frames := self._client.receive()) is not None:
            try:
                message = decode(frames)
            except BadMessage:
                continue
            self._answered_at = time.monotonic()
            yield message

    def ask(self, question: Message, seconds: float) -> Iterator[Message]:
        """Ask the head, as often as necessary, and yield its answers until the caller has enough of them.

        Raise RefusedByReplay if it refuses, ReplayLost if nothing has arrived for `seconds`.
        """
        sent_at, heard_at = -1.0, time.monotonic()
        while (now := time.monotonic()) < heard_at + seconds:
            self.follow_head()
            if sent_at < 0.0 and self.send(question):
                sent_at = now
            for message in self.receive(timeouts.CONNECT_POLL):
                heard_at = time.monotonic()
                if isinstance(message, Refused):
                    raise RefusedByReplay(message.reason)
                yield message
        raise ReplayLost(f"The head of the run has not answered for {seconds:.0f} s")

    def survey(self, seconds: float) -> Survey:
        """Return what is small about every transition in the replay, as it is now."""
        parts: list[SurveyPart] = []
        for message in self.ask(SurveyRequest(), seconds):
            if isinstance(message, SurveyPart):
                parts = [message] if message.first == 0 else [*parts, message]
                if survey := joined_survey(parts):
                    return survey
        raise AssertionError("ask ends with an exception")

    def stored(self, identities: Integers, seconds: float) -> Stored:
        """Return those of these transitions that are stored now."""
        for message in self.ask(StoredRequest(np.asarray(identities, np.int64)), seconds):
            if isinstance(message, Stored) and set(message.identities.tolist()) <= set(identities.tolist()):
                return message
        raise AssertionError("ask ends with an exception")

    def close(self) -> None:
        """Close the connection."""
        if self._client is not None:
            self._client.close()
            self._client = None

    def _connect(self, head: HeadLocator) -> None:
        self.close()
        self._client = ClientSocket(*head.address)
