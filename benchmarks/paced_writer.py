"""Actors that send recorded chunks to a replay at a given rate, and measure how long each acknowledgement takes.

`python -m benchmarks.paced_writer RUN_DIR ACTORS WINDOW CHUNKS_FILE`; commands and answers are JSON lines.
"""

from __future__ import annotations

import json
import select
import subprocess
import sys
import time
from collections import deque
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.replay_clients import HEARTBEAT_PERIOD, MAX_WAIT, Member, Recording
from dpsr_apex.record.run_directory import RunDirectory
from dpsr_apex.wire.messages import Acknowledged
from dpsr_apex.wire.sockets import wait


class Round(NamedTuple):
    """What was acknowledged in one round."""

    inserted: int  # transitions
    seconds: float
    p50: float  # seconds from sending a chunk to its acknowledgement
    p99: float


class Actor:
    """One actor with at most `window` chunks that are not acknowledged."""

    def __init__(self, member: Member, chunks: Recording, window: int) -> None:
        self.member = member
        self._chunks = chunks
        self._window = window
        self._next = self._acknowledged = 0
        self._sent: deque[float] = deque()  # times of the chunks that are not acknowledged

    @property
    def is_idle(self) -> bool:
        """Whether everything is acknowledged."""
        return not self._sent

    def send(self) -> bool:
        """Send one chunk if the window is open; return whether it was sent."""
        if len(self._sent) >= self._window or not self.member.client.send(self._chunks.numbered(self._next)):
            return False
        self._next += 1
        self._sent.append(time.perf_counter())
        return True

    def receive(self) -> list[float]:
        """Return the seconds after which each newly acknowledged chunk was acknowledged."""
        taken = []
        for message in self.member.received():
            if isinstance(message, Acknowledged):
                now = time.perf_counter()
                taken += [now - self._sent.popleft() for _ in range(message.sequence - self._acknowledged)]
                self._acknowledged = message.sequence
        return taken


class Actors:
    """All actors of one process."""

    def __init__(self, run: str, count: str, window: str, file: str) -> None:
        self._chunks = Recording(Path(file))
        members = [Member(RunDirectory(Path(run)), "actor", f"actor-{i}") for i in range(int(count))]
        self._actors = [Actor(member, self._chunks, int(window)) for member in members]
        self._clients = [member.client for member in members]

    def run(self, transitions: int, rate: float) -> Round:
        """Send this number of transitions at `rate` per second in total; 0: as fast as they are acknowledged."""
        started, sent, taken = time.perf_counter(), 0, list[float]()
        chunks = transitions // self._chunks.rows
        heard = started
        while sent < chunks or not all(actor.is_idle for actor in self._actors):
            now = time.perf_counter()
            if now - heard > HEARTBEAT_PERIOD:
                heard = now
                self.heartbeat()
            due = min(chunks, int((now - started) * rate / self._chunks.rows) + 1 if rate else chunks)
            sent += sum(actor.send() for actor in self._actors[: due - sent])
            taken += [seconds for actor in self._actors for seconds in actor.receive()]
            wait(self._clients, MAX_WAIT if rate == 0 else 0.001)
        p50, p99 = np.percentile(taken, (50, 99)).tolist()
        return Round(chunks * self._chunks.rows, time.perf_counter() - started, p50, p99)

    def heartbeat(self) -> None:
        """Send the heartbeats of all actors."""
        for actor in self._actors:
            actor.member.heartbeat()


class PacedWriter:
    """The process of these actors."""

    def __init__(self, run: Path, actors: int, window: int, file: Path) -> None:
        command = [sys.executable, "-m", "benchmarks.paced_writer", *map(str, (run, actors, window, file))]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._answer()  # it has joined

    def ask(self, transitions: int, rate: float) -> Round:
        """Let it send; return what it has measured."""
        assert self._process.stdin
        self._process.stdin.write(json.dumps([transitions, rate]) + "\n")
        self._process.stdin.flush()
        return Round(*json.loads(self._answer()))

    def close(self) -> None:
        """End the process."""
        self._process.communicate()

    def _answer(self) -> str:
        assert self._process.stdout
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the actors ended with exit code {self._process.wait()}")
        return line


def main() -> None:
    actors = Actors(*sys.argv[1:])
    print(json.dumps([]), flush=True)
    while True:
        while not select.select([sys.stdin], [], [], HEARTBEAT_PERIOD)[0]:
            actors.heartbeat()
        line = sys.stdin.readline()
        if not line:
            return
        print(json.dumps(actors.run(*json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
