"""Real sockets on this machine: delivery, refusal, and authentication. Nothing here is timed."""

from __future__ import annotations

import logging
import socket as tcp
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from dataclasses import replace
from threading import Event
from time import monotonic
from typing import Any, TypeVar

import numpy as np
import pytest

from dpsr_apex import timeouts
from dpsr_apex.wire import connections, sockets
from dpsr_apex.wire.addresses import BadAddress, host_of, is_loopback, own_host, parse_address, port_of, with_host
from dpsr_apex.wire.codec import MAX_FRAME, MAX_PARTS, Frame, decode, encode
from dpsr_apex.wire.keys import Keys, new_keys
from dpsr_apex.wire.messages import ACTOR, LEARNER, OWNER, SERVER, Fragment
from dpsr_apex.wire.sockets import BindError, ClientSocket, Received, ServerSocket, make_keypair, public_key_of, wait
from tests.unit.wire.examples import ALL, assert_same

HERE = "tcp://127.0.0.1:0"
DEADLINE = 60.0  # seconds until a test fails
FOREVER = 10 * DEADLINE
LARGEST = 64 * 2**20  # bytes of a message from an actor

T = TypeVar("T")


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


KEYS = new_keys()


def serving(endpoint: str) -> ServerSocket:
    """A server that accepts actors, also with large messages, and the owner."""
    most = {ACTOR: LARGEST}
    return ServerSocket(endpoint, KEYS[SERVER], [ACTOR, OWNER], lambda _sender, role: most.get(role, 0))


def client_at(endpoint: str) -> ClientSocket:
    return ClientSocket(endpoint, KEYS[ACTOR])


def until(attempt: Callable[[], T | None], *sockets_to_poll: ServerSocket | ClientSocket) -> T:
    """Repeat `attempt` until it returns something other than None, and return that."""
    deadline = monotonic() + DEADLINE
    while (result := attempt()) is None:
        assert monotonic() < deadline, "timed out"
        wait(sockets_to_poll, 0.01)
    return result


def server_receives(server: ServerSocket) -> Received:
    """The next message; fragments are skipped."""

    def attempt() -> Received | None:
        received = server.receive()
        return None if received is None or received.is_fragment else received

    return until(attempt, server)


def client_receives(client: ClientSocket) -> list[bytes]:
    return until(client.receive, client)


def connect(server: ServerSocket, client: ClientSocket) -> bytes:
    """Wait until the client is connected, and return its address."""

    def attempt() -> bool | None:
        return client.send([b"hello"]) or None

    until(attempt, server)
    return server_receives(server).sender


def reconnect(server: ServerSocket, client: ClientSocket) -> bytes:
    """Wait until a message arrives after a lost connection, which the client may not have noticed yet."""

    def attempt() -> Received | None:
        client.send([b"hello again"])
        return server.receive()

    return until(attempt, server).sender


def pair(stack: ExitStack) -> tuple[ServerSocket, ClientSocket, bytes]:
    server = stack.enter_context(closing(serving(HERE)))
    client = stack.enter_context(closing(client_at(server.endpoint)))
    return server, client, connect(server, client)


# Delivery.


def test_every_message_round_trips(stack: ExitStack) -> None:
    server, client, _ = pair(stack)
    for message in ALL:
        if isinstance(message, Fragment):
            continue  # it is part of another message
        assert client.send(encode(message))
        request = server_receives(server)
        assert_same(decode(request.frames), message)
        assert server.send(request.sender, request.frames)
        assert_same(decode(client_receives(client)), message)


def test_receive_returns_none_without_a_message(stack: ExitStack) -> None:
    server, client, _ = pair(stack)
    wait([server, client], 0.0)
    wait([], 0.0)
    assert server.receive() is None
    assert client.receive() is None


def test_wait_returns_while_messages_are_unread(stack: ExitStack) -> None:
    server, client, sender = pair(stack)
    for number in range(3):
        assert client.send([b"%d" % number])
    for number in range(3):
        wait([client, server], FOREVER)
        assert server_receives(server).frames == [b"%d" % number]
    assert server.send(sender, [b"now"])
    wait([server, client], FOREVER)
    assert client.receive() == [b"now"]


def test_replies_reach_the_sender(stack: ExitStack) -> None:
    server = stack.enter_context(closing(serving(HERE)))
    clients = [stack.enter_context(closing(client_at(server.endpoint))) for _ in range(5)]
    senders = [connect(server, client) for client in clients]
    assert len(set(senders)) == 5
    for number, sender in enumerate(senders):
        assert server.send(sender, [b"%d" % number])
    assert [client_receives(client) for client in clients] == [[b"%d" % number] for number in range(5)]


def test_empty_and_large_frames_arrive_unchanged(stack: ExitStack) -> None:
    server, client, _ = pair(stack)
    frames: list[Frame] = [b"", memoryview(bytes(5_000_000)), memoryview(b""), b"\x00" * 100_000, b"end"]
    assert client.send(frames)
    assert server_receives(server).frames == [bytes(frame) for frame in frames]


@pytest.mark.parametrize("count", [MAX_PARTS + 1, 100_000])
def test_a_message_with_too_many_parts_arrives_without_frames(stack: ExitStack, count: int) -> None:
    server, client, sender = pair(stack)
    assert client.send([b"part"] * count)
    assert client.send([b"part"] * MAX_PARTS)
    refused, accepted = server_receives(server), server_receives(server)
    assert (refused.sender, refused.frames, refused.role) == (sender, [], ACTOR)
    assert str(MAX_PARTS) in refused.problem
    assert (accepted.sender, accepted.frames, accepted.problem) == (sender, [b"part"] * MAX_PARTS, "")
    assert server.send(sender, [b"part"] * count)
    assert server.send(sender, [b"part"] * MAX_PARTS)
    assert client_receives(client) == []
    assert client_receives(client) == [b"part"] * MAX_PARTS


def test_an_oversized_frame_only_closes_its_connection(stack: ExitStack, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sockets, "MAX_FRAME", 1_000)
    server, client, _ = pair(stack)
    other = stack.enter_context(closing(client_at(server.endpoint)))
    connect(server, other)
    assert client.send([bytes(1_001)])
    assert other.send([bytes(1_000)])
    assert server_receives(server).frames == [bytes(1_000)]
    reconnect(server, client)


# Large messages.


def pattern(size: int) -> bytes:
    """Bytes that differ from place to place."""
    return (bytes(range(256)) * 4_099)[: 2**20 + 7] * (size // 2**20 + 1)


def test_a_large_message_arrives_in_fragments_through_a_short_queue(
    stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sockets, "RECEIVE_QUEUE", 3)
    monkeypatch.setattr(sockets, "SERVER_SEND_QUEUE", 3)
    server, client, sender = pair(stack)
    frames = [b"header", pattern(30 * MAX_FRAME), b"", pattern(MAX_FRAME)]
    assert client.send(frames)
    assert not client.send(frames), "one at a time"
    came: list[Received] = []
    while not came or came[-1].is_fragment:
        came.append(until(server.receive, server))
        client.receive()  # continues to send
    assert len(came) > 30
    assert came[-1].frames == frames
    assert server.send(sender, frames)

    def answer() -> list[bytes] | None:
        server.receive()
        return client.receive()

    assert until(answer, client) == frames
    assert client.fragments > 30


@pytest.mark.parametrize(("role", "most"), [(OWNER, 0), (ACTOR, LARGEST)])
def test_a_message_that_is_too_large_for_its_sender_is_refused_at_its_first_fragment(
    stack: ExitStack, role: str, most: int
) -> None:
    server = stack.enter_context(closing(serving(HERE)))
    client = stack.enter_context(closing(ClientSocket(server.endpoint, KEYS[role])))
    connect(server, client)
    assert client.send([bytes(most + MAX_FRAME + 1)])
    refused = server_receives(server)
    assert refused.frames == []
    assert f"more than {most}" in refused.problem
    assert server.held == {}


def test_an_incomplete_message_is_forgotten_with_its_connection(
    stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timeouts, "SOCKET_SILENCE", 0.0)
    server, client, sender = pair(stack)
    assert client.send(encode(Fragment(1, np.array([10]), 0, b"half")))
    assert until(server.receive, server).is_fragment
    assert server.held == {sender: 4}
    assert server.receive() is None
    assert server.held == {}


# Connections that take too much. Without keys, a test can send whatever it likes.


def bare(server: ServerSocket) -> tcp.socket:
    """A connection that has sent nothing."""
    return tcp.create_connection(("127.0.0.1", port_of(server.endpoint)), timeout=DEADLINE)


GREETING = b"\xff" + bytes(8) + b"\x7f" + b"\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)
LONG_PART = b"\x03"  # another one follows; the next eight bytes are its size
LONG_COMMAND = b"\x06"


def shaken(server: ServerSocket) -> tcp.socket:
    """A connection after ZeroMQ's handshake."""
    connection = bare(server)
    ready = b"\x05READY" + b"\x0bSocket-Type" + (6).to_bytes(4, "big") + b"DEALER"
    connection.sendall(GREETING + b"\x04" + bytes([len(ready)]) + ready)
    received = b""
    while b"ROUTER" not in received:
        received += connection.recv(1_000)
    return connection


def endless(first: bytes, piece: bytes) -> Iterator[bytes]:
    yield first
    while True:
        yield piece


def stream(connection: tcp.socket, content: Iterator[bytes], most: int) -> int:
    """Send until the connection is closed; return how many bytes were sent."""
    sent = 0
    with suppress(ConnectionError):
        while sent < most:
            piece = next(content)
            connection.sendall(piece)
            sent += len(piece)
    return sent


@pytest.fixture
def unkeyed(stack: ExitStack) -> ServerSocket:
    return stack.enter_context(closing(ServerSocket(HERE, None)))


def test_endless_parts_of_one_message_close_the_connection(
    stack: ExitStack, unkeyed: ServerSocket, caplog: pytest.LogCaptureFixture
) -> None:
    part = LONG_PART + (1_000).to_bytes(8, "big") + bytes(1_000)
    connection = stack.enter_context(closing(shaken(unkeyed)))
    assert stream(connection, endless(b"", part * 100), most=2**32) < 2**32
    assert "127.0.0.1" in until(lambda: caplog.text or None)
    assert unkeyed.receive() is None


def test_a_client_that_has_been_heard_may_send_more(stack: ExitStack, unkeyed: ServerSocket) -> None:
    part = LONG_PART + (10_000).to_bytes(8, "big") + bytes(10_000)
    connection = stack.enter_context(closing(shaken(unkeyed)))
    until(lambda: unkeyed.connections or None)  # with keys, this precedes every message
    connection.sendall(b"\x00\x05hello")
    assert server_receives(unkeyed).frames == [b"hello"]
    connection.sendall(part * (2 * connections.UNREAD_SILENT // len(part)))
    pause(5)
    connection.sendall(b"\x00\x03end")
    assert "more than" in server_receives(unkeyed).problem
    connection.sendall(b"\x00\x05hello")
    assert server_receives(unkeyed).frames == [b"hello"]
    assert stream(connection, endless(b"", part), most=2**33) < 2**33


def pause(checks: int) -> None:
    """Let the connections be checked this often: by a server of this test that is not touched."""
    Event().wait(checks * timeouts.CONNECTIONS_CHECK)


def test_messages_that_wait_to_be_read_are_not_held_against_a_client(
    stack: ExitStack,
) -> None:
    server, client, _ = pair(stack)
    for _ in range(sockets.RECEIVE_QUEUE - 1):
        assert client.send([bytes(MAX_FRAME)])
    pause(5)
    for _ in range(sockets.RECEIVE_QUEUE - 1):
        assert len(server_receives(server).frames[0]) == MAX_FRAME
    assert client.send([b"still connected"])
    assert server_receives(server).frames == [b"still connected"]


def test_a_large_frame_in_the_handshake_closes_the_connection(stack: ExitStack, unkeyed: ServerSocket) -> None:
    connection = stack.enter_context(closing(bare(unkeyed)))
    first = GREETING + LONG_COMMAND + (2**40).to_bytes(8, "big")
    assert stream(connection, endless(first, bytes(10_000)), most=2**30) < 2**30


def test_a_handshake_that_takes_too_long_closes_the_connection(
    stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timeouts, "SOCKET_HANDSHAKE", 0.1)
    server = stack.enter_context(closing(serving(HERE)))
    idle = stack.enter_context(closing(bare(server)))
    begun = stack.enter_context(closing(bare(server)))
    begun.sendall(GREETING.replace(b"NULL\0", b"CURVE"))
    assert [is_closed(connection) for connection in (idle, begun)] == [True, True]


def is_closed(connection: tcp.socket) -> bool:
    """Whether the other side closes the connection, after sending whatever it likes."""
    with suppress(ConnectionError):
        while connection.recv(1_000):
            pass
    return True


def is_refused(server: ServerSocket) -> bool:
    """Whether the server closes a new connection; it may do so before the connection is established here."""
    try:
        with closing(bare(server)) as connection:
            return is_closed(connection)
    except ConnectionError:
        return True


def test_silent_connections_beyond_the_limit_are_closed_the_oldest_first(
    stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "MOST_SILENT_PER_HOST", 5)
    server, client, _ = pair(stack)
    silent = [stack.enter_context(closing(bare(server))) for _ in range(7)]
    assert [is_closed(connection) for connection in silent[:2]] == [True, True]
    another = stack.enter_context(closing(client_at(server.endpoint)))
    connect(server, another)
    assert client.send([b"still here"])
    assert server_receives(server).frames == [b"still here"]


def test_a_connection_with_many_invalid_messages_is_closed(stack: ExitStack) -> None:
    server, client, sender = pair(stack)
    for _ in range(connections.FAULTS):
        assert client.send([b"garbage"])
        server.blame(server_receives(server))
    until(lambda: None if server.send(sender, [b"still there?"]) else True, server)
    assert reconnect(server, client) == sender, "it may try again"


def test_a_client_is_not_disconnected_for_another_one_that_had_its_number(stack: ExitStack) -> None:
    server = stack.enter_context(closing(serving(HERE)))
    numbers: dict[int, bytes] = {}  # of clients that are gone
    while True:
        client = stack.enter_context(closing(client_at(server.endpoint)))
        until(lambda: client.send([b"hello"]) or None)  # noqa: B023 -- called before it changes
        came = server_receives(server)
        if came.connection in numbers:
            break
        numbers[came.connection] = came.sender
        client.close()
        until(lambda: server.connections == 0 or None)
    server.disconnect(numbers[came.connection], "a test")
    assert client.send([b"still connected"])
    assert server_receives(server).frames == [b"still connected"]
    server.disconnect(came.sender, "a test")
    until(lambda: server.connections == 0 or None)


def test_clients_that_are_served_are_not_closed_in_favour_of_others(
    stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sockets, "most_connections", lambda: 3)
    monkeypatch.setattr(connections, "QUIET", FOREVER)
    server, client, _ = pair(stack)
    connect(server, stack.enter_context(closing(client_at(server.endpoint))))
    first, second, third = (stack.enter_context(closing(bare(server))) for _ in range(3))
    assert [is_closed(connection) for connection in (first, second)] == [True, True]
    connect(server, stack.enter_context(closing(client_at(server.endpoint))))  # in place of the third one
    assert is_closed(third)
    assert is_refused(server)
    assert client.send([b"still here"])
    assert server_receives(server).frames == [b"still here"]


# Missing peers and full queues.


def test_nothing_is_sent_to_an_unknown_address(stack: ExitStack) -> None:
    server, _, _ = pair(stack)
    assert not server.send(b"nobody", [b"hello"])
    assert not server.send(b"", [b"hello"])


def test_nothing_is_sent_to_a_client_that_is_gone(stack: ExitStack) -> None:
    server, client, sender = pair(stack)
    client.close()
    until(lambda: None if server.send(sender, [b"still there?"]) else True, server)
    assert not server.send(sender, [b"still there?"])


def test_nothing_is_sent_without_a_server(stack: ExitStack) -> None:
    server = serving(HERE)
    server.close()
    client = stack.enter_context(closing(client_at(server.endpoint)))
    wait([client], 0.2)
    assert not client.send([b"hello"])


def fill(send: Callable[[], bool]) -> int:
    """Send until the queue is full, and return the number of messages sent."""
    for count in range(100_000):
        if not send():
            return count
    raise AssertionError("the queue is unbounded")


def test_a_full_client_queue_refuses_messages_and_loses_none(stack: ExitStack) -> None:
    server, client, _ = pair(stack)
    frames: list[Frame] = [bytes(100_000)] * 3
    sent = fill(lambda: client.send(frames))
    assert all(server_receives(server).frames == frames for _ in range(sent))
    until(lambda: client.send([b"again"]) or None, client)
    assert server_receives(server).frames == [b"again"]


def test_a_full_queue_to_one_client_does_not_block_others(stack: ExitStack) -> None:
    server, client, sender = pair(stack)
    frames: list[Frame] = [bytes(100_000)] * 3
    sent = fill(lambda: server.send(sender, frames))
    other = stack.enter_context(closing(client_at(server.endpoint)))
    assert server.send(connect(server, other), [b"you"])
    assert client_receives(other) == [b"you"]
    assert all(client_receives(client) == frames for _ in range(sent))
    until(lambda: server.send(sender, [b"again"]) or None, server)
    assert client_receives(client) == [b"again"]


def test_a_client_reconnects_to_a_restarted_server(stack: ExitStack) -> None:
    first = serving(HERE)
    client = stack.enter_context(closing(client_at(first.endpoint)))
    address = connect(first, client)
    first.close()
    second = stack.enter_context(closing(serving(first.endpoint)))
    assert second.endpoint == first.endpoint
    assert not second.send(address, [b"not connected yet"])
    assert reconnect(second, client) == address
    assert second.send(address, [b"welcome back"])
    assert client_receives(client) == [b"welcome back"]


def test_messages_sent_before_close_arrive(stack: ExitStack) -> None:
    server, client, sender = pair(stack)
    assert client.send([bytes(1_000_000)])
    client.close()
    client.close()  # closing twice is allowed
    received = server_receives(server)
    assert (received.sender, received.frames, received.role) == (sender, [bytes(1_000_000)], ACTOR)


# Addresses.


def test_a_port_in_use_is_refused_by_name(stack: ExitStack) -> None:
    server = stack.enter_context(closing(serving(HERE)))
    with pytest.raises(BindError, match=f"^{server.endpoint} is in use: "):
        serving(server.endpoint)


def test_an_address_of_another_machine_is_refused() -> None:
    with pytest.raises(BindError, match=r"192\.0\.2\.1:5555 is not on this machine"):
        serving("tcp://192.0.2.1:5555")


@pytest.mark.parametrize("endpoint", ["ipc:///tmp/socket", "127.0.0.1:5555", "tcp://127.0.0.1", "tcp://*:5555", ""])
def test_an_invalid_endpoint_is_refused(endpoint: str) -> None:
    with pytest.raises(BindError, match="is not an address: write HOST:PORT"):
        serving(endpoint)
    with pytest.raises(BadAddress, match="is not an address: write HOST:PORT"):
        client_at(endpoint)


def test_a_host_name_is_resolved(stack: ExitStack) -> None:
    server = stack.enter_context(closing(serving("tcp://localhost:0")))
    assert server.endpoint.startswith("tcp://127.0.0.1:")
    client = stack.enter_context(closing(client_at(server.endpoint.replace("127.0.0.1", "localhost"))))
    connect(server, client)


def has_ipv6() -> bool:
    try:
        with tcp.socket(tcp.AF_INET6, tcp.SOCK_STREAM) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


@pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")
def test_ipv6_works(stack: ExitStack) -> None:
    server = stack.enter_context(closing(serving("tcp://[::1]:0")))
    client = stack.enter_context(closing(client_at(server.endpoint)))
    connect(server, client)


@pytest.mark.parametrize(
    ("text", "endpoint"),
    [
        ("127.0.0.1:5555", "tcp://127.0.0.1:5555"),
        (" replay-1.example.org:1 ", "tcp://replay-1.example.org:1"),
        ("[::1]:65535", "tcp://[::1]:65535"),
        ("[fe80::1]:0", "tcp://[fe80::1]:0"),
    ],
)
def test_valid_addresses_are_parsed(text: str, endpoint: str) -> None:
    assert parse_address(text) == endpoint


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "write HOST:PORT"),
        ("host", "write HOST:PORT"),
        (":5555", "write HOST:PORT"),
        ("host:", "write HOST:PORT"),
        ("host:port", "write HOST:PORT"),
        ("host:-1", "write HOST:PORT"),
        ("ho st:1", "write HOST:PORT"),
        ("::1:5555", "write HOST:PORT"),
        ("tcp://host:5555", "write HOST:PORT"),
        ("host:5555/path", "write HOST:PORT"),
        ("host;eth0:5555", "write HOST:PORT"),
        ("[host]:5555", "write HOST:PORT"),
        ("[::1::]:5555", "not an IPv6 address"),
        ("host:65536", r"at most 65535 \(got 65536\)"),
    ],
)
def test_invalid_addresses_are_refused(text: str, reason: str) -> None:
    with pytest.raises(BadAddress, match=reason):
        parse_address(text)


@pytest.mark.parametrize(
    ("endpoint", "loopback"),
    [
        ("tcp://127.0.0.1:1", True),
        ("tcp://127.5.5.5:1", True),
        ("tcp://localhost:1", True),
        ("tcp://[::1]:1", True),
        ("tcp://0.0.0.0:1", False),
        ("tcp://[::]:1", False),
        ("tcp://[::ffff:127.0.0.1]:1", False),
        ("tcp://192.168.0.1:1", False),
        ("nonsense", False),
    ],
)
def test_is_loopback_only_for_addresses_of_this_machine(endpoint: str, loopback: bool) -> None:
    assert is_loopback(endpoint) is loopback


def test_own_host_is_the_address_on_the_route() -> None:
    assert own_host("tcp://127.0.0.1:5555") == own_host("tcp://localhost:5555") == "127.0.0.1"
    with pytest.raises(BadAddress, match=r"no route to tcp://255\.255\.255\.255:1"):
        own_host("tcp://255.255.255.255:1")


@pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")
def test_own_host_with_ipv6() -> None:
    assert own_host("tcp://[::1]:5555") == "[::1]"


def test_an_unknown_host_name_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_args: Any, **_options: Any) -> None:
        raise tcp.gaierror(tcp.EAI_NONAME, "not known")

    monkeypatch.setattr(tcp, "getaddrinfo", unknown)
    assert not is_loopback("tcp://nowhere:1")
    with pytest.raises(BindError, match="nowhere cannot be resolved"):
        serving("tcp://nowhere:1")


@pytest.mark.parametrize(
    ("endpoint", "host", "port", "with_replay_host"),
    [
        ("tcp://10.0.0.1:55", "10.0.0.1", 55, "tcp://10.0.0.1:55"),
        ("tcp://0.0.0.0:55", "0.0.0.0", 55, "tcp://replay:55"),
        ("tcp://[::]:55", "[::]", 55, "tcp://replay:55"),
        ("tcp://[::1]:55", "[::1]", 55, "tcp://[::1]:55"),
    ],
)
def test_parts_of_an_endpoint(endpoint: str, host: str, port: int, with_replay_host: str) -> None:
    assert (host_of(endpoint), port_of(endpoint)) == (host, port)
    assert with_host(endpoint, "replay") == with_replay_host


# Keys.


def guarded(stack: ExitStack, endpoint: str = HERE) -> ServerSocket:
    return stack.enter_context(closing(serving(endpoint)))


def client_of(stack: ExitStack, server: ServerSocket, keys: Keys | None, role: str = SERVER) -> ClientSocket:
    endpoint = server.endpoint.replace("0.0.0.0", "127.0.0.1")
    return stack.enter_context(closing(ClientSocket(endpoint, keys, role)))


def test_the_public_key_is_derived_from_the_secret_key() -> None:
    public, secret = make_keypair()
    assert public_key_of(secret) == public
    for broken in (b"", secret[:-1], secret + b"0", b"~" * 40, b"\xff" * 40):
        with pytest.raises(ValueError, match="not a secret key"):
            public_key_of(broken)


@pytest.mark.parametrize("endpoint", [HERE, "tcp://0.0.0.0:0"])
def test_clients_with_a_key_are_accepted_in_its_role(stack: ExitStack, endpoint: str) -> None:
    server = guarded(stack, endpoint)
    for role in (ACTOR, OWNER, ACTOR):
        client = client_of(stack, server, KEYS[role])
        sender = connect(server, client)
        assert client.send([b"who am I?"])
        assert server_receives(server).role == role
        assert server.send(sender, [b"welcome"])
        assert client_receives(client) == [b"welcome"]
    assert server.denied == 0


def test_a_reconnected_client_keeps_its_role(stack: ExitStack) -> None:
    server = guarded(stack)
    client = client_of(stack, server, KEYS[OWNER])
    connect(server, client)
    server.close()
    server = guarded(stack, server.endpoint)
    reconnect(server, client)
    assert client.send([b"again"])
    assert server_receives(server).role == OWNER


def test_the_server_of_another_role_has_its_own_key(stack: ExitStack) -> None:
    learner = stack.enter_context(closing(ServerSocket(HERE, KEYS[LEARNER], accepted=[ACTOR])))
    connect(learner, client_of(stack, learner, KEYS[ACTOR], LEARNER))
    impostor = guarded(stack)
    client = client_of(stack, impostor, KEYS[ACTOR], LEARNER)
    until(lambda: (impostor.receive(), impostor.denied >= 1 or None)[1], impostor)
    assert not client.send([b"are you the learner?"])


def no_key(_right: Keys) -> Keys | None:
    return None


def key_of_another_role(_right: Keys) -> Keys:
    return KEYS[LEARNER]


def key_of_another_run(right: Keys) -> Keys:
    other = new_keys()[right.role]
    return replace(other, public={**other.public, SERVER: right.public[SERVER]})


def stolen_public_key(right: Keys) -> Keys:
    return replace(right, secret=make_keypair()[1])


def wrong_server_key(right: Keys) -> Keys:
    return replace(right, public={**right.public, SERVER: make_keypair()[0]})


@pytest.mark.parametrize(
    ("change_keys", "reason"),
    [
        (no_key, "it has no key"),
        (key_of_another_role, "it has the learner's key, which is not accepted here"),
        (key_of_another_run, "its key is not of this run"),
        (stolen_public_key, "its keys do not match those of this server"),
        (wrong_server_key, "its keys do not match those of this server"),
    ],
)
def test_clients_without_the_key_are_denied_and_logged(
    stack: ExitStack, caplog: pytest.LogCaptureFixture, change_keys: Callable[[Keys], Keys | None], reason: str
) -> None:
    caplog.set_level(logging.WARNING)
    server = guarded(stack)
    intruder = client_of(stack, server, change_keys(KEYS[ACTOR]))

    def denied() -> bool | None:
        assert not intruder.send([b"let me in"])
        assert server.receive() is None
        assert intruder.receive() is None
        return any(reason in line for line in caplog.messages) or None

    until(denied, server)
    assert server.denied >= 1
    connect(server, client_of(stack, server, KEYS[ACTOR]))


def test_a_denied_client_is_logged_once_and_counted_always(stack: ExitStack, caplog: pytest.LogCaptureFixture) -> None:
    server = guarded(stack)
    client_of(stack, server, wrong_server_key(KEYS[ACTOR]))

    def denied() -> bool | None:
        assert server.receive() is None
        return server.denied >= 5 or None

    until(denied, server)
    assert len(caplog.messages) == len(set(caplog.messages)) <= 4


def test_a_client_with_keys_does_not_connect_to_a_server_without(stack: ExitStack) -> None:
    server = stack.enter_context(closing(ServerSocket(HERE, None)))
    client = client_of(stack, server, KEYS[ACTOR])
    wait([server], 0.2)
    assert not client.send([b"secret"])


def test_invalid_keys_are_refused() -> None:
    broken = Keys(ACTOR, b"short", {SERVER: b"short", ACTOR: b"short"})
    with pytest.raises(BadAddress, match="with these keys"):
        ClientSocket("tcp://127.0.0.1:1", broken)


def test_a_port_scan_does_no_harm(stack: ExitStack) -> None:
    server = guarded(stack)
    port = int(server.endpoint.rpartition(":")[2])
    for data in (b"", b"GET / HTTP/1.1\r\n\r\n", bytes(1_000), b"\xff" + bytes(8) + b"\x7f\x03\x00NULL"):
        with tcp.create_connection(("127.0.0.1", port)) as scanner:
            scanner.sendall(data)
    connect(server, client_of(stack, server, KEYS[ACTOR]))
