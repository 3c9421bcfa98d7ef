"""What drives the replay over sockets: writers of recorded chunks and a reader of batches, who neither act nor learn.

Each runs in a process of its own: every line of its input is a command, every line of its output the answer, both as
JSON. They are cheap, so that it is the replay that is measured: chunks are encoded once, and only their number in the
stream is written anew.
"""

from __future__ import annotations

import json
import select
import subprocess
import sys
import time
from dataclasses import replace
from itertools import chain
from pathlib import Path

import msgpack
import numpy as np

from dpsr_apex.envs.compression import FrameCodec
from dpsr_apex.processes.limits import allow_many_connections
from dpsr_apex.processes.link import request_to_join
from dpsr_apex.replay.transitions import Stack
from dpsr_apex.roles.experience import inflate
from dpsr_apex.wire.codec import Frame, decode, encode
from dpsr_apex.wire.messages import (
    Acknowledged,
    Batch,
    Chunk,
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
CODEC = FrameCodec((84, 84), np.uint8)


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

    def __init__(self, file: Path) -> None:
        chunks = msgpack.unpackb(file.read_bytes())
        first = decode(chunks[0])
        assert isinstance(first, Chunk)
        self.rows = len(first.transitions)  # in each of them
        self._headers = [msgpack.unpackb(header) for header, *_ in chunks]
        self._behind = [behind for _, *behind in chunks]

    def numbered(self, sequence: int) -> list[Frame]:
        """A chunk as number `sequence` of a stream."""
        place = sequence % len(self._headers)
        header = self._headers[place]
        header[SEQUENCE] = sequence
        return [msgpack.packb(header), *self._behind[place]]


class Stream:
    """One actor's chunks, of which at most `window` are on their way."""

    def __init__(self, member: Member, recording: Recording | Playing, window: int) -> None:
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


class Playing:
    """The same chunks made anew each time from their pixels, as an actor does: every frame squeezed, all encoded."""

    def __init__(self, file: Path) -> None:
        decoded = [decode(frames) for frames in msgpack.unpackb(file.read_bytes())]
        self._chunks = [chunk for chunk in decoded if isinstance(chunk, Chunk)]
        self._pieces = [list(dict.fromkeys(chain(*_stacks(chunk)))) for chunk in self._chunks]
        self._frames = [[CODEC.inflate(piece) for piece in pieces] for pieces in self._pieces]
        self.rows = len(self._chunks[0].transitions)  # in each of them

    def numbered(self, sequence: int) -> list[Frame]:
        """A chunk as number `sequence` of a stream."""
        place = sequence % len(self._chunks)
        chunk = self._chunks[place]
        squeezed = map(CODEC.squeeze, self._frames[place])
        anew = dict(zip(self._pieces[place], squeezed, strict=True)).__getitem__
        stacks: list[Stack] = [tuple(map(anew, stack)) for stack in _stacks(chunk)]
        transitions = replace(chunk.transitions, s_tm1=stacks[: self.rows], s_t=stacks[self.rows :])
        return encode(chunk._replace(sequence=sequence, transitions=transitions))


def _stacks(chunk: Chunk) -> list[Stack]:
    return [*chunk.transitions.s_tm1, *chunk.transitions.s_t]


def save_chunks(chunks: list[Chunk], file: Path) -> None:
    """Write chunks as `Recording` reads them."""
    file.write_bytes(msgpack.packb([[bytes(frame) for frame in encode(chunk)] for chunk in chunks]))


class Writers:
    """So many actors that send as fast as they are acknowledged."""

    def __init__(self, endpoint: str, run_id: str, count: str, window: str, kind: str, file: str) -> None:
        recording = Playing(Path(file)) if kind == "playing" else Recording(Path(file))
        self._streams = [
            Stream(Member(endpoint, run_id, "actor", f"actor-{count}-{i}"), recording, int(window))
            for i in range(int(count))
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

    def __init__(self, endpoint: str, run_id: str, batch_size: str, prefetch: str) -> None:
        self._member = Member(endpoint, run_id, "learner", "learner")
        self._errors = np.random.default_rng(0).lognormal(-3.0, 2.0, (64, int(batch_size)))
        self._request = encode(SampleRequest(int(batch_size)))
        self._prefetch = int(prefetch)
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
                    inflate(message.transitions, CODEC)
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


WORKERS: dict[str, type[Writers] | type[Reader]] = {"writers": Writers, "reader": Reader}


class Clients:
    """A worker in a process of its own; `arguments` are those of its class."""

    def __init__(self, kind: str, *arguments: object) -> None:
        command = [sys.executable, "-m", "benchmarks.replay_clients", kind, *map(str, arguments)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._read()  # it has joined

    def ask(self, *command: float) -> tuple[int, float]:
        """Let it work, and wait for how much it did in how many seconds."""
        assert self._process.stdin
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()
        done, seconds = self._read()
        return int(done), seconds

    def close(self) -> None:
        """Let it leave."""
        self._process.communicate()

    def _read(self) -> list[float]:
        assert self._process.stdout
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the clients ended with exit code {self._process.wait()}")
        answer: list[float] = json.loads(line)
        return answer


def main() -> None:
    allow_many_connections()
    kind, *arguments = sys.argv[1:]
    worker = WORKERS[kind](*arguments)
    print(json.dumps([]), flush=True)
    while True:
        while not select.select([sys.stdin], [], [], IDLE)[0]:
            worker.keep()
        line = sys.stdin.readline()
        if not line:
            worker.leave()
            return
        print(json.dumps(worker.work(*json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
