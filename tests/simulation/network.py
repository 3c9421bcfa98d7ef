"""A simulated clock and network: events in a queue, and connections that delay, lose, repeat, reorder and break."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count
from random import Random
from typing import NamedTuple

from dpsr_apex.wire.messages import Message

SLOWEST = 0.05  # seconds that a message takes at most, when nothing is wrong
LATEST = 1.0  # seconds that it may be late otherwise


class Events:
    """The clock, and what is to happen when."""

    def __init__(self) -> None:
        self.now = 0.0
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()

    def at(self, time: float, event: Callable[[], None]) -> None:
        """Let something happen at that time; of two events of the same time the first one given comes first."""
        heapq.heappush(self._queue, (time, next(self._numbers), event))

    def after(self, seconds: float, event: Callable[[], None]) -> None:
        self.at(self.now + seconds, event)

    def run_next(self) -> None:
        """Move the clock to the next event and let it happen."""
        self.now, _, event = heapq.heappop(self._queue)
        event()


class Faults(NamedTuple):
    """Shares of all messages to which something happens."""

    lost: float = 0.0
    repeated: float = 0.0
    reordered: float = 0.0


class Server:
    """A socket that listens; clients that were connected to a former one at its endpoint are connected to it."""

    def __init__(self, network: Network, endpoint: str, receive: Callable[[bytes, Message], None]) -> None:
        self.endpoint = endpoint
        self.receive = receive
        self.is_open = True
        self._network = network

    def send(self, address: bytes, message: Message) -> None:
        """Send to the client at this address; lost if it is not there."""
        socket = self._network.sockets.get(address)
        if self.is_open and socket is not None and socket.server is self:
            self._network.carry(socket, message, is_up=False)

    def close(self) -> None:
        """All that is on its way, in both directions, is lost."""
        self.is_open = False
        for socket in self._network.sockets.values():
            if socket.endpoint == self.endpoint:
                socket.cut(0.0)
        if self._network.servers.get(self.endpoint) is self:
            del self._network.servers[self.endpoint]


class Socket:
    """A client's socket, with the key of its role; its address stays the same over all its connections."""

    def __init__(
        self, network: Network, endpoint: str, address: bytes, role: str, receive: Callable[[Message], None]
    ) -> None:
        self.endpoint = endpoint
        self.address = address
        self.role = role
        self.receive = receive
        self.in_flight = 0  # messages in both directions
        self.connection = 0  # number of the present one
        self.arrivals = {True: 0.0, False: 0.0}  # when the last message up or down will come
        self.labels = {up: f"{address.decode()} {'->' if up else '<-'} {endpoint}: " for up in (True, False)}
        self._network = network
        self._down_until = 0.0

    @property
    def server(self) -> Server | None:
        """The server that it is connected to."""
        is_down = self._network.events.now < self._down_until or self.address not in self._network.sockets
        return None if is_down else self._network.servers.get(self.endpoint)

    def send(self, message: Message) -> bool:
        """Send to the server; False if there is no connection."""
        if self.server is None:
            return False
        self._network.carry(self, message, is_up=True)
        return True

    def cut(self, seconds: float) -> None:
        """Lose all that is on its way, and stay disconnected for this time."""
        self.connection += 1
        self.in_flight = 0
        self._down_until = max(self._down_until, self._network.events.now + seconds)

    def close(self) -> None:
        self.cut(0.0)
        self._network.sockets.pop(self.address, None)


class Network:
    """All sockets of a run.

    `on_message` is called with every message that is delivered. `on_fault` is called with every message that something
    happens to, what that is, and for how many seconds it may have consequences.
    """

    def __init__(
        self,
        events: Events,
        rng: Random,
        on_message: Callable[[str, Message], None],
        on_fault: Callable[[str, Message, float], None],
    ) -> None:
        self.events = events
        self.faults = Faults()
        self.servers: dict[str, Server] = {}
        self.sockets: dict[bytes, Socket] = {}
        self._rng = rng
        self._on_message = on_message
        self._on_fault = on_fault
        self._addresses = count()

    def listen(self, endpoint: str, receive: Callable[[bytes, Message], None]) -> Server:
        self.servers[endpoint] = server = Server(self, endpoint, receive)
        return server

    def connect(self, endpoint: str, name: str, role: str, receive: Callable[[Message], None]) -> Socket:
        address = f"{name}#{next(self._addresses)}".encode()
        self.sockets[address] = socket = Socket(self, endpoint, address, role, receive)
        return socket

    def carry(self, socket: Socket, message: Message, is_up: bool) -> None:
        """Deliver a message later, unless the connection breaks meanwhile; once, twice or never."""
        faults, chance = self.faults, self._rng.random()
        label = socket.labels[is_up]
        if chance < faults.lost:
            self._on_fault(f"lost: {label}", message, 0.0)
            return
        arrival = max(socket.arrivals[is_up], self.events.now + self._rng.uniform(0.001, SLOWEST))
        if chance < faults.lost + faults.reordered:
            arrival += self._rng.uniform(0.0, LATEST)  # those that are sent later may come before it
            self._on_fault(f"late: {label}", message, LATEST)
        else:
            socket.arrivals[is_up] = arrival
        times = [arrival]
        if self._rng.random() < faults.repeated:
            times.append(arrival + self._rng.uniform(0.0, LATEST))
            self._on_fault(f"repeated: {label}", message, LATEST)
        connection, server = socket.connection, socket.server
        socket.in_flight += len(times)

        def deliver() -> None:
            if socket.connection != connection or server is None:
                return
            socket.in_flight -= 1
            self._on_message(label, message)
            if is_up:
                server.receive(socket.address, message)
            else:
                socket.receive(message)

        for time in times:
            self.events.at(time, deliver)
