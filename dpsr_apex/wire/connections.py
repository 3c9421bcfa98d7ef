"""Which connections of a server to close, so that no client can take more than its share of memory and connections.

ZeroMQ holds what a client has sent until a whole message of it is read, and nothing in ZeroMQ bounds that. But the
system counts the bytes that a connection has received; what was not read of them yet is in memory. A client that has
sent no message yet may not even have a key, so those get little.

A state machine without sockets and clock.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

MOST = 4_096  # connections
MOST_PER_HOST = 1_024
MOST_SILENT = 256  # connections without a message so far
MOST_SILENT_PER_HOST = 64
UNREAD = 128 * 2**20  # bytes that one client may have sent without being read: more than a full queue of messages
UNREAD_SILENT = 4 * 2**20  # bytes, before its first message
UNREAD_TOTAL = 512 * 2**20  # bytes, of all clients
UNREAD_SILENT_TOTAL = 64 * 2**20
HEARTBEATS = 100  # bytes a second that are received but never delivered as messages: more than ZeroMQ's heartbeats
QUIET = 10.0  # seconds without a message, after which a connection may be closed in favour of a new one
FAULTS = 10  # invalid messages before a connection is closed


class Closing(NamedTuple):
    """A connection that must be closed."""

    number: int
    host: str
    reason: str


@dataclass
class _Connection:
    host: str
    accepted_at: float
    heard_at: float | None = None  # when its newest message was delivered; None: it is silent
    delivered: int = 0  # bytes of all messages so far, as they were on the wire
    unread: int = 0
    faults: int = 0


class Connections:
    """The open connections of one server, by the number that the system gives them."""

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._open: dict[int, _Connection] = {}  # without those that are being closed
        self._silent: dict[int, str] = {}  # the hosts of those that have sent no message so far, the oldest first
        self._count: Counter[str] = Counter()  # by host
        self._silent_count: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._open)

    def accepted(self, number: int, host: str, now: float) -> list[Closing]:
        """Add a connection; return those that are too many now.

        The oldest silent connection is closed first. If only the new one is silent, one that was quiet for a while is.
        """
        self.ended(number)
        self._open[number] = _Connection(host, now)
        self._silent[number] = host
        self._count[host] += 1
        self._silent_count[host] += 1
        closings = []
        if self._silent_count[host] > MOST_SILENT_PER_HOST:
            closings += self._close(
                next(self._silent_of(host)), f"{MOST_SILENT_PER_HOST} others of its host have sent nothing"
            )
        elif len(self._silent) > MOST_SILENT:
            closings += self._close(next(iter(self._silent)), f"{MOST_SILENT} others have sent nothing")
        if self._count[host] > MOST_PER_HOST:
            closings += self._close(self._dispensable(host, now), f"its host has more than {MOST_PER_HOST} connections")
        elif len(self._open) > self._most:
            closings += self._close(self._dispensable(None, now), f"there are more than {self._most} connections")
        return closings

    def ended(self, number: int) -> None:
        """Remove a connection."""
        connection = self._open.pop(number, None)
        if connection is None:
            return
        _subtract(self._count, connection.host)
        if self._silent.pop(number, None) is not None:
            _subtract(self._silent_count, connection.host)

    def delivered(self, number: int, size: int, now: float) -> None:
        """Note that a message of this size on the wire was read."""
        if connection := self._open.get(number):
            connection.heard_at = now
            connection.delivered += size
            if self._silent.pop(number, None) is not None:
                _subtract(self._silent_count, connection.host)

    def fault(self, number: int) -> list[Closing]:
        """Note an invalid message; return the connection if it has sent too many."""
        connection = self._open.get(number)
        if connection is None:
            return []
        connection.faults += 1
        return self._close(number, f"it has sent {FAULTS} invalid messages") if connection.faults == FAULTS else []

    def measure(self, received: Callable[[int], int | None], now: float) -> list[Closing]:
        """Return the connections on which too much is unread; `received` gives the bytes received on a connection."""
        for number, connection in self._open.items():
            count = received(number)
            if count is not None:
                # More is delivered than received if messages of a former connection with this number were read late.
                connection.delivered = min(connection.delivered, count)
                not_messages = int(HEARTBEATS * max(now - connection.accepted_at, 0.0))
                connection.unread = max(count - connection.delivered - not_messages, 0)
        closings = []
        for number, connection in list(self._open.items()):
            if connection.unread > (UNREAD_SILENT if number in self._silent else UNREAD):
                closings += self._close(number, f"it has sent {_megabytes(connection.unread)} without a whole message")
        closings += self._close_greediest(self._silent, UNREAD_SILENT_TOTAL)
        closings += self._close_greediest(self._open, UNREAD_TOTAL)
        return closings

    @property
    def unread(self) -> int:
        """Bytes that all clients have sent without being read, when they were last measured."""
        return sum(connection.unread for connection in self._open.values())

    def _close_greediest(self, numbers: Iterable[int], most: int) -> list[Closing]:
        """Close the connections on which most is unread, until all together are within the limit."""
        unread = {number: self._open[number].unread for number in numbers}
        total, closings = sum(unread.values()), []
        for number in sorted(unread, key=unread.__getitem__, reverse=True):
            if total <= most:
                break
            closings += self._close(number, f"{_megabytes(unread[number])} of {_megabytes(total)} unread are from it")
            total -= unread[number]
        return closings

    def _dispensable(self, host: str | None, now: float) -> int:
        """Return the connection, of one host or of all, that is closed in favour of others; one of them is silent."""
        oldest, *more = islice(self._silent_of(host), 2)
        if more:
            return oldest
        heard = {number: one.heard_at or now for number, one in self._open.items() if host in (None, one.host)}
        quiet = min(heard, key=heard.__getitem__)
        return quiet if now - heard[quiet] > QUIET else oldest

    def _silent_of(self, host: str | None) -> Iterator[int]:
        return (number for number, other in self._silent.items() if host in (None, other))

    def _close(self, number: int, reason: str) -> list[Closing]:
        host = self._open[number].host
        self.ended(number)
        return [Closing(number, host, reason)]


def _subtract(counter: Counter[str], host: str) -> None:
    counter[host] -= 1
    if not counter[host]:
        del counter[host]


def _megabytes(size: int) -> str:
    return f"{size / 2**20:.1f} MiB"
