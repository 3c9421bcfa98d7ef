"""Frames between processes, over TCP. The one module that knows ZeroMQ.

A `Server` talks with many, a `Client` with one. Nothing here blocks but `wait`, and `close` for as long as LINGER. What
the frames mean is the business of `dpsr_apex.wire.codec`; who is in the run, and who is lost, that of the roles.
A socket belongs to the thread that made it.
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

from dpsr_apex.wire.addresses import BadAddress, host_and_port, host_of, is_ipv6, is_loopback, resolved
from dpsr_apex.wire.codec import MAX_FRAME, MAX_PARTS, Frame

if TYPE_CHECKING:
    from dpsr_apex.wire.keys import ClientKeys, ServerKeys

QUEUE = 100  # messages of one peer that may wait to be read
ANSWERS = 3 * QUEUE  # messages of a server that may wait to be sent to one peer: more than a role asks for ahead
LINGER = 1_000  # ms that closing waits for what is still to be sent
HEARTBEAT = 5_000  # ms between signs of life, of which the roles see nothing
SILENCE = 60_000  # ms without any after which a peer's queue goes; long enough for weights over a slow line
HANDSHAKE = 10_000  # ms in which a connection must have come in, or is closed
LONGEST_WAIT = 3_600.0  # seconds
WORTH_SHARING = 100_000  # bytes from which a frame is sent from where it is: copying would cost more

_LAST, _MORE = int(zmq.NOBLOCK), int(zmq.NOBLOCK | zmq.SNDMORE)  # once, since the names are slow to combine
_log = logging.getLogger(__name__)


class BindError(Exception):
    """A server cannot listen there: why, and what to do."""


def make_keypair() -> tuple[bytes, bytes]:
    """A new public and secret key, as printable text."""
    return zmq.curve_keypair()


def public_key_of(secret: bytes) -> bytes:
    """The public key that belongs to it; ValueError when it is no secret key."""
    try:
        return zmq.curve_public(secret)
    except (zmq.ZMQError, ValueError, TypeError) as error:
        raise ValueError("this is no secret key") from error


class Received(NamedTuple):
    """One message to a server."""

    sender: bytes  # where `Server.send` takes the answer
    frames: list[bytes]  # none: there were more than any message has
    host: str = ""  # address of the machine that it came from; empty for this one


class Server:
    """Talks with all clients that come to it; with keys only with those that hold the client's.

    `endpoint` is where it listens: for port 0 a free one was found.
    """

    def __init__(self, endpoint: str, keys: ServerKeys | None = None) -> None:
        place = _place_to_bind(endpoint, keys)
        self._context = zmq.Context()
        self._socket = _tuned(self._context, zmq.ROUTER, endpoint)
        self._socket.set(zmq.ROUTER_MANDATORY, 1)
        self._socket.set(zmq.ROUTER_HANDOVER, 1)  # a client that comes back is at once itself again
        self._door = _Door(self._context, self._socket, keys) if keys else None
        try:
            self._socket.bind(place)
        except zmq.ZMQError as error:
            self.close()
            raise BindError(_why_not(endpoint, error)) from error
        self.endpoint = self._socket.getsockopt_string(zmq.LAST_ENDPOINT).rstrip("\0")
        self.pollable = [self._socket, *(self._door.pollable if self._door else ())]
        self._own_host = host_of(self.endpoint).strip("[]")

    @property
    def denied(self) -> int:
        """Clients turned away so far, each as often as it came."""
        return self._door.denied if self._door else 0

    def receive(self) -> Received | None:
        """The next message, or None when there is none."""
        if self._door:
            self._door.attend()
        try:
            sender = self._socket.recv(zmq.NOBLOCK, copy=False)  # so that it can be asked where it is from
        except zmq.Again:
            return None
        return Received(sender.bytes, _frames(self._socket), self._host(sender))

    def send(self, address: bytes, frames: Sequence[Frame]) -> bool:
        """Send to the sender of an earlier message. False: it is gone or its queue is full, and nothing was sent."""
        return _send(self._socket, [address, *frames])

    def close(self) -> None:
        """What was sent has a second to get away."""
        if self._door and not self._socket.closed:
            self._door.close()
        self._socket.close(LINGER)
        self._context.term()

    def _host(self, frame: zmq.Frame) -> str:
        host = str(frame.get("Peer-Address"))
        is_here = host in ("::1", self._own_host) or host.startswith(("127.", "::ffff:127."))
        return "" if is_here else host.removeprefix("::ffff:")


class Client:
    """Talks with one server, connects to it in the background, and again whenever the connection is lost.

    ZeroMQ gives up for good on a server that turns it away or does not speak its language: who wants to try that again
    makes a new client.
    """

    def __init__(self, endpoint: str, keys: ClientKeys | None = None) -> None:
        host_and_port(endpoint)
        self._context = zmq.Context()
        self._socket = _tuned(self._context, zmq.DEALER, endpoint)
        self._socket.set(zmq.ROUTING_ID, b"c" + secrets.token_bytes(15))  # may not start with a zero
        self._socket.set(zmq.IMMEDIATE, 1)  # nothing is queued for a server that is not there
        self._socket.set(zmq.RECONNECT_IVL_MAX, 1_000)
        try:
            if keys:
                self._socket.set(zmq.CURVE_SERVERKEY, keys.server_public)
                self._socket.set(zmq.CURVE_PUBLICKEY, keys.public)
                self._socket.set(zmq.CURVE_SECRETKEY, keys.secret)
            self._socket.connect(endpoint)
        except zmq.ZMQError as error:
            self.close()
            raise BadAddress(f"{endpoint} cannot be connected to, or not with these keys: {error}") from error
        self.pollable = [self._socket]

    def receive(self) -> list[bytes] | None:
        """The frames of the next message, none when there were more than any message has; None: no message."""
        try:
            return _frames(self._socket, self._socket.recv(zmq.NOBLOCK))
        except zmq.Again:
            return None

    def send(self, frames: Sequence[Frame]) -> bool:
        """False: the server is not there (yet), or the queue is full, and nothing was sent."""
        return _send(self._socket, list(frames))

    def close(self) -> None:
        """What was sent has a second to get away."""
        self._socket.close(LINGER)
        self._context.term()


class Pollable(Protocol):
    """What can be waited for."""

    @property
    def pollable(self) -> Sequence[Any]:
        """Sockets and file descriptors that become readable."""
        ...


def wait(sockets: Sequence[Pollable], seconds: float) -> None:
    """Return as soon as `receive` of one of them should be called, or after this time."""
    milliseconds = math.ceil(1_000 * min(max(seconds, 0.0), LONGEST_WAIT))
    zmq.zmq_poll([(part, zmq.POLLIN) for socket in sockets for part in socket.pollable], milliseconds)


def _place_to_bind(endpoint: str, keys: ServerKeys | None) -> str:
    try:
        place = resolved(endpoint)
    except BadAddress as error:
        raise BindError(f"cannot listen at {endpoint}: {error}") from error
    if keys is None and not is_loopback(place):
        raise BindError(
            f"cannot listen at {endpoint} without keys, since other machines can reach it: "
            "listen at 127.0.0.1, or let the run have keys"
        )
    return place


def _why_not(endpoint: str, error: zmq.ZMQError) -> str:
    reasons = {
        errno.EADDRINUSE: f"{endpoint} is in use: end the process that listens there, or choose another port",
        errno.EADDRNOTAVAIL: f"{endpoint} is not on this machine: choose one of its own addresses, or 0.0.0.0 for all",
        errno.EACCES: f"{endpoint} is not for everyone: choose a port from 1024 on",
    }
    return reasons.get(error.errno or 0, f"cannot listen at {endpoint}: {error}")


def _tuned(context: zmq.Context[zmq.Socket[bytes]], kind: int, endpoint: str) -> zmq.Socket[bytes]:
    socket = context.socket(kind)
    options = {
        zmq.IPV6: int(is_ipv6(endpoint)),  # else a name could mean an address at which nobody listens
        zmq.SNDHWM: ANSWERS if kind == zmq.ROUTER else QUEUE,
        zmq.RCVHWM: QUEUE,
        zmq.MAXMSGSIZE: MAX_FRAME,
        zmq.HANDSHAKE_IVL: HANDSHAKE,
        zmq.HEARTBEAT_IVL: HEARTBEAT,
        zmq.HEARTBEAT_TIMEOUT: SILENCE,
        zmq.TCP_KEEPALIVE: 1,
        zmq.TCP_KEEPALIVE_IDLE: 60,
    }
    for option, value in options.items():
        socket.set(option, value)
    return socket


def _send(socket: zmq.Socket[bytes], parts: list[Frame]) -> bool:
    last = len(parts) - 1
    try:
        for place, part in enumerate(parts):
            flags = _LAST if place == last else _MORE
            socket.send(part, flags, copy=len(part) < WORTH_SHARING)  # who takes the first part takes all
    except zmq.ZMQError as error:
        if error.errno in (errno.EAGAIN, errno.EHOSTUNREACH):
            return False
        raise
    return True


def _frames(socket: zmq.Socket[bytes], *first: bytes) -> list[bytes]:
    """All frames of a message whose `first` were taken already; none when there are more than any message has."""
    frames = list(first)
    while socket.get(zmq.RCVMORE):
        frame = socket.recv(zmq.NOBLOCK)
        if len(frames) <= MAX_PARTS:
            frames.append(frame)
    return frames if len(frames) <= MAX_PARTS else []


class _Door:
    """Lets in who proves to hold the client's key, by ZeroMQ's own protocol for it (ZAP), and counts all others.

    Those without a key, or with another server's, do not get as far as being asked: of them the monitor tells.
    """

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], router: zmq.Socket[bytes], keys: ServerKeys) -> None:
        self.denied = 0
        self._guest = z85.decode(keys.client_public)
        self._router = router
        self._peers: dict[int, str] = {}  # address of each connection, by its file descriptor
        self._failure = ""
        self._told: set[tuple[str, str]] = set()
        self._zap = context.socket(zmq.REP)
        self._zap.bind("inproc://zeromq.zap.01")
        router.set(zmq.CURVE_SERVER, 1)
        router.set(zmq.CURVE_SECRETKEY, keys.secret)
        router.set(zmq.ZAP_DOMAIN, b"dpsr_apex")
        self._monitor = context.socket(zmq.PAIR)
        self._monitor.set(zmq.RCVHWM, 0)  # a full one would hold up the router
        router.monitor("inproc://monitor", _WATCHED)
        self._monitor.connect("inproc://monitor")
        self.pollable = [self._zap, self._monitor]

    def attend(self) -> None:
        """Answer all who knock. Must be called often."""
        for socket, _ in zmq.zmq_poll([(socket, zmq.POLLIN) for socket in self.pollable], 0):
            if socket is self._zap:
                self._answer()
            else:
                self._note()

    def close(self) -> None:
        self._router.disable_monitor()
        self._monitor.close(0)
        self._zap.close(0)

    def _answer(self) -> None:
        version, request, _domain, address, _identity, *credentials = self._zap.recv_multipart()
        welcome = credentials == [b"CURVE", self._guest]
        self._zap.send_multipart([version, request, b"200" if welcome else b"400", b"", b"", b""])
        if not welcome:
            self._deny(address.decode(), "its key is not the client key of this run")

    def _note(self) -> None:
        """A failure does not say whose it is; that of the connection which is closed directly after it."""
        event = recv_monitor_message(self._monitor)
        kind, value = event["event"], event["value"]
        if kind == zmq.EVENT_ACCEPTED:
            self._peers[value] = _peer(value)
        elif kind == zmq.EVENT_DISCONNECTED:
            address = self._peers.pop(value, _UNKNOWN)
            if self._failure:
                self._deny(address, self._failure)
                self._failure = ""
        else:
            self._failure = _FAILURES.get(value, "it left in the middle of the handshake; perhaps it has no key")

    def _deny(self, address: str, reason: str) -> None:
        """Told once for each address and reason, since clients try again and again."""
        self.denied += 1
        if (address, reason) not in self._told and len(self._told) < _MOST_TOLD:
            self._told.add((address, reason))
            _log.warning("denied a client at %s: %s", address, reason)


_UNKNOWN = "an unknown address"
_MOST_TOLD = 1_000
_WATCHED = (
    zmq.EVENT_ACCEPTED
    | zmq.EVENT_DISCONNECTED
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
)
_FAILURES: dict[int, str] = {
    zmq.PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH: "it has no key",
    zmq.PROTOCOL_ERROR_ZMTP_CRYPTOGRAPHIC: "its keys do not fit those of this server",
}


def _peer(descriptor: int) -> str:
    """The host at the other end, if the connection still stands."""
    with suppress(OSError), tcp.fromfd(descriptor, tcp.AF_INET, tcp.SOCK_STREAM) as connection:
        return str(connection.getpeername()[0])
    return _UNKNOWN
