"""Engines start the processes of a run, on this machine or on the nodes of a cluster.

The supervision decides which processes run; an engine decides where, and how they find the head. The engine for Ray is
`dpsr_apex.supervise.ray`.
"""

from __future__ import annotations

import socket
from collections.abc import Set as AbstractSet
from typing import Protocol

from dpsr_apex.machine import usable_cores
from dpsr_apex.processes.discovery import Address, FileRegistry, HeadLocator, find_head
from dpsr_apex.protocol.instructions import Resources
from dpsr_apex.record.run_directory import RunDirectory
from dpsr_apex.supervise.managed import LocalProcess, ManagedProcess, Task
from dpsr_apex.supervise.template import Template
from dpsr_apex.wire.addresses import host_of, is_loopback, port_of, with_host
from dpsr_apex.wire.keys import make_keys
from dpsr_apex.wire.messages import ACTOR, OWNER


class Engine(Protocol):
    """Starts the processes of one run."""

    @property
    def flags(self) -> tuple[str, ...]:
        """The command-line options that select this engine."""

    def arguments(self, role: str, actors: int) -> list[str]:
        """Return the engine's own arguments for a process of this role in a run with this number of actors."""

    def start(self, task: Task) -> ManagedProcess:
        """Start a process as soon as there are resources for it."""

    def find_head(self) -> HeadLocator | None:
        """Return a locator of the replay; None while it has not published its address."""

    def how_to_join(self, head: Address) -> str:
        """Describe how more actors can join."""

    def find_resources(self, roles: AbstractSet[str], actors: tuple[str, ...]) -> Resources:
        """Return the resources for one more process of each role, and which of these actors could be preempted."""

    def node_reports(self) -> list[str]:
        """Describe what has happened to nodes since the last call."""

    def withdraw_head(self) -> None:
        """Remove the published address of a replay that has ended."""

    def close(self) -> None:
        """Remove the published address, and release all resources of the run."""


class ThisMachine:
    """Starts every process on this machine, at once."""

    flags = ()

    def __init__(self, run: RunDirectory, bind: str) -> None:
        self._run = run
        self._bind = bind
        self._chosen_port = port_of(bind)
        self._registry = FileRegistry(run.connection)
        self._template = Template()

    def arguments(self, role: str, actors: int) -> list[str]:
        """Return the addresses to listen on and to connect to.

        If the user has chosen the replay's port, the learner serves its weights on the next one.
        """
        if role == "replay":
            return ["--bind", _without_scheme(self._bind)]
        key = str(self._run.key_of(role))
        connect = ["--connect", _without_scheme(self._local_address), "--key", key]
        if role != "learner":
            return connect
        weights = f"{host_of(self._bind)}:{self._chosen_port + 1 if self._chosen_port else 0}"
        return [*connect, "--bind", weights, "--threads", str(_learner_threads(actors))]

    def start(self, task: Task) -> ManagedProcess:
        """Start it at once: the resources of this machine are not counted.

        The replay starts first. It does not need what the template loads meanwhile.
        """
        if task.role == "replay":
            make_keys(self._run.keys)  # here, so that the user sees what is wrong with existing ones
            process = LocalProcess(task)
            self._template.load()
            return process
        return LocalProcess(task, self._template.start)

    def find_head(self) -> HeadLocator | None:
        """Return a locator of the replay; its port is kept from now on, so that a restarted replay is found there."""
        found = find_head(self._registry, self._run.key_of(OWNER), OWNER)
        if found is None:
            return None
        self._bind = f"tcp://{host_of(self._bind)}:{port_of(found.address.endpoint)}"
        return HeadLocator(Address(self._local_address, found.address.keys))

    def how_to_join(self, head: Address) -> str:  # noqa: ARG002 -- a restarted replay keeps the address
        """Return the command for other machines, if they can reach this one."""
        if is_loopback(self._bind):
            return f"Serving at {self._bind}, for this machine only (use --bind 0.0.0.0:5555 to accept other machines)"
        host = socket.gethostname() if self._local_address != self._bind else host_of(self._bind)
        join = f"dpsr-apex actor --connect {host}:{port_of(self._bind)} --key {self._run.key_of(ACTOR)}"
        return f"Serving at {self._bind}. To join from another machine, copy the key file there and run\n  {join}"

    def find_resources(self, roles: AbstractSet[str], actors: tuple[str, ...]) -> Resources:  # noqa: ARG002 -- unlimited
        """Return that nothing is lacking."""
        return Resources(frozenset(), {}, "")

    def node_reports(self) -> list[str]:
        """Return nothing: this machine is the only node."""
        return []

    def withdraw_head(self) -> None:
        """Remove the file with the address."""
        self._registry.withdraw()

    def close(self) -> None:
        """Remove the file with the address, and end the template."""
        self._registry.withdraw()
        self._template.close()

    @property
    def _local_address(self) -> str:
        """Return the address by which local processes reach a server that may listen on every interface."""
        return with_host(self._bind, "127.0.0.1")


def default_actors() -> int:
    """Return the number of cores minus one, which is left to the learner; at least 1."""
    return max(usable_cores() - 1, 1)


def _learner_threads(actors: int) -> int:
    """Return the number of cores without an actor, but at least two if there are two cores.

    Two threads pay off even if an actor uses one of the cores, because it mostly waits for updates.
    """
    return min(max(usable_cores() - actors, 2), usable_cores())


def _without_scheme(endpoint: str) -> str:
    """Return an endpoint in command-line syntax, HOST:PORT."""
    return endpoint.removeprefix("tcp://")
