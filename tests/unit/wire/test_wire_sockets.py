"""Real sockets on this machine: what arrives, what is refused, and who is let in. Nothing here is timed."""

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
from dpsr_apex.wire.sockets import BindError, Client, Received, Server, make_keypair, public_key_of, wait
from tests.unit.wire.examples import ALL, assert_same

HERE = "tcp://127.0.0.1:0"
PATIENCE = 60.0  # seconds until a test gives up
FOREVER = 10 * PATIENCE  # to wait so long is to fail

T = TypeVar("T")


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def until(attempt: Callable[[], T | None], *woken_by: Server | Client) -> T:
    """The first result that is not None."""
    deadline = monotonic() + PATIENCE
    while (result := attempt()) is None:
        assert monotonic() < deadline, "it did not happen"
        wait(woken_by, 0.01)
    return result


def asked(server: Server) -> Received:
    return until(server.receive, server)


def answered(client: Client) -> list[bytes]:
    return until(client.receive, client)


def meet(server: Server, client: Client) -> bytes:
    """Let them find each other; returns the client's address."""

    def knock() -> bool | None:
        server.receive()  # lets it look who is at the door
        return client.send([b"hello"]) or None

    until(knock, server)
    return asked(server).sender


def meet_again(server: Server, client: Client) -> bytes:
    """The same after a loss, of which the client may not know yet; more than one greeting may arrive."""
    return until(lambda: (client.send([b"hello again"]) and server.receive()) or None, server).sender


def pair(stack: ExitStack) -> tuple[Server, Client, bytes]:
    server = stack.enter_context(closing(Server(HERE)))
    client = stack.enter_context(closing(Client(server.endpoint)))
    return server, client, meet(server, client)


# What arrives.


def test_every_message_travels_there_and_back(stack: ExitStack) -> None:
    server, client, _ = pair(stack)
    for message in ALL:
        assert client.send(encode(message))
        request = asked(server)
        assert_same(decode(request.frames), message)
        assert server.send(request.sender, request.frames)
        assert_same(decode(answered(client)), message)


def test_nothing_is_there_before_anything_was_sent(stack: ExitStack) -> None:
    server, client, _ = pair(stack)
    wait([server, client], 0.0)
    wait([], 0.0)
    assert server.receive() is None
    assert client.receive() is None


def test_wait_returns_as_long_as_anything_is_left(stack: ExitStack) -> None:
    server, client, sender = pair(stack)
    for number in range(3):
        assert client.send([b"%d" % number])
    for number in range(3):
        wait([client, server], FOREVER)
        assert asked(server).frames == [b"%d" % number]
    assert server.send(sender, [b"now"])
    wait([server, client], FOREVER)
    assert client.receive() == [b"now"]


def test_answers_go_to_who_asked(stack: ExitStack) -> None:
    server = stack.enter_context(closing(Server(HERE)))
    clients = [stack.enter_context(closing(Client(server.endpoint))) for _ in range(5)]
    senders = [meet(server, client) for client in clients]
    assert len(set(senders)) == 5
    for number, sender in enumerate(senders):
        assert server.send(sender, [b"%d" % number])
    assert [answered(client) for client in clients] == [[b"%d" % number] for number in range(5)]


def test_empty_and_large_frames_arrive_whole(stack: ExitStack) -> None:
    server, client, _ = pair(stack)
    frames: list[Frame] = [b"", memoryview(bytes(5_000_000)), memoryview(b""), b"\x00" * 100_000, b"end"]
    assert client.send(frames)
    assert asked(server).frames == [bytes(frame) for frame in frames]


@pytest.mark.parametrize("count", [MAX_PARTS + 1, 100_000])
def test_of_a_message_with_too_many_parts_only_the_sender_is_left(stack: ExitStack, count: int) -> None:
    server, client, sender = pair(stack)
    assert client.send([b"part"] * count)
    assert client.send([b"part"] * MAX_PARTS)
    assert asked(server) == Received(sender, [])
    assert asked(server) == Received(sender, [b"part"] * MAX_PARTS)
    assert server.send(sender, [b"part"] * count)
    assert server.send(sender, [b"part"] * MAX_PARTS)
    assert answered(client) == []
    assert answered(client) == [b"part"] * MAX_PARTS


def test_a_frame_that_is_too_large_costs_the_connection_and_nothing_else(
    stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sockets, "MAX_FRAME", 1_000)
    server, client, _ = pair(stack)
    other = stack.enter_context(closing(Client(server.endpoint)))
    meet(server, other)
    assert client.send([bytes(1_001)])
    assert other.send([bytes(1_000)])
    assert asked(server).frames == [bytes(1_000)]
    meet_again(server, client)


# Who is not there, or does not listen.


def test_nothing_is_sent_to_a_stranger(stack: ExitStack) -> None:
    server, _, _ = pair(stack)
    assert not server.send(b"nobody", [b"hello"])
    assert not server.send(b"", [b"hello"])


def test_nothing_is_sent_to_a_client_that_is_gone(stack: ExitStack) -> None:
    server, client, sender = pair(stack)
    client.close()
    until(lambda: None if server.send(sender, [b"still there?"]) else True, server)
    assert not server.send(sender, [b"still there?"])


def test_nothing_is_sent_to_a_server_that_is_not_there(stack: ExitStack) -> None:
    server = Server(HERE)
    server.close()
    client = stack.enter_context(closing(Client(server.endpoint)))
    wait([client], 0.2)
    assert not client.send([b"hello"])


def fill(send: Callable[[], bool]) -> int:
    """Send until it is refused; how many messages that took."""
    for count in range(100_000):
        if not send():
            return count
    raise AssertionError("the queue has no end")


def test_a_client_with_a_full_queue_says_so_and_nothing_is_cut(stack: ExitStack) -> None:
    server, client, _ = pair(stack)
    frames: list[Frame] = [bytes(100_000)] * 3
    sent = fill(lambda: client.send(frames))
    assert all(asked(server).frames == frames for _ in range(sent))
    until(lambda: client.send([b"again"]) or None, client)
    assert asked(server).frames == [b"again"]


def test_a_server_with_a_full_queue_says_so_and_serves_others(stack: ExitStack) -> None:
    server, client, sender = pair(stack)
    frames: list[Frame] = [bytes(100_000)] * 3
    sent = fill(lambda: server.send(sender, frames))
    other = stack.enter_context(closing(Client(server.endpoint)))
    assert server.send(meet(server, other), [b"you"])
    assert answered(other) == [b"you"]
    assert all(answered(client) == frames for _ in range(sent))
    until(lambda: server.send(sender, [b"again"]) or None, server)
    assert answered(client) == [b"again"]


def test_a_client_finds_a_server_that_comes_back(stack: ExitStack) -> None:
    first = Server(HERE)
    client = stack.enter_context(closing(Client(first.endpoint)))
    address = meet(first, client)
    first.close()
    second = stack.enter_context(closing(Server(first.endpoint)))
    assert second.endpoint == first.endpoint
    assert not second.send(address, [b"do you know me?"])
    assert meet_again(second, client) == address
    assert second.send(address, [b"welcome back"])
    assert answered(client) == [b"welcome back"]


def test_what_was_sent_before_closing_arrives(stack: ExitStack) -> None:
    server, client, sender = pair(stack)
    assert client.send([bytes(1_000_000)])
    client.close()
    client.close()  # once is enough
    assert asked(server) == Received(sender, [bytes(1_000_000)])


# Where to listen.


def test_a_port_in_use_is_named(stack: ExitStack) -> None:
    server = stack.enter_context(closing(Server(HERE)))
    with pytest.raises(BindError, match=f"^{server.endpoint} is in use: "):
        Server(server.endpoint)


@pytest.mark.parametrize("endpoint", ["tcp://0.0.0.0:0", "tcp://[::]:0", "tcp://192.0.2.1:5555"])
def test_what_other_machines_can_reach_needs_keys(endpoint: str) -> None:
    with pytest.raises(BindError, match="without keys"):
        Server(endpoint)


def test_an_address_of_another_machine_is_refused() -> None:
    with pytest.raises(BindError, match=r"192\.0\.2\.1:5555 is not on this machine"):
        Server("tcp://192.0.2.1:5555", make_keys()[0])


@pytest.mark.parametrize("endpoint", ["ipc:///tmp/socket", "127.0.0.1:5555", "tcp://127.0.0.1", "tcp://*:5555", ""])
def test_what_is_no_endpoint_is_refused(endpoint: str) -> None:
    with pytest.raises(BindError, match="is no address: write HOST:PORT"):
        Server(endpoint)
    with pytest.raises(BadAddress, match="is no address: write HOST:PORT"):
        Client(endpoint)


def test_a_name_is_found(stack: ExitStack) -> None:
    server = stack.enter_context(closing(Server("tcp://localhost:0")))
    assert server.endpoint.startswith("tcp://127.0.0.1:")
    client = stack.enter_context(closing(Client(server.endpoint.replace("127.0.0.1", "localhost"))))
    meet(server, client)


def has_ipv6() -> bool:
    try:
        with tcp.socket(tcp.AF_INET6, tcp.SOCK_STREAM) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


@pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")
def test_ipv6_works(stack: ExitStack) -> None:
    server = stack.enter_context(closing(Server("tcp://[::1]:0")))
    client = stack.enter_context(closing(Client(server.endpoint)))
    meet(server, client)


@pytest.mark.parametrize(
    ("text", "endpoint"),
    [
        ("127.0.0.1:5555", "tcp://127.0.0.1:5555"),
        (" replay-1.example.org:1 ", "tcp://replay-1.example.org:1"),
        ("[::1]:65535", "tcp://[::1]:65535"),
        ("[fe80::1]:0", "tcp://[fe80::1]:0"),
    ],
)
def test_an_address_is_read(text: str, endpoint: str) -> None:
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
        ("[::1::]:5555", "no IPv6 address"),
        ("host:65536", "65536 is no port"),
    ],
)
def test_what_is_no_address_is_refused(text: str, reason: str) -> None:
    with pytest.raises(BadAddress, match=reason):
        parse_address(text)


@pytest.mark.parametrize(
    ("endpoint", "alone"),
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
def test_it_is_known_whether_others_can_reach_an_address(endpoint: str, alone: bool) -> None:
    assert is_loopback(endpoint) is alone


def test_a_machine_knows_itself_on_the_way_to_another() -> None:
    assert own_host("tcp://127.0.0.1:5555") == own_host("tcp://localhost:5555") == "127.0.0.1"
    with pytest.raises(BadAddress, match=r"no way to tcp://255\.255\.255\.255:1"):
        own_host("tcp://255.255.255.255:1")


@pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")
def test_the_same_with_ipv6() -> None:
    assert own_host("tcp://[::1]:5555") == "[::1]"


def test_a_name_that_nobody_knows_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_args: Any, **_options: Any) -> None:
        raise tcp.gaierror(tcp.EAI_NONAME, "not known")

    monkeypatch.setattr(tcp, "getaddrinfo", unknown)
    assert not is_loopback("tcp://nowhere:1")
    with pytest.raises(BindError, match="nowhere cannot be resolved"):
        Server("tcp://nowhere:1")


@pytest.mark.parametrize(
    ("endpoint", "host", "port", "seen_from_afar"),
    [
        ("tcp://10.0.0.1:55", "10.0.0.1", 55, "tcp://10.0.0.1:55"),
        ("tcp://0.0.0.0:55", "0.0.0.0", 55, "tcp://replay:55"),
        ("tcp://[::]:55", "[::]", 55, "tcp://replay:55"),
        ("tcp://[::1]:55", "[::1]", 55, "tcp://[::1]:55"),
    ],
)
def test_an_endpoint_is_taken_apart(endpoint: str, host: str, port: int, seen_from_afar: str) -> None:
    assert (host_of(endpoint), port_of(endpoint)) == (host, port)
    assert with_host(endpoint, "replay") == seen_from_afar


# Keys.


def make_keys() -> tuple[ServerKeys, ClientKeys]:
    server_public, server_secret = make_keypair()
    client_public, client_secret = make_keypair()
    keys = ServerKeys(server_public, server_secret, client_public)
    return keys, ClientKeys(server_public, client_public, client_secret)


def test_a_public_key_is_found_from_the_secret_one() -> None:
    public, secret = make_keypair()
    assert public_key_of(secret) == public
    for broken in (b"", secret[:-1], secret + b"0", b"~" * 40, b"\xff" * 40):
        with pytest.raises(ValueError, match="no secret key"):
            public_key_of(broken)


@pytest.mark.parametrize("endpoint", [HERE, "tcp://0.0.0.0:0"])
def test_who_has_the_key_is_let_in(stack: ExitStack, endpoint: str) -> None:
    server_keys, client_keys = make_keys()
    server = stack.enter_context(closing(Server(endpoint, server_keys)))
    address = server.endpoint.replace("0.0.0.0", "127.0.0.1")
    clients = [stack.enter_context(closing(Client(address, client_keys))) for _ in range(3)]
    for client in clients:
        assert server.send(meet(server, client), [b"welcome"])
        assert answered(client) == [b"welcome"]
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
    ("spoil", "reason"),
    [
        (no_key, "it has no key"),
        (wrong_client_key, "its key is not the client key of this run"),
        (stolen_public_key, "its keys do not fit those of this server"),
        (wrong_server_key, "its keys do not fit those of this server"),
    ],
)
def test_who_has_not_the_key_is_denied_and_named(
    stack: ExitStack, caplog: pytest.LogCaptureFixture, spoil: Callable[[ClientKeys], ClientKeys | None], reason: str
) -> None:
    caplog.set_level(logging.WARNING)
    server_keys, client_keys = make_keys()
    server = stack.enter_context(closing(Server(HERE, server_keys)))
    intruder = stack.enter_context(closing(Client(server.endpoint, spoil(client_keys))))

    def denied() -> bool | None:
        assert not intruder.send([b"let me in"])
        assert server.receive() is None
        assert intruder.receive() is None
        return any(reason in line for line in caplog.messages) or None

    until(denied, server)
    assert server.denied >= 1
    friend = stack.enter_context(closing(Client(server.endpoint, client_keys)))
    meet(server, friend)


def test_a_denied_client_is_named_once_and_counted_always(stack: ExitStack, caplog: pytest.LogCaptureFixture) -> None:
    server_keys, client_keys = make_keys()
    server = stack.enter_context(closing(Server(HERE, server_keys)))
    stack.enter_context(closing(Client(server.endpoint, wrong_server_key(client_keys))))

    def denied() -> bool | None:
        assert server.receive() is None
        return server.denied >= 5 or None

    until(denied, server)
    assert len(caplog.messages) == len(set(caplog.messages)) <= 4


def test_a_client_with_keys_does_not_talk_to_a_server_without(stack: ExitStack) -> None:
    server = stack.enter_context(closing(Server(HERE)))
    client = stack.enter_context(closing(Client(server.endpoint, make_keys()[1])))
    wait([server], 0.2)
    assert not client.send([b"secret"])


def test_keys_that_are_none_are_refused(stack: ExitStack) -> None:
    server = stack.enter_context(closing(Server(HERE)))
    with pytest.raises(BadAddress, match="not with these keys"):
        Client(server.endpoint, ClientKeys(b"short", b"short", b"short"))


def test_a_scan_of_the_port_does_no_harm(stack: ExitStack) -> None:
    server_keys, client_keys = make_keys()
    server = stack.enter_context(closing(Server(HERE, server_keys)))
    port = int(server.endpoint.rpartition(":")[2])
    for said in (b"", b"GET / HTTP/1.1\r\n\r\n", bytes(1_000), b"\xff" + bytes(8) + b"\x7f\x03\x00NULL"):
        with tcp.create_connection(("127.0.0.1", port)) as scanner:
            scanner.sendall(said)
    client = stack.enter_context(closing(Client(server.endpoint, client_keys)))
    meet(server, client)
