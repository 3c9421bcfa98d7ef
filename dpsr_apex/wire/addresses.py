"""Addresses of servers: parse `HOST:PORT` and convert it to ZeroMQ endpoints (`tcp://HOST:PORT`)."""

from __future__ import annotations

import ipaddress
import re
import socket as tcp

from dpsr_apex.errors import UserError


class BadAddress(UserError, ValueError):
    """Raised for an address that is invalid or cannot be reached."""


def parse_address(text: str) -> str:
    """Return the endpoint of `HOST:PORT`, where HOST is a name, an IPv4 address or an IPv6 address in brackets."""
    endpoint = f"tcp://{text.strip()}"
    host_and_port(endpoint)
    return endpoint


def is_loopback(endpoint: str) -> bool:
    """Whether only this machine can reach the endpoint; False for a name that cannot be resolved."""
    try:
        host, _ = host_and_port(resolved(endpoint))
    except BadAddress:
        return False
    return ipaddress.ip_address(host).is_loopback


def host_of(endpoint: str) -> str:
    """Return the host of an endpoint; an IPv6 address is in brackets."""
    host_and_port(endpoint)
    return endpoint.removeprefix("tcp://").rpartition(":")[0]


def port_of(endpoint: str) -> int:
    """Return the port of an endpoint."""
    return host_and_port(endpoint)[1]


def with_host(endpoint: str, host: str) -> str:
    """Replace a wildcard host (0.0.0.0 or [::]) with `host`; return other endpoints unchanged."""
    return f"tcp://{host}:{port_of(endpoint)}" if host_of(endpoint) in ("0.0.0.0", "[::]") else endpoint


def own_host(towards: str) -> str:
    """Return this machine's address on the route to an endpoint; raise BadAddress if there is no route."""
    host, port = host_and_port(resolved(towards))
    family = tcp.AF_INET6 if is_ipv6(towards) else tcp.AF_INET
    try:
        with tcp.socket(family, tcp.SOCK_DGRAM) as probe:
            probe.connect((host, port))  # nothing is sent
            address = str(probe.getsockname()[0])
    except OSError as error:
        raise BadAddress(f"there is no route to {towards}: {error.strerror}") from error
    return f"[{address}]" if is_ipv6(towards) else address


def advertised_endpoint(endpoint: str) -> str:
    """Return the endpoint that other machines can use: a wildcard host becomes this machine's outgoing address.

    Without an outgoing route it becomes the loopback address.
    """
    external, loopback = _EXTERNAL_AND_LOOPBACK[is_ipv6(endpoint)]
    try:
        host = own_host(external)
    except BadAddress:
        host = loopback
    return with_host(endpoint, host)


# By whether it is IPv6: an address reserved for documentation, to find the outgoing route, and the loopback address.
_EXTERNAL_AND_LOOPBACK = {False: ("tcp://198.51.100.1:9", "127.0.0.1"), True: ("tcp://[2001:db8::1]:9", "[::1]")}

_ENDPOINT = re.compile(
    r"tcp://(\[(?P<ipv6>[0-9a-fA-F:.]+)\]|(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)):(?P<port>[0-9]{1,5})"
)


def host_and_port(endpoint: str) -> tuple[str, int]:
    """Return host (IPv6 without brackets) and port of an endpoint; raise BadAddress if it is invalid."""
    match = _ENDPOINT.fullmatch(endpoint)
    if match is None:
        raise BadAddress(
            f"{endpoint.removeprefix('tcp://')!r} is not an address: write HOST:PORT, for example 127.0.0.1:5555, "
            "replay.example:5555 or [::1]:5555"
        )
    host, port = match["ipv6"] or match["name"], int(match["port"])
    if match["ipv6"]:
        _check_ipv6(host)
    if port > 65_535:
        raise BadAddress(f"the port must be at most 65535 (got {port})")
    return host, port


def _check_ipv6(host: str) -> None:
    try:
        ipaddress.IPv6Address(host)
    except ValueError:
        raise BadAddress(f"[{host}] is not an IPv6 address") from None


def resolved(endpoint: str) -> str:
    """Replace the host name of an endpoint with its IP address."""
    host, port = host_and_port(endpoint)
    if is_ipv6(endpoint):
        return endpoint
    try:
        found = tcp.getaddrinfo(host, port, family=tcp.AF_INET, type=tcp.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise BadAddress(f"{host} cannot be resolved: {error}") from error
    return f"tcp://{found[0][4][0]}:{port}"


def is_ipv6(endpoint: str) -> bool:
    """Whether the endpoint's host is an IPv6 address."""
    return "[" in endpoint
