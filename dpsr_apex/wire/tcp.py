"""What the system reports about the TCP connections of this process, by their file descriptors, and how to close one.

The descriptors belong to ZeroMQ and are never closed here. One may be reused for another connection at any moment, so
the peer is compared before a connection is closed.
"""

from __future__ import annotations

import ipaddress
import resource
import socket
import struct
import sys
from contextlib import suppress
from typing import NamedTuple

from dpsr_apex.wire.connections import MOST

RESERVED_FILES = 100  # descriptors that a server needs for other things than connections
_BYTES_RECEIVED = struct.Struct("=Q")
_BYTES_RECEIVED_AT = 128  # offset of tcpi_bytes_received in Linux's struct tcp_info
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER: no TIME_WAIT, which would keep the port of a client in use


class Peer(NamedTuple):
    """The other end of a connection."""

    host: str
    port: int

    @property
    def network(self) -> str:
        """The host, or its network of 64 bits for IPv6, of which one machine can have any address."""
        if ":" not in self.host:
            return self.host
        return str(ipaddress.IPv6Network((self.host.partition("%")[0], 64), strict=False))


UNKNOWN = Peer("an unknown address", 0)


def peer_of(descriptor: int) -> Peer:
    """Return the other end of a connection; UNKNOWN if it was closed meanwhile."""
    with suppress(OSError), socket.fromfd(descriptor, socket.AF_INET, socket.SOCK_STREAM) as connection:
        host, port, *_ = connection.getpeername()
        return Peer(str(host).removeprefix("::ffff:"), port)
    return UNKNOWN


def bytes_received(descriptor: int) -> int | None:
    """Return how many bytes have arrived on a connection so far; None if the system does not report it."""
    if not sys.platform.startswith("linux"):
        return None
    with suppress(OSError), socket.fromfd(descriptor, socket.AF_INET, socket.SOCK_STREAM) as connection:
        info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _BYTES_RECEIVED_AT + _BYTES_RECEIVED.size)
        if len(info) == _BYTES_RECEIVED_AT + _BYTES_RECEIVED.size:
            return int(_BYTES_RECEIVED.unpack_from(info, _BYTES_RECEIVED_AT)[0])
    return None


def close_connection(descriptor: int, peer: Peer) -> bool:
    """Close the connection to this peer, which its owner then notices; return whether there was one."""
    with suppress(OSError), socket.fromfd(descriptor, socket.AF_INET, socket.SOCK_STREAM) as connection:
        if peer_of(descriptor) == peer:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            connection.shutdown(socket.SHUT_RDWR)
            return True
    return False


def most_connections() -> int:
    """Return how many connections a server may have: fewer than this process may have open files."""
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if files == resource.RLIM_INFINITY:
        return MOST
    return min(MOST, max(files - RESERVED_FILES, files // 2))
