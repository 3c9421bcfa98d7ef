"""Where the processes of a run live, and how they find its head: on this machine, or wherever an engine puts them.

The supervisor decides what is to run; an engine decides where. Ray's is `dpsr_apex.cluster`.
"""

from __future__ import annotations

import os
import socket
from typing import Protocol

from dpsr_apex.processes.discovery import Address, FileBoard, Whereabouts, find_head
from dpsr_apex.run.lives import Life, LifeHere, Task
from dpsr_apex.run.run_directory import RunDirectory
from dpsr_apex.wire.addresses import host_of, is_loopback, port_of, with_host


class Engine(Protocol):
    """Gives the processes of one run a place to live."""

    @property
    def named(self) -> tuple[str, ...]:
        """How a command names it."""

    def options(self, role: str, actors: int) -> list[str]:
        """What a process of this role is told besides: where to listen and to connect, among so many actors."""

    def begin(self, task: Task) -> Life:
        """Start a process as soon as there is room for it."""

    def find_head(self) -> Whereabouts | None:
        """Where the replay is; None while it has not published itself."""

    def invitation(self, head: Address) -> str:
        """How more actors can join, in words."""

    def has_room(self, role: str) -> bool:
        """Whether there is a place for one more of this role, as far as one can see."""

    def room(self) -> str:
        """How much room there is, in words."""

    def news(self) -> list[str]:
        """What has happened to places since the last call, in words."""

    def withdraw(self) -> None:
        """No head is published: what is there is of a former life of the run."""

    def close(self) -> None:
        """The run has ended."""


class ThisMachine:
    """Everything here, at once."""

    named = ()

    def __init__(self, run: RunDirectory, bind: str) -> None:
        self._run = run
        self._bind = bind
        self._chosen_port = port_of(bind)
        self._board = FileBoard(run.connection)

    def options(self, role: str, actors: int) -> list[str]:
        """The learner's weights are served beside the replay, at the next port where that one was chosen."""
        if role == "replay":
            return ["--bind", _typed(self._bind)]
        key = [] if is_loopback(self._bind) else ["--key", str(self._run.client_key)]
        connect = ["--connect", _typed(self._reachable), *key]
        if role != "learner":
            return connect
        weights = f"{host_of(self._bind)}:{self._chosen_port + 1 if self._chosen_port else 0}"
        return [*connect, "--bind", weights, "--threads", str(_threads(actors))]

    def begin(self, task: Task) -> Life:
        """At once: here is always room."""
        return LifeHere(task)

    def find_head(self) -> Whereabouts | None:
        """Started again, it must be where everybody looks for it, so its port is kept from here on."""
        found = find_head(self._board, self._run.client_key)
        if found is None:
            return None
        self._bind = f"tcp://{host_of(self._bind)}:{port_of(found.address.endpoint)}"
        return Whereabouts(Address(self._reachable, found.address.keys))

    def invitation(self, head: Address) -> str:
        """For other machines, if they can reach it."""
        if head.keys is None:
            return f"Serving at {self._bind}, for this machine alone (--bind 0.0.0.0:5555 lets others in)"
        host = socket.gethostname() if self._reachable != self._bind else host_of(self._bind)
        join = f"dpsr-apex actor --connect {host}:{port_of(self._bind)} --key {self._run.client_key}"
        return f"Serving at {self._bind}. With a copy of the key file, other machines join by\n  {join}"

    def has_room(self, role: str) -> bool:  # noqa: ARG002 -- for all alike
        """Always."""
        return True

    def room(self) -> str:
        """Never asked for."""
        return ""

    def news(self) -> list[str]:
        """Never any."""
        return []

    def withdraw(self) -> None:
        """Take away what a former life of the run has published."""
        self._board.withdraw()

    def close(self) -> None:
        """Take away what was published."""
        self._board.withdraw()

    @property
    def _reachable(self) -> str:
        """Where this machine itself finds a server that may listen everywhere."""
        return with_host(self._bind, "127.0.0.1")


def room_for_actors() -> int:
    """As many as there are cores, but for that of the learner."""
    return max(_cores() - 1, 1)


def _threads(actors: int) -> int:
    """Those of the learner fill the cores.

    Two threads pay even where an actor wants one of the cores: it waits for updates most of the time.
    """
    return min(max(_cores() - actors, 2), _cores())


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _typed(endpoint: str) -> str:
    """As a person types it."""
    return endpoint.removeprefix("tcp://")
