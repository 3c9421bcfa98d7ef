"""Addresses of servers: `HOST:PORT` as people write it, endpoints as sockets take them. No sockets here."""

from __future__ import annotations

import ipaddress
import re
import socket as tcp


class BadAddress(ValueError):
    """Not an address that can be talked to, and why."""


def parse_address(text: str) -> str:
    """`HOST:PORT`, where HOST is a name, an IPv4 address or an IPv6 address in brackets, as an endpoint."""
    endpoint = f"tcp://{text.strip()}"
    host_and_port(endpoint)
    return endpoint


def is_loopback(endpoint: str) -> bool:
    """Whether only this machine can reach it; not so for a name that cannot be resolved."""
    try:
        host, _ = host_and_port(resolved(endpoint))
    except BadAddress:
        return False
    return ipaddress.ip_address(host).is_loopback


def host_of(endpoint: str) -> str:
    """The host of an endpoint, an IPv6 address in brackets."""
    host_and_port(endpoint)
    return endpoint.removeprefix("tcp://").rpartition(":")[0]


def port_of(endpoint: str) -> int:
    """The port of an endpoint."""
    return host_and_port(endpoint)[1]


def with_host(endpoint: str, host: str) -> str:
    """The endpoint; one that stands for every address of its machine is given this host instead."""
    return f"tcp://{host}:{port_of(endpoint)}" if host_of(endpoint) in ("0.0.0.0", "[::]") else endpoint


def own_host(towards: str) -> str:
    """The host by which this machine is known on its way to an endpoint; BadAddress when there is no way."""
    host, port = host_and_port(resolved(towards))
    family = tcp.AF_INET6 if is_ipv6(towards) else tcp.AF_INET
    try:
        with tcp.socket(family, tcp.SOCK_DGRAM) as probe:
            probe.connect((host, port))  # nothing is sent
            own = str(probe.getsockname()[0])
    except OSError as error:
        raise BadAddress(f"there is no way to {towards}: {error.strerror}") from error
    return f"[{own}]" if is_ipv6(towards) else own


def seen_from_elsewhere(endpoint: str) -> str:
    """The endpoint; one that stands for every address of its machine is given that of the machine's way out.

    Where there is no way out, it is given the address by which the machine reaches itself.
    """
    outside, inside = _OUTSIDE[is_ipv6(endpoint)]
    try:
        host = own_host(outside)
    except BadAddress:
        host = inside
    return with_host(endpoint, host)


# By whether it is IPv6: an address kept for documentation, which nobody has, and the loopback.
_OUTSIDE = {False: ("tcp://198.51.100.1:9", "127.0.0.1"), True: ("tcp://[2001:db8::1]:9", "[::1]")}

_ENDPOINT = re.compile(
    r"tcp://(\[(?P<ipv6>[0-9a-fA-F:.]+)\]|(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)):(?P<port>[0-9]{1,5})"
)


def host_and_port(endpoint: str) -> tuple[str, int]:
    """The two parts of an endpoint, an IPv6 address without its brackets; BadAddress says what is wrong with it."""
    match = _ENDPOINT.fullmatch(endpoint)
    if match is None:
        raise BadAddress(
            f"{endpoint.removeprefix('tcp://')!r} is no address: write HOST:PORT, for example 127.0.0.1:5555, "
            "replay.example:5555 or [::1]:5555"
        )
    host, port = match["ipv6"] or match["name"], int(match["port"])
    if match["ipv6"]:
        _check_ipv6(host)
    if port > 65_535:
        raise BadAddress(f"{port} is no port: the greatest is 65535")
    return host, port


def _check_ipv6(host: str) -> None:
    try:
        ipaddress.IPv6Address(host)
    except ValueError:
        raise BadAddress(f"[{host}] is no IPv6 address") from None


def resolved(endpoint: str) -> str:
    """The endpoint with a number in place of a name."""
    host, port = host_and_port(endpoint)
    if is_ipv6(endpoint):
        return endpoint
    try:
        found = tcp.getaddrinfo(host, port, family=tcp.AF_INET, type=tcp.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise BadAddress(f"{host} cannot be resolved: {error}") from error
    return f"tcp://{found[0][4][0]}:{port}"


def is_ipv6(endpoint: str) -> bool:
    """Whether its host is an IPv6 address."""
    return "[" in endpoint
