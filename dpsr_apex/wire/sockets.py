"""Send and receive frames over TCP. The only module that imports ZeroMQ.

A `ServerSocket` has many peers, a `ClientSocket` has one. Only `wait` blocks, and `close` for up to
`timeouts.SOCKET_LINGER`. The content of frames is defined in `dpsr_apex.wire.codec`, membership in
`dpsr_apex.protocol`. A socket must be used only by the thread that created it. Large messages are sent in fragments.

A server authenticates clients in a thread of its own, which also closes connections that take too much
(`dpsr_apex.wire.connections`), however busy the server is.
"""

from __future__ import annotations

import errno
import logging
import math
import secrets
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import zmq
from zmq.utils import z85

from dpsr_apex import timeouts
from dpsr_apex.errors import UserError
from dpsr_apex.wire.addresses import BadAddress, host_and_port, host_of, is_ipv6, resolved
from dpsr_apex.wire.answers import Answers
from dpsr_apex.wire.codec import MAX_FRAME, MAX_PARTS, BadMessage, Frame
from dpsr_apex.wire.connections import Closing, Connections
from dpsr_apex.wire.fragments import FROM_SERVER, Feed, Reassembly, is_fragment, is_large
from dpsr_apex.wire.messages import SERVER
from dpsr_apex.wire.tcp import UNKNOWN, Peer, bytes_received, close_connection, most_connections, peer_of
from dpsr_apex.wire.waker import Waker

if TYPE_CHECKING:
    from dpsr_apex.wire.keys import Keys

RECEIVE_QUEUE = 100  # messages per peer that may wait to be read
SERVER_SEND_QUEUE = 3 * RECEIVE_QUEUE  # messages that may wait to be sent to one peer: more than a role requests ahead
ZERO_COPY_BYTES = 100_000  # frames from this size on are sent without a copy
CURVE_OVERHEAD = 33  # bytes that encryption adds to a frame

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
    """One message received by a server, or a fragment of one."""

    sender: bytes  # the address for `ServerSocket.send`
    frames: list[bytes]  # empty for a fragment, and if there is a problem
    role: str = ""  # whose key the sender has; empty for a server without keys
    host: str = ""  # address of the sender's machine; empty for this machine
    connection: int = -1  # for `ServerSocket.blame`
    size: int = 0  # bytes that it took on the wire
    problem: str = ""  # why the message cannot be used
    is_fragment: bool = False  # of a large message that is not complete yet


class ServerSocket:
    """A server for any number of clients that have the key of one of the roles in `accepted`.

    `endpoint` is where it listens; port 0 is replaced with a free port. Without keys it accepts everyone, which is for
    measurements only. `most_bytes` is given the address and the role of a sender, and returns how large a message in
    fragments may be; by default nobody may send one.
    """

    def __init__(
        self,
        endpoint: str,
        keys: Keys | None,
        accepted: Collection[str] = (),
        most_bytes: Callable[[bytes, str], int] = lambda _sender, _role: 0,
    ) -> None:
        bind_endpoint = _bind_endpoint(endpoint)
        self._most_bytes = most_bytes
        self._reassembly = Reassembly()
        self._feeds: dict[bytes, Feed] = {}  # of clients to which a large message is being sent
        self._answers = Answers()
        self._context = zmq.Context()
        self._socket = _create_socket(self._context, zmq.ROUTER, endpoint)
        self._socket.set(zmq.ROUTER_MANDATORY, 1)
        self._socket.set(zmq.ROUTER_HANDOVER, 1)  # a client that reconnects takes over its routing id at once
        self._overhead = CURVE_OVERHEAD if keys else 0
        self._guard = _Guard(self._context, self._socket, keys, accepted)
        try:
            self._socket.bind(bind_endpoint)
        except zmq.ZMQError as error:
            self.close()
            raise BindError(_bind_problem(endpoint, error)) from error
        self.endpoint = self._socket.getsockopt_string(zmq.LAST_ENDPOINT).rstrip("\0")
        self._guard.start()
        self.pollable = [self._socket]
        self._own_host = host_of(self.endpoint).strip("[]")

    @property
    def denied(self) -> int:
        """Number of connection attempts that were denied."""
        return self._guard.denied

    @property
    def connections(self) -> int:
        """Number of open connections."""
        return len(self._guard)

    @property
    def held(self) -> dict[bytes, int]:
        """Bytes of incomplete messages, by sender."""
        return self._reassembly.held

    def receive(self) -> Received | None:
        """Return the next message or fragment, or None if there is none. Must be called often."""
        self._flush()
        if self._guard.error is not None:
            raise self._guard.error
        try:
            sender = self._socket.recv(zmq.NOBLOCK, copy=False)  # a zmq.Frame, which has properties of the connection
        except zmq.Again:
            return None
        frames, size = _rest(self._socket, [], self._overhead)
        connection = int(sender.get("__fd"))
        self._guard.delivered(connection, size, sender.bytes)
        role = str(sender.get("User-Id")) if self._overhead else ""
        return self._whole(Received(sender.bytes, frames, role, self._host(sender), connection, size))

    def blame(self, received: Received) -> None:
        """Note that a message is invalid; a connection with many invalid messages is closed."""
        self._guard.fault(received.connection)

    def send(self, address: bytes, frames: Sequence[Frame]) -> bool:
        """Send to the sender of an earlier message; False, with nothing sent, if it is gone or its queue is full."""
        if not is_large(frames):
            return bool(_send(self._socket, [address, *frames]))
        feed = self._feeds.setdefault(address, Feed(lambda parts: _send(self._socket, [address, *parts])))
        return feed.send(frames)

    def answer(self, address: bytes, frames: Sequence[Frame]) -> bool:
        """Send as `send` does what any client may ask for, unless this one has not taken earlier answers.

        The clients that take longest are disconnected if all answers take too much memory.
        """
        if address in self._feeds and not self._feeds[address].is_idle:
            return False
        if not self._answers.may_begin(address):
            return False
        last: deque[zmq.MessageTracker] = deque(maxlen=1)
        feed = Feed(lambda parts: _send_tracked(self._socket, [address, *parts], last))
        if not feed.send(frames):
            return False
        self._feeds[address] = feed
        for slow in self._answers.begin(address, frames, lambda: feed.is_idle and all(one.done for one in last)):
            self._feeds.pop(slow, None)
            self._guard.shut_client(slow, "it does not take its answers fast enough")
        return True

    def disconnect(self, sender: bytes, reason: str) -> None:
        """Close the connection of a sender, and forget what has arrived of its message."""
        self._reassembly.forget(sender)
        self._guard.shut_client(sender, reason)

    def close(self) -> None:
        """Close after sending queued messages, for at most `timeouts.SOCKET_LINGER`."""
        if not self._socket.closed:
            self._guard.stop()
        self._socket.close(_milliseconds(timeouts.SOCKET_LINGER))
        self._context.term()

    def _whole(self, received: Received) -> Received:
        """Return the message that a fragment completes; other messages as they are."""
        if len(received.frames) > MAX_PARTS:
            return received._replace(frames=[], problem=f"it has more than {MAX_PARTS} frames")
        if not is_fragment(received.frames):
            return received
        sender, now = received.sender, time.monotonic()
        try:
            whole = self._reassembly.add(received.frames, self._most_bytes(sender, received.role), now, sender)
        except BadMessage as error:
            return received._replace(frames=[], problem=str(error))
        return received._replace(frames=whole or [], is_fragment=whole is None)

    def _flush(self) -> None:
        """Send more of large messages; forget the incomplete messages of clients that are gone."""
        if self._feeds:
            for feed in self._feeds.values():
                feed.flush()
            self._feeds = {address: feed for address, feed in self._feeds.items() if not feed.is_idle}
        if self._reassembly:
            self._reassembly.expire(time.monotonic())

    def _host(self, frame: zmq.Frame) -> str:
        host = str(frame.get("Peer-Address"))
        is_here = host in ("::1", self._own_host) or host.startswith(("127.", "::ffff:127."))
        return "" if is_here else host.removeprefix("::ffff:")


class ClientSocket:
    """A client of one server; connects in the background, and reconnects whenever the connection is lost.

    `server` is the role whose public key the server must have. Without keys it is accepted by no server of a run.

    ZeroMQ never reconnects to a server that denied it or speaks another protocol: to try again, create a new client.
    `fragments` counts the fragments of large messages that have arrived.
    """

    def __init__(self, endpoint: str, keys: Keys | None, server: str = SERVER) -> None:
        host_and_port(endpoint)
        self._context = zmq.Context()
        self._socket = _create_socket(self._context, zmq.DEALER, endpoint)
        self._socket.set(zmq.ROUTING_ID, b"c" + secrets.token_bytes(15))  # must not start with a zero byte
        self._socket.set(zmq.IMMEDIATE, 1)  # do not queue messages without a connection
        self._socket.set(zmq.RECONNECT_IVL_MAX, 1_000)
        self.fragments = 0
        self._reassembly = Reassembly()
        self._feed = Feed(lambda parts: bool(_send(self._socket, list(parts))))
        try:
            if keys:
                self._socket.set(zmq.CURVE_SERVERKEY, keys.public[server])
                self._socket.set(zmq.CURVE_PUBLICKEY, keys.public[keys.role])
                self._socket.set(zmq.CURVE_SECRETKEY, keys.secret)
            self._socket.connect(endpoint)
        except zmq.ZMQError as error:
            self.close()
            raise BadAddress(f"cannot connect to {endpoint} with these keys: {error}") from error
        self.pollable = [self._socket]

    def receive(self) -> list[bytes] | None:
        """Return the frames of the next message ([] if it cannot be used), or None without a message."""
        self._feed.flush()
        try:
            while True:
                frames, _ = _rest(self._socket, [self._socket.recv(zmq.NOBLOCK)])
                if not is_fragment(frames):
                    return frames if len(frames) <= MAX_PARTS else []
                self.fragments += 1
                if (whole := self._reassembly.add(frames, FROM_SERVER, time.monotonic())) is not None:
                    return whole
        except zmq.Again:
            return None
        except BadMessage:
            return []

    def send(self, frames: Sequence[Frame]) -> bool:
        """Send to the server; False, with nothing sent, if it is not connected or the queue is full."""
        return self._feed.send(frames)

    def close(self) -> None:
        """Close after sending queued messages, for at most `timeouts.SOCKET_LINGER`."""
        deadline = time.monotonic() + timeouts.SOCKET_LINGER
        while not (self._socket.closed or self._feed.is_idle) and time.monotonic() < deadline:
            self._socket.poll(_milliseconds(timeouts.CONNECT_POLL), zmq.POLLOUT)
            self._feed.flush()
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


def _bind_endpoint(endpoint: str) -> str:
    try:
        return resolved(endpoint)
    except BadAddress as error:
        raise BindError(f"cannot listen on {endpoint}: {error}") from error


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
        zmq.MAXMSGSIZE: MAX_FRAME + CURVE_OVERHEAD,
        zmq.HANDSHAKE_IVL: _milliseconds(
            timeouts.SOCKET_HANDSHAKE if socket_type == zmq.ROUTER else timeouts.CLIENT_HANDSHAKE
        ),
        zmq.HEARTBEAT_IVL: _milliseconds(timeouts.SOCKET_HEARTBEAT),
        zmq.HEARTBEAT_TIMEOUT: _milliseconds(timeouts.SOCKET_SILENCE),
        zmq.TCP_KEEPALIVE: 1,
        zmq.TCP_KEEPALIVE_IDLE: 60,
    }
    for option, value in options.items():
        socket.set(option, value)
    return socket


def _send(socket: zmq.Socket[bytes], parts: list[Frame]) -> bool | None:
    """Send a message; return whether it was accepted, and None if the peer is gone."""
    last = len(parts) - 1
    try:
        for index, part in enumerate(parts):
            flags = _LAST if index == last else _MORE
            socket.send(part, flags, copy=len(part) < ZERO_COPY_BYTES)  # only the first part can be refused
    except zmq.ZMQError as error:
        if error.errno in (errno.EAGAIN, errno.EHOSTUNREACH):
            return False if error.errno == errno.EAGAIN else None
        raise
    return True


def _send_tracked(socket: zmq.Socket[bytes], parts: list[Frame], last: deque[zmq.MessageTracker]) -> bool | None:
    """Send a message as `_send` does, without copies; append the tracker of when its last part leaves the memory."""
    try:
        for part in parts[:-1]:
            socket.send(part, _MORE, copy=len(part) < ZERO_COPY_BYTES)
        last.append(socket.send(parts[-1], _LAST, copy=False, track=True))
    except zmq.ZMQError as error:
        if error.errno in (errno.EAGAIN, errno.EHOSTUNREACH):
            return False if error.errno == errno.EAGAIN else None
        raise
    return True


def _rest(socket: zmq.Socket[bytes], frames: list[bytes], overhead: int = 0) -> tuple[list[bytes], int]:
    """Receive the frames that follow in a message; return all, and how many bytes those took on the wire.

    The last ones are missing if there are more than MAX_PARTS.
    """
    total = 0
    while socket.get(zmq.RCVMORE):
        frame = socket.recv(zmq.NOBLOCK)
        size = len(frame) + overhead
        total += size + (2 if size <= _LONGEST_SHORT else 9)
        if len(frames) <= MAX_PARTS:
            frames.append(frame)
    return frames, total


_LONGEST_SHORT = 255  # bytes of a frame whose size is sent as one byte


class _Guard(threading.Thread):
    """Authenticates the clients of a server, and closes connections that take too much.

    Clients with the key of a role are accepted by ZeroMQ's authentication protocol (ZAP); the role becomes the property
    "User-Id" of every message of the connection. Clients without a key, or with another server's key, fail before ZAP;
    the socket monitor reports them. `denied` counts both.
    """

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        router: zmq.Socket[bytes],
        keys: Keys | None,
        accepted: Collection[str],
    ) -> None:
        super().__init__(name="guard", daemon=True)
        self.denied = 0
        self.error: BaseException | None = None
        self._accepted = accepted
        self._roles = {z85.decode(key): role for role, key in keys.public.items()} if keys else {}  # by public key
        self._router = router
        self._peers: dict[int, Peer] = {}  # by the file descriptor of the connection
        self._senders: dict[int, bytes] = {}  # of the newest message on each connection
        self._connections = Connections(most_connections())
        self._shut: set[int] = set()  # connections that were closed here, and whose ends were not reported yet
        self._lock = threading.Lock()  # of the connections
        self._failure = ""
        self._logged: set[tuple[str, str]] = set()
        self._waker = Waker()
        self._is_stopped = False
        self._zap = context.socket(zmq.REP)
        self._zap.bind("inproc://zeromq.zap.01")
        if keys:
            router.set(zmq.CURVE_SERVER, 1)
            router.set(zmq.CURVE_SECRETKEY, keys.secret)
            router.set(zmq.ZAP_DOMAIN, b"dpsr_apex")
        self._monitor = context.socket(zmq.PAIR)
        self._monitor.set(zmq.RCVHWM, 0)  # a full queue would block the router
        router.monitor("inproc://monitor", _MONITORED_EVENTS)
        self._monitor.connect("inproc://monitor")

    # Called by the thread that owns the server.

    def __len__(self) -> int:
        """Return the number of open connections."""
        return len(self._connections)

    def delivered(self, number: int, size: int, sender: bytes) -> None:
        """Note that a message of this size on the wire was read."""
        self._senders[number] = sender
        with self._lock:
            self._connections.delivered(number, size, time.monotonic())

    def fault(self, number: int) -> None:
        """Note an invalid message."""
        with self._lock:
            closings = self._connections.fault(number)
        for closing in closings:
            self.shut(closing)

    def shut(self, closing: Closing) -> None:
        """Close a connection."""
        peer = self._peers.get(closing.number)
        if peer is not None and close_connection(closing.number, peer):
            self._shut.add(closing.number)
            _log.warning("closed the connection of %s: %s", peer.host, closing.reason)

    def shut_client(self, sender: bytes, reason: str) -> None:
        """Close the connection of this client, if it still has one: another one may have its number by now."""
        for number in [number for number, other in self._senders.copy().items() if other == sender]:
            self.shut(Closing(number, "", reason))

    def stop(self) -> None:
        """End the thread, and close its sockets."""
        self._is_stopped = True
        self._waker.wake()
        if self.ident is not None:
            self.join()
        self._router.disable_monitor()
        self._monitor.close(0)
        self._zap.close(0)
        self._waker.close()

    # The thread itself.

    def run(self) -> None:
        """Watch the connections until stopped; an error is raised by the server."""
        try:
            self._watch()
        except BaseException as error:
            self.error = error

    def _watch(self) -> None:
        pollable: list[Any] = [self._zap, self._monitor, *self._waker.pollable]
        sockets = [(each, zmq.POLLIN) for each in pollable]
        next_check = 0.0
        while not self._is_stopped:
            pause = max(next_check - time.monotonic(), 0.0) if self._peers else timeouts.LONGEST_POLL
            ready = dict(zmq.zmq_poll(sockets, _milliseconds(pause)))
            self._read_events()
            if self._zap in ready:  # after the events, so that the connection is known before its first message
                self._authenticate()
            if (began := time.monotonic()) >= next_check:
                self._check_connections(began)
                seconds = time.monotonic() - began
                next_check = began + max(timeouts.CONNECTIONS_CHECK, seconds / _CHECKING_SHARE)

    def _check_connections(self, now: float) -> None:
        with self._lock:
            closings = self._connections.measure(bytes_received, now)
        for closing in closings:
            self.shut(closing)

    def _authenticate(self) -> None:
        version, request, _domain, address, _identity, *credentials = self._zap.recv_multipart()
        is_curve = len(credentials) == 2 and credentials[0] == b"CURVE"
        role = self._roles.get(credentials[1], "") if is_curve else ""
        accepted = role in self._accepted
        self._zap.send_multipart([version, request, b"200" if accepted else b"400", b"", role.encode(), b""])
        if not accepted:
            reason = f"it has the {role}'s key, which is not accepted here" if role else "its key is not of this run"
            self._deny(address.decode(), reason)

    def _read_events(self) -> None:
        while True:
            try:
                description, _endpoint = self._monitor.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            self._handle_event(*_EVENT.unpack(description))

    def _handle_event(self, event: int, value: int) -> None:
        """Handle one monitor event. A failure names no peer: it belongs to the connection that is closed next."""
        if event == zmq.EVENT_ACCEPTED:
            self._senders.pop(value, None)
            self._peers[value] = peer = peer_of(value)
            with self._lock:
                closings = self._connections.accepted(value, peer.network, time.monotonic())
            for closing in closings:
                self.shut(closing)
        elif event == zmq.EVENT_DISCONNECTED:
            self._senders.pop(value, None)
            peer = self._peers.pop(value, UNKNOWN)
            with self._lock:
                self._connections.ended(value)
            if self._failure and value not in self._shut:
                self._deny(peer.host, self._failure)
            self._shut.discard(value)
            self._failure = ""
        else:
            self._failure = _FAILURES.get(value, "it disconnected during the handshake; perhaps it has no key")

    def _deny(self, address: str, reason: str) -> None:
        """Count a denied client; log each address and reason only once, because clients keep trying."""
        self.denied += 1
        if (address, reason) not in self._logged and len(self._logged) < _MAX_LOGGED:
            self._logged.add((address, reason))
            _log.warning("denied a client at %s: %s", address, reason)


_CHECKING_SHARE = 0.02  # of the time may be used for checking connections
_EVENT = struct.Struct("=hi")  # of the monitor: event and value
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
