"""Synthetic clients of the replay: writers of recorded chunks and a reader of batches, without actors and learner.

Each runs in its own process and exchanges JSON lines: a command in, an answer out. They are cheap, so that the replay
is the bottleneck: chunks are encoded once, and only their sequence number is changed.
"""

from __future__ import annotations

import json
import os
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
from dpsr_apex.envs.decompression import Decompressor
from dpsr_apex.processes.discovery import FileRegistry, find_head
from dpsr_apex.processes.link import request_to_join
from dpsr_apex.processes.startup import allow_many_connections
from dpsr_apex.record.run_directory import RunDirectory
from dpsr_apex.replay.transitions import PackedTransitions, Stack
from dpsr_apex.roles.experience import read_packed
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
from dpsr_apex.wire.sockets import ClientSocket, wait

KEYLESS = "BENCHMARK_WITHOUT_KEYS"  # environment variable: connect to `benchmarks.keyless_replay`
HEARTBEAT_PERIOD = 1.0  # seconds, as in the real processes
MAX_WAIT = 0.005  # seconds between two checks for messages
SEQUENCE_INDEX = 2  # of the sequence number in the header of a chunk
CODEC = FrameCodec((84, 84), np.uint8)
ACTIONS = 18  # of any game


class Member:
    """One connection to the replay, joined as a member of the run."""

    def __init__(self, run: RunDirectory, role: str, name: str) -> None:
        found = find_head(FileRegistry(run.connection), run.key_of(role), role)
        assert found is not None
        endpoint, keys = found.address
        self.client = ClientSocket(endpoint, None if KEYLESS in os.environ else keys)
        request = encode(request_to_join(run.identity.read_text(), role, name, "synthetic"))
        while not self.client.send(request):
            time.sleep(0.01)
        while not any(isinstance(message, Welcome) for message in self.received()):
            wait([self.client], MAX_WAIT)

    def received(self) -> list[Message]:
        """Return all messages that have arrived."""
        messages = []
        while (frames := self.client.receive()) is not None:
            messages.append(decode(frames))
        return messages

    def heartbeat(self) -> None:
        """Send a heartbeat."""
        self.client.send(encode(Heartbeat(0)))

    def leave(self) -> None:
        """Leave the run."""
        self.client.send(encode(Leave(0)))
        self.client.close()


class Recording:
    """Encoded chunks that are sent repeatedly with new sequence numbers."""

    def __init__(self, file: Path) -> None:
        chunks = msgpack.unpackb(file.read_bytes())
        first = decode(chunks[0])
        assert isinstance(first, Chunk)
        self.rows = len(first.transitions)  # transitions per chunk
        self._headers = [msgpack.unpackb(header) for header, *_ in chunks]
        self._payloads = [payload for _, *payload in chunks]

    def numbered(self, sequence: int) -> list[Frame]:
        """Return the frames of a chunk with this sequence number."""
        index = sequence % len(self._headers)
        header = self._headers[index]
        header[SEQUENCE_INDEX] = sequence
        return [msgpack.packb(header), *self._payloads[index]]


class Stream:
    """One actor's stream of chunks, of which at most `window` are not acknowledged."""

    def __init__(self, member: Member, chunks: Recording | LiveEncoding, window: int) -> None:
        self.member = member
        self._chunks = chunks
        self._window = window
        self._next = self._acknowledged = 0

    def advance(self) -> int:
        """Process acknowledgements, fill the window, and return the number of newly inserted transitions."""
        before = self._acknowledged
        for message in self.member.received():
            if isinstance(message, Acknowledged):
                self._acknowledged = message.sequence
        while self._next - self._acknowledged < self._window:
            if not self.member.client.send(self._chunks.numbered(self._next)):
                break
            self._next += 1
        return (self._acknowledged - before) * self._chunks.rows


class LiveEncoding:
    """Recorded chunks that are rebuilt from pixels each time, as in an actor: compress every frame, encode all."""

    def __init__(self, file: Path) -> None:
        decoded = [decode(frames) for frames in msgpack.unpackb(file.read_bytes())]
        self._chunks = [chunk for chunk in decoded if isinstance(chunk, Chunk)]
        self._compressed = [list(dict.fromkeys(chain(*_stacks(chunk)))) for chunk in self._chunks]
        self._frames = [[CODEC.decompress(frame) for frame in frames] for frames in self._compressed]
        self.rows = len(self._chunks[0].transitions)  # transitions per chunk

    def numbered(self, sequence: int) -> list[Frame]:
        """Return the frames of a chunk with this sequence number."""
        index = sequence % len(self._chunks)
        chunk = self._chunks[index]
        compressed = map(CODEC.compress, self._frames[index])
        recompressed = dict(zip(self._compressed[index], compressed, strict=True)).__getitem__
        stacks: list[Stack] = [tuple(map(recompressed, stack)) for stack in _stacks(chunk)]
        transitions = replace(chunk.transitions, s_tm1=stacks[: self.rows], s_t=stacks[self.rows :])
        return encode(chunk._replace(sequence=sequence, transitions=transitions))


def _stacks(chunk: Chunk) -> list[Stack]:
    return [*chunk.transitions.s_tm1, *chunk.transitions.s_t]


def save_chunks(chunks: list[Chunk], file: Path) -> None:
    """Write chunks in the format of `Recording`."""
    file.write_bytes(msgpack.packb([[bytes(frame) for frame in encode(chunk)] for chunk in chunks]))


class Writers:
    """`count` actors that send as fast as they are acknowledged."""

    def __init__(self, run: str, count: str, window: str, encoding: str, file: str) -> None:
        chunks = LiveEncoding(Path(file)) if encoding == "live" else Recording(Path(file))
        self._streams = [
            Stream(Member(RunDirectory(Path(run)), "actor", f"actor-{count}-{i}"), chunks, int(window))
            for i in range(int(count))
        ]
        self._clients = [stream.member.client for stream in self._streams]
        self._last_heartbeat = time.perf_counter()

    def run(self, seconds: float, minimum: int = 0) -> tuple[int, float]:
        """Write for `seconds` and at least `minimum` transitions; return the number inserted and the seconds taken."""
        started, inserted = time.perf_counter(), 0
        while (now := time.perf_counter()) - started < seconds or inserted < minimum:
            if now - self._last_heartbeat > HEARTBEAT_PERIOD:
                self.heartbeat()
            new = sum(stream.advance() for stream in self._streams)
            inserted += new
            if not new:
                wait(self._clients, MAX_WAIT)
        return inserted, time.perf_counter() - started

    def heartbeat(self) -> None:
        """Send the heartbeats of all actors."""
        self._last_heartbeat = time.perf_counter()
        for stream in self._streams:
            stream.member.heartbeat()

    def leave(self) -> None:
        """Leave the run with all actors."""
        for stream in self._streams:
            stream.member.leave()


class Reader:
    """A learner that receives batches as fast as possible, and optionally decompresses and answers them."""

    def __init__(self, run: str, batch_size: str, prefetch: str) -> None:
        self._member = Member(RunDirectory(Path(run)), "learner", "learner")
        self._errors = np.random.default_rng(0).lognormal(-3.0, 2.0, (64, int(batch_size)))
        self._request = encode(SampleRequest())
        self._prefetch = int(prefetch)
        self._requested = 0
        self._decompress = Decompressor(CODEC)
        self._last_heartbeat = time.perf_counter()

    def run(self, seconds: float, decompresses: bool, answers: bool) -> tuple[int, float]:
        """Receive batches for `seconds`; return their number and the seconds taken."""
        started, batches = time.perf_counter(), 0
        while (now := time.perf_counter()) - started < seconds:
            if now - self._last_heartbeat > HEARTBEAT_PERIOD:
                self.heartbeat()
            while self._requested < self._prefetch and self._member.client.send(self._request):
                self._requested += 1
            wait([self._member.client], MAX_WAIT)
            if (frames := self._member.client.receive()) is None:
                continue
            message = decode(frames)
            if isinstance(message, Batch):
                self._requested -= 1
                batches += 1
                assert isinstance(message.transitions, PackedTransitions)
                if decompresses:
                    read = read_packed(message.transitions, self._decompress, ACTIONS)
                    assert read is not None
                    for states in (read.s_tm1, read.s_t):
                        read.frames[states]  # as arrays of whole observations
                if answers:
                    errors = self._errors[batches % len(self._errors)]
                    self._member.client.send(encode(Priorities(message.era, message.identities, errors)))
        return batches, time.perf_counter() - started

    def heartbeat(self) -> None:
        """Send a heartbeat."""
        self._last_heartbeat = time.perf_counter()
        self._member.heartbeat()

    def leave(self) -> None:
        """Leave the run."""
        self._member.leave()


class PipelineReader:
    """A learner without a network: one thread receives and decodes batches, which are then decompressed."""

    def __init__(self, run: str, prefetch: str) -> None:
        self._member = Member(RunDirectory(Path(run)), "learner", "pipeline")
        self._request = encode(SampleRequest())
        self._prefetch = int(prefetch)
        self._requested = 0
        self._decompressors = {threads: Decompressor(CODEC, threads) for threads in (1, 2, 4)}

    def run(self, seconds: float, threads: int) -> tuple[int, float]:
        """Decompress batches for `seconds` with this number of threads, 0 for one call per frame."""
        decompressor = self._decompressors.get(threads)
        started, batches = time.perf_counter(), 0
        while time.perf_counter() - started < seconds:
            # As the learner does: the next batches are requested before this one is decompressed.
            while self._requested < self._prefetch and self._member.client.send(self._request):
                self._requested += 1
            if (frames := self._member.client.receive()) is None:
                wait([self._member.client], MAX_WAIT)
                continue
            message = decode(frames)
            if not isinstance(message, Batch):
                continue
            self._requested -= 1
            batches += 1
            assert isinstance(message.transitions, PackedTransitions)
            if decompressor is None:
                rows = message.transitions.unpack()
                CODEC.decompress_stacks([*rows.s_tm1, *rows.s_t])
            else:
                read_packed(message.transitions, decompressor, ACTIONS)
        self.heartbeat()
        return batches, time.perf_counter() - started

    def heartbeat(self) -> None:
        """Send a heartbeat."""
        self._member.heartbeat()

    def leave(self) -> None:
        """Leave the run."""
        self._member.leave()


WORKERS: dict[str, type[Writers] | type[Reader] | type[PipelineReader]] = {
    "writers": Writers,
    "reader": Reader,
    "pipeline": PipelineReader,
}


class Clients:
    """A worker in its own process; `arguments` are those of its class."""

    def __init__(self, worker: str, *arguments: object, keys: bool = True) -> None:
        command = [sys.executable, "-m", "benchmarks.replay_clients", worker, *map(str, arguments)]
        environment = os.environ | ({} if keys else {KEYLESS: "1"})
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        self._read()  # it has joined

    def ask(self, *command: float) -> tuple[int, float]:
        """Call the worker's `run` with these arguments and return its result: a count and seconds."""
        assert self._process.stdin
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()
        count, seconds = self._read()
        return int(count), seconds

    def close(self) -> None:
        """Make the worker leave the run, and wait for its process to end."""
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
    name, *arguments = sys.argv[1:]
    worker = WORKERS[name](*arguments)
    print(json.dumps([]), flush=True)
    while True:
        while not select.select([sys.stdin], [], [], HEARTBEAT_PERIOD)[0]:
            worker.heartbeat()
        line = sys.stdin.readline()
        if not line:
            worker.leave()
            return
        print(json.dumps(worker.run(*json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
