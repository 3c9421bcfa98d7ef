"""Other machines, each a network namespace: its own addresses, routes and sockets behind a virtual cable."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

import pytest


class Machine(NamedTuple):
    """A network namespace with one interface, whose cable leads to a switch."""

    name: str
    plug: str
    address: str

    @property
    def before(self) -> list[str]:
        """The prefix of a command that is to run there."""
        return ["ip", "netns", "exec", self.name]

    def cut(self) -> None:
        """Unplug it."""
        ip("-n", self.name, "link", "set", self.plug, "down")

    def heal(self) -> None:
        """Plug it in again."""
        ip("-n", self.name, "link", "set", self.plug, "up")


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


@contextmanager
def sockets_on(machine: Machine) -> Iterator[None]:
    """Inside the block, new sockets of this thread belong to that machine."""
    libc = ctypes.CDLL(None, use_errno=True)
    with open("/proc/thread-self/ns/net") as own, open(f"/run/netns/{machine.name}") as other:
        assert libc.setns(other.fileno(), 0) == 0, os.strerror(ctypes.get_errno())
        try:
            yield
        finally:
            assert libc.setns(own.fileno(), 0) == 0, os.strerror(ctypes.get_errno())


@contextmanager
def machines(count: int) -> Iterator[list[Machine]]:
    """Return `count` machines on one switch, with addresses 10.99.0.1, 10.99.0.2 and so on."""
    if shutil.which("ip") is None:
        pytest.skip("network namespaces are made with `ip`: install iproute2")
    mark = f"{os.getpid():x}"
    switch = f"dpsr-{mark}-switch"
    made = subprocess.run(["ip", "netns", "add", switch], capture_output=True, text=True)
    if made.returncode != 0:
        pytest.skip(f"`ip netns add` is not allowed here: {made.stderr.strip()}")
    with ExitStack() as stack:
        stack.callback(ip, "netns", "delete", switch)
        ip("-n", switch, "link", "add", "bridge", "type", "bridge")
        ip("-n", switch, "link", "set", "bridge", "up")
        found = []
        for number in range(1, count + 1):
            machine = Machine(f"dpsr-{mark}-{number}", f"dv{mark}-{number}", f"10.99.0.{number}")
            ip("netns", "add", machine.name)
            stack.callback(ip, "netns", "delete", machine.name)
            socket = f"socket{number}"
            ip("-n", switch, "link", "add", socket, "type", "veth", "peer", machine.plug, "netns", machine.name)
            ip("-n", switch, "link", "set", socket, "master", "bridge", "up")
            ip("-n", machine.name, "address", "add", f"{machine.address}/24", "dev", machine.plug)
            ip("-n", machine.name, "link", "set", machine.plug, "up")
            ip("-n", machine.name, "link", "set", "lo", "up")
            found.append(machine)
        yield found
