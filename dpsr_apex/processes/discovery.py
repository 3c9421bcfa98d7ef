"""Discovery: the head of a run publishes its address in a registry, where clients look it up.

A registry is a file in a shared folder, or a service of a cluster engine (`dpsr_apex.supervise.ray`). Only the head is
registered: the learner sends its own address when it joins, and the head forwards it with every heartbeat.
Records in a registry are not trusted: a client connects only to a head whose public key is in its key file.
"""

from __future__ import annotations

import json
import logging
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import NamedTuple, Protocol

from dpsr_apex import timeouts
from dpsr_apex.files import write_atomically
from dpsr_apex.wire.addresses import BadAddress, host_and_port, is_loopback
from dpsr_apex.wire.keys import BadKeyFile, Keys, load_keys
from dpsr_apex.wire.messages import SERVER

log = logging.getLogger(__name__)


class Address(NamedTuple):
    """The endpoint of a server, and the keys of a client of it."""

    endpoint: str
    keys: Keys


@dataclass(frozen=True)
class HeadRecord:
    """The record that a head publishes; raises ValueError if it has no public key."""

    endpoint: str  # address for clients
    public_key: str  # of its socket
    incarnation: int  # random number, different for each process of the head
    machine: str = field(default_factory=socket.gethostname)  # its own host name

    def __post_init__(self) -> None:
        host_and_port(self.endpoint)
        if not self.public_key:
            raise ValueError(f"the head at {self.endpoint} has no public key")


class Registry(Protocol):
    """Where the head of one run publishes its address."""

    def publish(self, record: HeadRecord) -> None:
        """Publish the record of a new head, replacing any earlier one."""

    def look_up(self) -> HeadRecord | None:
        """Return the newest record; None if there is none, or it cannot be read."""

    def withdraw(self) -> None:
        """Remove the record of the head."""


class FileRegistry:
    """A registry in one file, in a folder that all machines share."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def publish(self, record: HeadRecord) -> None:
        """Write the file atomically."""
        write_atomically(self._file, json.dumps(asdict(record)))

    def look_up(self) -> HeadRecord | None:
        """Return the newest record; None also if it cannot be read: a shared folder may lag or be unreachable."""
        try:
            written = json.loads(self._file.read_text(encoding="ascii"))
            endpoint, public_key, machine = (str(written[name]) for name in ("endpoint", "public_key", "machine"))
            return HeadRecord(endpoint, public_key, int(written["incarnation"]), machine)
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def withdraw(self) -> None:
        """Remove the file, unless the folder is read-only: a record without a head is found not to answer."""
        with suppress(OSError):
            self._file.unlink()

    def __str__(self) -> str:
        return str(self._file.parent)


class MemoryRegistry:
    """A registry in memory, for an engine that makes it available to other processes."""

    def __init__(self) -> None:
        self._record: HeadRecord | None = None

    def publish(self, record: HeadRecord) -> None:
        """Publish the record of a new head, replacing any earlier one."""
        self._record = record

    def look_up(self) -> HeadRecord | None:
        """Return the newest record; None if there is none."""
        return self._record

    def withdraw(self) -> None:
        """Remove the record of the head."""
        self._record = None


class Found(NamedTuple):
    """A head that was looked up: its address and its incarnation."""

    address: Address
    incarnation: int


class HeadLocator:
    """The address of the head: fixed, or looked up repeatedly."""

    def __init__(self, address: Address, look_up: Callable[[], Found | None] | None = None) -> None:
        self.address = address
        self.may_move = look_up is not None
        self._look_up = look_up
        self._incarnation: int | None = None  # None: not looked up yet

    def look_again(self) -> bool:
        """Look up the head; return whether it has moved or was restarted, so that `address` is new."""
        found = self._look_up() if self._look_up else None
        if found is None or found == (self.address, self._incarnation):
            return False
        self.address, self._incarnation = found
        return True


def find_head(registry: Registry, key: Path, role: str) -> Found | None:
    """Return the head in this registry, with the keys of this role from this file; None without a head.

    Raise BadKeyFile if the keys belong to another head, BadAddress if this machine cannot reach it.
    """
    record = registry.look_up()
    if record is None:
        return None
    if is_loopback(record.endpoint) and record.machine != socket.gethostname():
        raise BadAddress(
            f"the head in {registry} is on {record.machine} and accepts only connections from that machine: "
            "start it with --bind 0.0.0.0:0 to accept others"
        )
    keys = load_keys(key, role)
    if keys.public[SERVER] != record.public_key.encode():
        raise BadKeyFile(f"{key} does not belong to the run whose head is published in {registry}")
    return Found(Address(record.endpoint, keys), record.incarnation)


def follow_head(registry: Registry, key: Path, role: str) -> HeadLocator | None:
    """Return a locator of the head in this registry, with the keys of this role from this file; None without a head."""
    found = find_head(registry, key, role)
    if found is None:
        return None
    head = HeadLocator(found.address, lambda: find_head(registry, key, role))
    head.look_again()
    return head


def wait_for_head(
    registry: Registry, key: Path, role: str, seconds: float, is_over: Callable[[], bool] = lambda: False
) -> HeadLocator | None:
    """Wait for a head in this registry and return its locator; None after `seconds`, or if `is_over`."""
    began = time.monotonic()
    has_logged = False
    while (head := follow_head(registry, key, role)) is None:
        waited = time.monotonic() - began
        if waited > seconds or is_over():
            return None
        if waited > timeouts.WAIT_MESSAGE and not has_logged:
            log.info("waiting for a head to be published in %s", registry)
            has_logged = True
        time.sleep(timeouts.HEAD_POLL)
    return head
