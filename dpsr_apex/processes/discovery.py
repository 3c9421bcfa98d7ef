"""Where the head of a run is: it publishes that on a board, and who needs it looks there, and again when it is lost.

A board is a file in a folder that all machines see, or what a cluster engine offers (`dpsr_apex.cluster`). Only the
head is on it: the learner tells the head where it serves weights, and the head tells everybody with every heartbeat.
What is read from a board is never trusted: who looks up a head beyond this machine has its key, or does not connect.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import NamedTuple, Protocol

from dpsr_apex.wire.addresses import BadAddress, host_and_port, is_loopback
from dpsr_apex.wire.keys import BadKeyFile, ClientKeys, load_client_keys

LOOK_SECONDS = 0.2
SILENCE_SECONDS = 2.0  # then it is said that a head is waited for

log = logging.getLogger(__name__)


class Address(NamedTuple):
    """Where a server is, and the keys that it asks for."""

    endpoint: str
    keys: ClientKeys | None


@dataclass(frozen=True)
class Notice:
    """What a head tells of itself; ValueError for one that others could reach and that has no key."""

    endpoint: str  # where others reach it
    public_key: str  # of its socket; empty for one that this machine alone can reach
    incarnation: int  # random, one for each of its lives
    machine: str = field(default_factory=socket.gethostname)  # its name for itself

    def __post_init__(self) -> None:
        host_and_port(self.endpoint)
        if not self.public_key and not is_loopback(self.endpoint):
            raise ValueError(f"{self.endpoint} is not published without a key, since other machines can reach it")


class Board(Protocol):
    """Where the head of one run publishes itself."""

    def publish(self, notice: Notice) -> None:
        """From now on this is the head."""

    def look_up(self) -> Notice | None:
        """The newest notice; None while there is none that can be read."""

    def withdraw(self) -> None:
        """There is no head any more."""


class FileBoard:
    """A board that is one file, in a folder that all machines see."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def publish(self, notice: Notice) -> None:
        """Whole or not at all."""
        unfinished = self._file.with_name(f".unfinished-{self._file.name}-{os.getpid()}")
        unfinished.write_text(json.dumps(asdict(notice)), encoding="ascii")
        unfinished.replace(self._file)

    def look_up(self) -> Notice | None:
        """None also for what is no notice: a shared folder may be behind, or out of reach for a while."""
        try:
            written = json.loads(self._file.read_text(encoding="ascii"))
            endpoint, public_key, machine = (str(written[name]) for name in ("endpoint", "public_key", "machine"))
            return Notice(endpoint, public_key, int(written["incarnation"]), machine)
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def withdraw(self) -> None:
        """Remove the file."""
        self._file.unlink(missing_ok=True)

    def __str__(self) -> str:
        return str(self._file.parent)


class MemoryBoard:
    """A board in one process, for an engine that lets others ask it."""

    def __init__(self) -> None:
        self._notice: Notice | None = None

    def publish(self, notice: Notice) -> None:
        """From now on this is the head."""
        self._notice = notice

    def look_up(self) -> Notice | None:
        """The newest notice."""
        return self._notice

    def withdraw(self) -> None:
        """There is no head any more."""
        self._notice = None


class Found(NamedTuple):
    """A head that was looked up: where it is, and which of its lives."""

    address: Address
    incarnation: int


class Whereabouts:
    """Where the head is, as far as one knows: told once and for all, or looked up again and again."""

    def __init__(self, address: Address, look_up: Callable[[], Found | None] | None = None) -> None:
        self.address = address
        self.may_move = look_up is not None
        self._look_up = look_up
        self._incarnation: int | None = None  # None: not looked up yet

    def look_again(self) -> bool:
        """Whether there is another head by now, or the same in another life; then `address` is where."""
        found = self._look_up() if self._look_up else None
        if found is None or found == (self.address, self._incarnation):
            return False
        self.address, self._incarnation = found
        return True


def find_head(board: Board, key: Path) -> Found | None:
    """The head on this board, with the client's keys in this file if it has any; None while none is there.

    BadKeyFile when the keys are those of another head, BadAddress when this machine cannot reach it.
    """
    notice = board.look_up()
    if notice is None:
        return None
    if not notice.public_key and notice.machine != socket.gethostname():
        # What listens at that address here is something else, and would not have to prove what it is.
        raise BadAddress(
            f"the head in {board} is on {notice.machine} and listens there for that machine alone: "
            "let it listen for others by --bind 0.0.0.0:0"
        )
    keys = load_client_keys(key) if notice.public_key else None
    if keys and keys.server_public != notice.public_key.encode():
        raise BadKeyFile(f"{key} is of another run than the one whose head is published in {board}")
    return Found(Address(notice.endpoint, keys), notice.incarnation)


def follow_head(board: Board, key: Path) -> Whereabouts | None:
    """The same, to be looked up again and again."""
    found = find_head(board, key)
    if found is None:
        return None
    head = Whereabouts(found.address, lambda: find_head(board, key))
    head.look_again()
    return head


def wait_for_head(
    board: Board, key: Path, seconds: float, is_over: Callable[[], bool] = lambda: False
) -> Whereabouts | None:
    """Where the head on this board is, as soon as there is one; None when there is none in time, or all is over."""
    began = time.monotonic()
    told = False
    while (head := follow_head(board, key)) is None:
        waited = time.monotonic() - began
        if waited > seconds or is_over():
            return None
        if waited > SILENCE_SECONDS and not told:
            log.info("waiting for a head to be published in %s", board)
            told = True
        time.sleep(LOOK_SECONDS)
    return head
