"""What drives the replay over sockets: writers of recorded chunks and a reader of batches, who neither act nor learn.

Each runs in a process of its own and takes commands over a pipe. They are cheap, so that it is the replay that is
measured: chunks are encoded once, and only their number in the stream is written anew.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any, Protocol

import msgpack
import numpy as np

from dpsr_apex.envs.compression import FrameCodec
from dpsr_apex.processes.limits import allow_many_connections
from dpsr_apex.processes.link import request_to_join
from dpsr_apex.roles.experience import inflate
from dpsr_apex.wire.codec import decode, encode
from dpsr_apex.wire.messages import (
    Acknowledged,
    Batch,
    Heartbeat,
    Leave,
    Message,
    Priorities,
    SampleRequest,
    Welcome,
)
from dpsr_apex.wire.sockets import Client, wait

IDLE = 1.0  # seconds between signs of life, as of the real ones
PAUSE = 0.005  # seconds at most until it is looked again whether something came
SEQUENCE = 2  # its place in the header of a chunk


class Member:
    """One connection to the replay that has joined."""

    def __init__(self, endpoint: str, run_id: str, role: str, name: str) -> None:
        self.client = Client(endpoint)
        request = encode(request_to_join(run_id, role, name, "synthetic"))
        while not self.client.send(request):
            time.sleep(0.01)
        while not any(isinstance(message, Welcome) for message in self.received()):
            wait([self.client], PAUSE)

    def received(self) -> list[Message]:
        """What has come."""
        messages = []
        while (frames := self.client.receive()) is not None:
            messages.append(decode(frames))
        return messages

    def keep(self) -> None:
        """Say that it is alive."""
        self.client.send(encode(Heartbeat(0)))

    def leave(self) -> None:
        """Say that it goes."""
        self.client.send(encode(Leave(0)))
        self.client.close()


class Recording:
    """Encoded chunks, to be sent again and again under new numbers."""

    def __init__(self, chunks: list[list[bytes]], rows: int) -> None:
        self._headers = [msgpack.unpackb(header) for header, *_ in chunks]
        self._behind = [behind for _, *behind in chunks]
        self.rows = rows  # transitions in each

    def numbered(self, sequence: int) -> list[bytes]:
        """A chunk as number `sequence` of a stream."""
        place = sequence % len(self._headers)
        header = self._headers[place]
        header[SEQUENCE] = sequence
        return [msgpack.packb(header), *self._behind[place]]


class Stream:
    """One actor's chunks, of which at most `window` are on their way."""

    def __init__(self, member: Member, recording: Recording, window: int) -> None:
        self.member = member
        self._recording = recording
        self._window = window
        self._next = self._settled = 0

    def go_on(self) -> int:
        """Hear what was acknowledged, and send as much as may be; how many transitions were inserted meanwhile."""
        before = self._settled
        for message in self.member.received():
            if isinstance(message, Acknowledged):
                self._settled = message.sequence
        while self._next - self._settled < self._window:
            if not self.member.client.send(self._recording.numbered(self._next)):
                break
            self._next += 1
        return (self._settled - before) * self._recording.rows


class Worker(Protocol):
    """What a process of clients does."""

    def work(self, *command: Any) -> tuple[int, float]:
        """Follow a command: how much was done, and in how many seconds."""

    def keep(self) -> None:
        """Stay in the run while there is nothing to do."""

    def leave(self) -> None:
        """Go."""


class Writers:
    """So many actors that send as fast as they are acknowledged."""

    def __init__(
        self, endpoint: str, run_id: str, count: int, chunks: list[list[bytes]], rows: int, window: int
    ) -> None:
        recording = Recording(chunks, rows)
        self._streams = [
            Stream(Member(endpoint, run_id, "actor", f"actor-{count}-{i}"), recording, window) for i in range(count)
        ]
        self._clients = [stream.member.client for stream in self._streams]
        self._kept = time.perf_counter()

    def work(self, seconds: float, least: int = 0) -> tuple[int, float]:
        """Write for so long, and at least so many transitions; how many were inserted, and in how many seconds."""
        began, inserted = time.perf_counter(), 0
        while (now := time.perf_counter()) - began < seconds or inserted < least:
            if now - self._kept > IDLE:
                self.keep()
            news = sum(stream.go_on() for stream in self._streams)
            inserted += news
            if not news:
                wait(self._clients, PAUSE)
        return inserted, time.perf_counter() - began

    def keep(self) -> None:
        """Stay in the run."""
        self._kept = time.perf_counter()
        for stream in self._streams:
            stream.member.keep()

    def leave(self) -> None:
        """Go."""
        for stream in self._streams:
            stream.member.leave()


class Reader:
    """A learner that takes batches as fast as they come; it may inflate them as the real one does, and answer them."""

    def __init__(self, endpoint: str, run_id: str, batch_size: int, prefetch: int) -> None:
        self._member = Member(endpoint, run_id, "learner", "learner")
        self._codec = FrameCodec((84, 84), np.uint8)
        self._errors = np.random.default_rng(0).lognormal(-3.0, 2.0, (64, batch_size))
        self._request = encode(SampleRequest(batch_size))
        self._prefetch = prefetch
        self._asked = 0
        self._kept = time.perf_counter()

    def work(self, seconds: float, inflates: bool, answers: bool) -> tuple[int, float]:
        """Take batches for so long."""
        began, batches = time.perf_counter(), 0
        while (now := time.perf_counter()) - began < seconds:
            if now - self._kept > IDLE:
                self.keep()
            while self._asked < self._prefetch and self._member.client.send(self._request):
                self._asked += 1
            wait([self._member.client], PAUSE)
            if (frames := self._member.client.receive()) is None:
                continue
            message = decode(frames)
            if isinstance(message, Batch):
                self._asked -= 1
                batches += 1
                if inflates:
                    inflate(message.transitions, self._codec)
                if answers:
                    errors = self._errors[batches % len(self._errors)]
                    self._member.client.send(encode(Priorities(message.era, message.identities, errors)))
        return batches, time.perf_counter() - began

    def keep(self) -> None:
        """Stay in the run."""
        self._kept = time.perf_counter()
        self._member.keep()

    def leave(self) -> None:
        """Go."""
        self._member.leave()


class Clients:
    """A worker in a process of its own."""

    def __init__(self, make: Callable[..., Worker], *arguments: object) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=_follow, args=(theirs, make, arguments), daemon=True)
        self._process.start()
        self._connection.recv()  # it has joined

    def ask(self, *command: object) -> tuple[int, float]:
        """Let it work, and wait for how much it did in how many seconds."""
        self._connection.send(command)
        done, seconds = self._connection.recv()
        return done, seconds

    def close(self) -> None:
        """Let it leave."""
        self._connection.send(None)
        self._process.join(10.0)


def _follow(connection: Connection, make: Callable[..., Worker], arguments: tuple[object, ...]) -> None:
    allow_many_connections()
    worker = make(*arguments)
    connection.send(None)
    while True:
        while not connection.poll(IDLE):
            worker.keep()
        command = connection.recv()
        if command is None:
            worker.leave()
            return
        connection.send(worker.work(*command))
