"""Send and receive frames over TCP. The only module that imports ZeroMQ.

A `ServerSocket` has many peers, a `ClientSocket` has one. Only `wait` blocks, and `close` for up to
`timeouts.SOCKET_LINGER`. The content of frames is defined in `dpsr_apex.wire.codec`, membership in
`dpsr_apex.protocol`. A socket must be used only by the thread that created it.
"""

from __future__ import annotations

import errno
import logging
import math
import secrets
import socket as tcp
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import zmq
from zmq.utils import z85
from zmq.utils.monitor import recv_monitor_message

from dpsr_apex import timeouts
from dpsr_apex.errors import UserError
from dpsr_apex.wire.addresses import BadAddress, host_and_port, host_of, is_ipv6, is_loopback, resolved
from dpsr_apex.wire.codec import MAX_FRAME, MAX_PARTS, Frame

if TYPE_CHECKING:
    from dpsr_apex.wire.keys import ClientKeys, ServerKeys

RECEIVE_QUEUE = 100  # messages per peer that may wait to be read
SERVER_SEND_QUEUE = 3 * RECEIVE_QUEUE  # messages that may wait to be sent to one peer: more than a role requests ahead
ZERO_COPY_BYTES = 100_000  # frames from this size on are sent without a copy

_LAST, _MORE = int(zmq.NOBLOCK), int(zmq.NOBLOCK | zmq.SNDMORE)  # computed once, because combining flags is slow
_log = logging.getLogger(__name__)


class BindError(UserError):
    """Raised when a server cannot listen on its address: the reason, and what to do."""


def make_keypair() -> tuple[bytes, bytes]:
    """Create a CURVE key pair and return (public, secret) as printable text."""
    return zmq.curve_keypair()


def public_key_of(secret: bytes) -> bytes:
    """Return the public key of a secret key; raise ValueError if it is not a valid key."""
    try:
        return zmq.curve_public(secret)
    except (zmq.ZMQError, ValueError, TypeError) as error:
        raise ValueError("not a secret key") from error


class Received(NamedTuple):
    """One message received by a server."""

    sender: bytes  # the address for `ServerSocket.send`
    frames: list[bytes]  # empty if there were more than MAX_PARTS
    host: str = ""  # address of the sender's machine; empty for this machine


class ServerSocket:
    """A server for any number of clients; with keys, only for clients that hold the client's key.

    `endpoint` is where it listens; port 0 is replaced with a free port.
    """

    def __init__(self, endpoint: str, keys: ServerKeys | None = None) -> None:
        bind_endpoint = _bind_endpoint(endpoint, keys)
        self._context = zmq.Context()
        self._socket = _create_socket(self._context, zmq.ROUTER, endpoint)
        self._socket.set(zmq.ROUTER_MANDATORY, 1)
        self._socket.set(zmq.ROUTER_HANDOVER, 1)  # a client that reconnects takes over its routing id at once
        self._authenticator = _Authenticator(self._context, self._socket, keys) if keys else None
        try:
            self._socket.bind(bind_endpoint)
        except zmq.ZMQError as error:
            self.close()
            raise BindError(_bind_problem(endpoint, error)) from error
        self.endpoint = self._socket.getsockopt_string(zmq.LAST_ENDPOINT).rstrip("\0")
        self.pollable = [self._socket, *(self._authenticator.pollable if self._authenticator else ())]
        self._own_host = host_of(self.endpoint).strip("[]")

    @property
    def denied(self) -> int:
        """Number of connection attempts that were denied."""
        return self._authenticator.denied if self._authenticator else 0

    def receive(self) -> Received | None:
        """Return the next message, or None if there is none."""
        if self._authenticator:
            self._authenticator.process_requests()
        try:
            sender = self._socket.recv(zmq.NOBLOCK, copy=False)  # a zmq.Frame, which has the peer's address
        except zmq.Again:
            return None
        return Received(sender.bytes, _frames(self._socket), self._host(sender))

    def send(self, address: bytes, frames: Sequence[Frame]) -> bool:
        """Send to the sender of an earlier message; False, with nothing sent, if it is gone or its queue is full."""
        return _send(self._socket, [address, *frames])

    def close(self) -> None:
        """Close after sending queued messages, for at most `timeouts.SOCKET_LINGER`."""
        if self._authenticator and not self._socket.closed:
            self._authenticator.close()
        self._socket.close(_milliseconds(timeouts.SOCKET_LINGER))
        self._context.term()

    def _host(self, frame: zmq.Frame) -> str:
        host = str(frame.get("Peer-Address"))
        is_here = host in ("::1", self._own_host) or host.startswith(("127.", "::ffff:127."))
        return "" if is_here else host.removeprefix("::ffff:")


class ClientSocket:
    """A client of one server; connects in the background, and reconnects whenever the connection is lost.

    ZeroMQ never reconnects to a server that denied it or speaks another protocol: to try again, create a new client.
    """

    def __init__(self, endpoint: str, keys: ClientKeys | None = None) -> None:
        host_and_port(endpoint)
        self._context = zmq.Context()
        self._socket = _create_socket(self._context, zmq.DEALER, endpoint)
        self._socket.set(zmq.ROUTING_ID, b"c" + secrets.token_bytes(15))  # must not start with a zero byte
        self._socket.set(zmq.IMMEDIATE, 1)  # do not queue messages without a connection
        self._socket.set(zmq.RECONNECT_IVL_MAX, 1_000)
        try:
            if keys:
                self._socket.set(zmq.CURVE_SERVERKEY, keys.server_public)
                self._socket.set(zmq.CURVE_PUBLICKEY, keys.public)
                self._socket.set(zmq.CURVE_SECRETKEY, keys.secret)
            self._socket.connect(endpoint)
        except zmq.ZMQError as error:
            self.close()
            raise BadAddress(f"cannot connect to {endpoint} with these keys: {error}") from error
        self.pollable = [self._socket]

    def receive(self) -> list[bytes] | None:
        """Return the frames of the next message ([] if there were more than MAX_PARTS), or None without a message."""
        try:
            return _frames(self._socket, self._socket.recv(zmq.NOBLOCK))
        except zmq.Again:
            return None

    def send(self, frames: Sequence[Frame]) -> bool:
        """Send to the server; False, with nothing sent, if it is not connected or the queue is full."""
        return _send(self._socket, list(frames))

    def close(self) -> None:
        """Close after sending queued messages, for at most `timeouts.SOCKET_LINGER`."""
        self._socket.close(_milliseconds(timeouts.SOCKET_LINGER))
        self._context.term()


class Pollable(Protocol):
    """Anything that `wait` can wait for."""

    @property
    def pollable(self) -> Sequence[Any]:
        """ZeroMQ sockets and file descriptors to poll for input."""
        ...


def wait(sockets: Sequence[Pollable], seconds: float) -> None:
    """Block until one of the sockets has input, or for `seconds`."""
    timeout = _milliseconds(min(max(seconds, 0.0), timeouts.LONGEST_POLL))
    zmq.zmq_poll([(part, zmq.POLLIN) for socket in sockets for part in socket.pollable], timeout)


def _milliseconds(seconds: float) -> int:
    return math.ceil(1_000 * seconds)


def _bind_endpoint(endpoint: str, keys: ServerKeys | None) -> str:
    try:
        bind_endpoint = resolved(endpoint)
    except BadAddress as error:
        raise BindError(f"cannot listen on {endpoint}: {error}") from error
    if keys is None and not is_loopback(bind_endpoint):
        raise BindError(
            f"cannot listen on {endpoint} without keys, because other machines can reach it: "
            "listen on 127.0.0.1, or create keys for the run"
        )
    return bind_endpoint


def _bind_problem(endpoint: str, error: zmq.ZMQError) -> str:
    reasons = {
        errno.EADDRINUSE: f"{endpoint} is in use: end the process that listens there, or choose another port",
        errno.EADDRNOTAVAIL: f"{endpoint} is not on this machine: choose one of its addresses, or 0.0.0.0 for all",
        errno.EACCES: f"no permission to listen on {endpoint}: choose a port >= 1024",
    }
    return reasons.get(error.errno or 0, f"cannot listen on {endpoint}: {error}")


def _create_socket(context: zmq.Context[zmq.Socket[bytes]], socket_type: int, endpoint: str) -> zmq.Socket[bytes]:
    socket = context.socket(socket_type)
    options = {
        zmq.IPV6: int(is_ipv6(endpoint)),  # otherwise a name might resolve to an IPv6 address without a listener
        zmq.SNDHWM: SERVER_SEND_QUEUE if socket_type == zmq.ROUTER else RECEIVE_QUEUE,
        zmq.RCVHWM: RECEIVE_QUEUE,
        zmq.MAXMSGSIZE: MAX_FRAME,
        zmq.HANDSHAKE_IVL: _milliseconds(timeouts.SOCKET_HANDSHAKE),
        zmq.HEARTBEAT_IVL: _milliseconds(timeouts.SOCKET_HEARTBEAT),
        zmq.HEARTBEAT_TIMEOUT: _milliseconds(timeouts.SOCKET_SILENCE),
        zmq.TCP_KEEPALIVE: 1,
        zmq.TCP_KEEPALIVE_IDLE: 60,
    }
    for option, value in options.items():
        socket.set(option, value)
    return socket


def _send(socket: zmq.Socket[bytes], parts: list[Frame]) -> bool:
    last = len(parts) - 1
    try:
        for index, part in enumerate(parts):
            flags = _LAST if index == last else _MORE
            socket.send(part, flags, copy=len(part) < ZERO_COPY_BYTES)  # only the first part can be refused
    except zmq.ZMQError as error:
        if error.errno in (errno.EAGAIN, errno.EHOSTUNREACH):
            return False
        raise
    return True


def _frames(socket: zmq.Socket[bytes], *first: bytes) -> list[bytes]:
    """Receive the remaining frames after `first` and return all; [] if there are more than MAX_PARTS."""
    frames = list(first)
    while socket.get(zmq.RCVMORE):
        frame = socket.recv(zmq.NOBLOCK)
        if len(frames) <= MAX_PARTS:
            frames.append(frame)
    return frames if len(frames) <= MAX_PARTS else []


class _Authenticator:
    """Accepts clients that hold the client's key, by ZeroMQ's authentication protocol (ZAP), and counts denied ones.

    Clients without a key, or with another server's key, fail before ZAP; the socket monitor reports them.
    """

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], router: zmq.Socket[bytes], keys: ServerKeys) -> None:
        self.denied = 0
        self._client_key = z85.decode(keys.client_public)
        self._router = router
        self._peers: dict[int, str] = {}  # address of each connection, by its file descriptor
        self._failure = ""
        self._logged: set[tuple[str, str]] = set()
        self._zap = context.socket(zmq.REP)
        self._zap.bind("inproc://zeromq.zap.01")
        router.set(zmq.CURVE_SERVER, 1)
        router.set(zmq.CURVE_SECRETKEY, keys.secret)
        router.set(zmq.ZAP_DOMAIN, b"dpsr_apex")
        self._monitor = context.socket(zmq.PAIR)
        self._monitor.set(zmq.RCVHWM, 0)  # a full queue would block the router
        router.monitor("inproc://monitor", _MONITORED_EVENTS)
        self._monitor.connect("inproc://monitor")
        self.pollable = [self._zap, self._monitor]

    def process_requests(self) -> None:
        """Answer authentication requests and read monitor events. Must be called often."""
        for socket, _ in zmq.zmq_poll([(socket, zmq.POLLIN) for socket in self.pollable], 0):
            if socket is self._zap:
                self._authenticate()
            else:
                self._read_event()

    def close(self) -> None:
        self._router.disable_monitor()
        self._monitor.close(0)
        self._zap.close(0)

    def _authenticate(self) -> None:
        version, request, _domain, address, _identity, *credentials = self._zap.recv_multipart()
        accepted = credentials == [b"CURVE", self._client_key]
        self._zap.send_multipart([version, request, b"200" if accepted else b"400", b"", b"", b""])
        if not accepted:
            self._deny(address.decode(), "its key is not the client key of this run")

    def _read_event(self) -> None:
        """Process one monitor event. A failure names no peer: it belongs to the connection that is closed next."""
        message = recv_monitor_message(self._monitor)
        event, value = message["event"], message["value"]
        if event == zmq.EVENT_ACCEPTED:
            self._peers[value] = _peer(value)
        elif event == zmq.EVENT_DISCONNECTED:
            address = self._peers.pop(value, _UNKNOWN)
            if self._failure:
                self._deny(address, self._failure)
                self._failure = ""
        else:
            self._failure = _FAILURES.get(value, "it disconnected during the handshake; perhaps it has no key")

    def _deny(self, address: str, reason: str) -> None:
        """Count a denied client; log each address and reason only once, because clients keep trying."""
        self.denied += 1
        if (address, reason) not in self._logged and len(self._logged) < _MAX_LOGGED:
            self._logged.add((address, reason))
            _log.warning("denied a client at %s: %s", address, reason)


_UNKNOWN = "an unknown address"
_MAX_LOGGED = 1_000
_MONITORED_EVENTS = (
    zmq.EVENT_ACCEPTED
    | zmq.EVENT_DISCONNECTED
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
)
_FAILURES: dict[int, str] = {
    zmq.PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH: "it has no key",
    zmq.PROTOCOL_ERROR_ZMTP_CRYPTOGRAPHIC: "its keys do not match those of this server",
}


def _peer(descriptor: int) -> str:
    """Return the host at the other end of an open connection."""
    with suppress(OSError), tcp.fromfd(descriptor, tcp.AF_INET, tcp.SOCK_STREAM) as connection:
        return str(connection.getpeername()[0])
    return _UNKNOWN
