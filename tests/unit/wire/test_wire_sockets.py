"""Real sockets on this machine: delivery, refusal, and authentication. Nothing here is timed."""

from __future__ import annotations

import logging
import socket as tcp
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from time import monotonic
from typing import Any, TypeVar

import pytest

from dpsr_apex.wire import sockets
from dpsr_apex.wire.addresses import BadAddress, host_of, is_loopback, own_host, parse_address, port_of, with_host
from dpsr_apex.wire.codec import MAX_PARTS, Frame, decode, encode
from dpsr_apex.wire.keys import ClientKeys, ServerKeys
from dpsr_apex.wire.sockets import BindError, ClientSocket, Received, ServerSocket, make_keypair, public_key_of, wait
from tests.unit.wire.examples import ALL, assert_same

HERE = "tcp://127.0.0.1:0"
DEADLINE = 60.0  # seconds until a test fails
FOREVER = 10 * DEADLINE

T = TypeVar("T")


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def until(attempt: Callable[[], T | None], *sockets_to_poll: ServerSocket | ClientSocket) -> T:
    """Repeat `attempt` until it returns something other than None, and return that."""
    deadline = monotonic() + DEADLINE
    while (result := attempt()) is None:
        assert monotonic() < deadline, "timed out"
        wait(sockets_to_poll, 0.01)
    return result


def server_receives(server: ServerSocket) -> Received:
    return until(server.receive, server)


def client_receives(client: ClientSocket) -> list[bytes]:
    return until(client.receive, client)


def connect(server: ServerSocket, client: ClientSocket) -> bytes:
    """Wait until the client is connected, and return its address."""

    def attempt() -> bool | None:
        server.receive()  # processes authentication requests
        return client.send([b"hello"]) or None

    until(attempt, server)
    return server_receives(server).sender


def reconnect(server: ServerSocket, client: ClientSocket) -> bytes:
    """Wait until a message arrives after a lost connection, which the client may not have noticed yet."""
    return until(lambda: (client.send([b"hello again"]) and server.receive()) or None, server).sender


def pair(stack: ExitStack) -> tuple[ServerSocket, ClientSocket, bytes]:
    server = stack.enter_context(closing(ServerSocket(HERE)))
    client = stack.enter_context(closing(ClientSocket(server.endpoint)))
    return server, client, connect(server, client)


# Delivery.


def test_every_message_round_trips(stack: ExitStack) -> None:
    server, client, _ = pair(stack)
    for message in ALL:
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
    server = stack.enter_context(closing(ServerSocket(HERE)))
    clients = [stack.enter_context(closing(ClientSocket(server.endpoint))) for _ in range(5)]
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
    assert server_receives(server) == Received(sender, [])
    assert server_receives(server) == Received(sender, [b"part"] * MAX_PARTS)
    assert server.send(sender, [b"part"] * count)
    assert server.send(sender, [b"part"] * MAX_PARTS)
    assert client_receives(client) == []
    assert client_receives(client) == [b"part"] * MAX_PARTS


def test_an_oversized_frame_only_closes_its_connection(stack: ExitStack, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sockets, "MAX_FRAME", 1_000)
    server, client, _ = pair(stack)
    other = stack.enter_context(closing(ClientSocket(server.endpoint)))
    connect(server, other)
    assert client.send([bytes(1_001)])
    assert other.send([bytes(1_000)])
    assert server_receives(server).frames == [bytes(1_000)]
    reconnect(server, client)


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
    server = ServerSocket(HERE)
    server.close()
    client = stack.enter_context(closing(ClientSocket(server.endpoint)))
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
    other = stack.enter_context(closing(ClientSocket(server.endpoint)))
    assert server.send(connect(server, other), [b"you"])
    assert client_receives(other) == [b"you"]
    assert all(client_receives(client) == frames for _ in range(sent))
    until(lambda: server.send(sender, [b"again"]) or None, server)
    assert client_receives(client) == [b"again"]


def test_a_client_reconnects_to_a_restarted_server(stack: ExitStack) -> None:
    first = ServerSocket(HERE)
    client = stack.enter_context(closing(ClientSocket(first.endpoint)))
    address = connect(first, client)
    first.close()
    second = stack.enter_context(closing(ServerSocket(first.endpoint)))
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
    assert server_receives(server) == Received(sender, [bytes(1_000_000)])


# Addresses.


def test_a_port_in_use_is_refused_by_name(stack: ExitStack) -> None:
    server = stack.enter_context(closing(ServerSocket(HERE)))
    with pytest.raises(BindError, match=f"^{server.endpoint} is in use: "):
        ServerSocket(server.endpoint)


@pytest.mark.parametrize("endpoint", ["tcp://0.0.0.0:0", "tcp://[::]:0", "tcp://192.0.2.1:5555"])
def test_an_address_reachable_from_other_machines_needs_keys(endpoint: str) -> None:
    with pytest.raises(BindError, match="without keys"):
        ServerSocket(endpoint)


def test_an_address_of_another_machine_is_refused() -> None:
    with pytest.raises(BindError, match=r"192\.0\.2\.1:5555 is not on this machine"):
        ServerSocket("tcp://192.0.2.1:5555", make_keys()[0])


@pytest.mark.parametrize("endpoint", ["ipc:///tmp/socket", "127.0.0.1:5555", "tcp://127.0.0.1", "tcp://*:5555", ""])
def test_an_invalid_endpoint_is_refused(endpoint: str) -> None:
    with pytest.raises(BindError, match="is not an address: write HOST:PORT"):
        ServerSocket(endpoint)
    with pytest.raises(BadAddress, match="is not an address: write HOST:PORT"):
        ClientSocket(endpoint)


def test_a_host_name_is_resolved(stack: ExitStack) -> None:
    server = stack.enter_context(closing(ServerSocket("tcp://localhost:0")))
    assert server.endpoint.startswith("tcp://127.0.0.1:")
    client = stack.enter_context(closing(ClientSocket(server.endpoint.replace("127.0.0.1", "localhost"))))
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
    server = stack.enter_context(closing(ServerSocket("tcp://[::1]:0")))
    client = stack.enter_context(closing(ClientSocket(server.endpoint)))
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
        ServerSocket("tcp://nowhere:1")


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


def make_keys() -> tuple[ServerKeys, ClientKeys]:
    server_public, server_secret = make_keypair()
    client_public, client_secret = make_keypair()
    keys = ServerKeys(server_public, server_secret, client_public)
    return keys, ClientKeys(server_public, client_public, client_secret)


def test_the_public_key_is_derived_from_the_secret_key() -> None:
    public, secret = make_keypair()
    assert public_key_of(secret) == public
    for broken in (b"", secret[:-1], secret + b"0", b"~" * 40, b"\xff" * 40):
        with pytest.raises(ValueError, match="not a secret key"):
            public_key_of(broken)


@pytest.mark.parametrize("endpoint", [HERE, "tcp://0.0.0.0:0"])
def test_clients_with_the_key_are_accepted(stack: ExitStack, endpoint: str) -> None:
    server_keys, client_keys = make_keys()
    server = stack.enter_context(closing(ServerSocket(endpoint, server_keys)))
    address = server.endpoint.replace("0.0.0.0", "127.0.0.1")
    clients = [stack.enter_context(closing(ClientSocket(address, client_keys))) for _ in range(3)]
    for client in clients:
        assert server.send(connect(server, client), [b"welcome"])
        assert client_receives(client) == [b"welcome"]
    assert server.denied == 0


def no_key(_right: ClientKeys) -> ClientKeys | None:
    return None


def wrong_client_key(right: ClientKeys) -> ClientKeys:
    return ClientKeys(right.server_public, *make_keypair())


def stolen_public_key(right: ClientKeys) -> ClientKeys:
    return ClientKeys(right.server_public, right.public, make_keypair()[1])


def wrong_server_key(right: ClientKeys) -> ClientKeys:
    return ClientKeys(make_keypair()[0], right.public, right.secret)


@pytest.mark.parametrize(
    ("change_keys", "reason"),
    [
        (no_key, "it has no key"),
        (wrong_client_key, "its key is not the client key of this run"),
        (stolen_public_key, "its keys do not match those of this server"),
        (wrong_server_key, "its keys do not match those of this server"),
    ],
)
def test_clients_without_the_key_are_denied_and_logged(
    stack: ExitStack,
    caplog: pytest.LogCaptureFixture,
    change_keys: Callable[[ClientKeys], ClientKeys | None],
    reason: str,
) -> None:
    caplog.set_level(logging.WARNING)
    server_keys, client_keys = make_keys()
    server = stack.enter_context(closing(ServerSocket(HERE, server_keys)))
    intruder = stack.enter_context(closing(ClientSocket(server.endpoint, change_keys(client_keys))))

    def denied() -> bool | None:
        assert not intruder.send([b"let me in"])
        assert server.receive() is None
        assert intruder.receive() is None
        return any(reason in line for line in caplog.messages) or None

    until(denied, server)
    assert server.denied >= 1
    client = stack.enter_context(closing(ClientSocket(server.endpoint, client_keys)))
    connect(server, client)


def test_a_denied_client_is_logged_once_and_counted_always(stack: ExitStack, caplog: pytest.LogCaptureFixture) -> None:
    server_keys, client_keys = make_keys()
    server = stack.enter_context(closing(ServerSocket(HERE, server_keys)))
    stack.enter_context(closing(ClientSocket(server.endpoint, wrong_server_key(client_keys))))

    def denied() -> bool | None:
        assert server.receive() is None
        return server.denied >= 5 or None

    until(denied, server)
    assert len(caplog.messages) == len(set(caplog.messages)) <= 4


def test_a_client_with_keys_does_not_connect_to_a_server_without(stack: ExitStack) -> None:
    server = stack.enter_context(closing(ServerSocket(HERE)))
    client = stack.enter_context(closing(ClientSocket(server.endpoint, make_keys()[1])))
    wait([server], 0.2)
    assert not client.send([b"secret"])


def test_invalid_keys_are_refused(stack: ExitStack) -> None:
    server = stack.enter_context(closing(ServerSocket(HERE)))
    with pytest.raises(BadAddress, match="with these keys"):
        ClientSocket(server.endpoint, ClientKeys(b"short", b"short", b"short"))


def test_a_port_scan_does_no_harm(stack: ExitStack) -> None:
    server_keys, client_keys = make_keys()
    server = stack.enter_context(closing(ServerSocket(HERE, server_keys)))
    port = int(server.endpoint.rpartition(":")[2])
    for data in (b"", b"GET / HTTP/1.1\r\n\r\n", bytes(1_000), b"\xff" + bytes(8) + b"\x7f\x03\x00NULL"):
        with tcp.create_connection(("127.0.0.1", port)) as scanner:
            scanner.sendall(data)
    client = stack.enter_context(closing(ClientSocket(server.endpoint, client_keys)))
    connect(server, client)
