"""What clients can make a real head or learner take: memory, connections, time and lines in its log. Others are served.

Each of these attacks once ended or slowed a run: endless parts of one message, handshakes with huge frames, tens of
thousands of connections, and garbage that filled the disk with log lines.
"""

from __future__ import annotations

import os
import socket as tcp
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from dataclasses import replace
from itertools import count
from pathlib import Path
from threading import Thread

import numpy as np
import pytest
import zmq

from dpsr_apex.processes.link import ReplayLost, request_to_join
from dpsr_apex.wire.addresses import port_of
from dpsr_apex.wire.codec import MAX_FRAME, Frame, encode
from dpsr_apex.wire.connections import FAULTS, MOST_SILENT_PER_HOST, UNREAD, UNREAD_SILENT
from dpsr_apex.wire.fragments import MOST_BYTES, fragments
from dpsr_apex.wire.messages import ACTOR, LEARNER, OWNER, Acknowledged, Alive, Chunk, Heartbeat, WeightsRequest
from dpsr_apex.wire.sockets import ClientSocket
from tests.system.members import Head, Member, Visitor, serving
from tests.system.runs import PATIENCE, eventually, training
from tests.unit.wire.examples import walk

SLACK = 100 * 2**20  # bytes that may arrive between two checks, on a busy machine
FEW_LINES = 20_000  # bytes of a log
GREETING = b"\xff" + bytes(8) + b"\x7f" + b"\x03\x00" + b"CURVE".ljust(20, b"\0") + bytes(32)
COMMAND = b"\x06"  # of ZeroMQ's handshake; the next eight bytes are its size


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Head]:
    with serving(tmp_path_factory.mktemp("bounded") / "run") as head:
        yield head


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def head(served: Head, stack: ExitStack) -> Iterator[Head]:
    """The head of all tests, and an honest member of it, which must still be served after each attack."""
    honest = stack.enter_context(closing(Member(served.run, "actor", "honest")))
    yield served
    assert Alive in map(type, honest.say(Heartbeat(0)))
    assert "honest" in [actor.name for actor in served.stats().actors]
    honest.leave()


def connected(head: Head) -> tcp.socket:
    return tcp.create_connection(("127.0.0.1", port_of(head.address(OWNER).endpoint)), timeout=PATIENCE)


def log_size(head: Head) -> int:
    return (head.run.logs / "replay.log").stat().st_size


def growth_until(head: Head, condition: Callable[[], bool]) -> int:
    """Wait for the condition; return by how many bytes the head has grown meanwhile, at most."""
    before = most = head.resident_bytes

    def is_met() -> bool:
        nonlocal most
        most = max(most, head.resident_bytes)
        return condition()

    eventually(is_met)
    return most - before


@pytest.mark.parametrize(("is_member", "limit"), [(False, UNREAD_SILENT), (True, UNREAD)])
def test_a_message_of_endless_parts_is_not_collected(head: Head, stack: ExitStack, is_member: bool, limit: int) -> None:
    greedy = Member(head.run, "actor", "greedy") if is_member else Visitor(head.run, ACTOR)
    stack.enter_context(closing(greedy))
    lines = log_size(head)
    greedy.client._socket.set(zmq.LINGER, 0)
    part = bytes(MAX_FRAME)  # sent a thousand times without being copied: a gigabyte
    greedy.client._socket.send_multipart([part] * 1_000, copy=False)
    assert growth_until(head, lambda: log_size(head) > lines) < limit + SLACK


def test_huge_frames_in_the_handshake_are_not_collected(head: Head) -> None:
    size = 255 * 2**20
    streams = [Thread(target=stream_handshake, args=(head, size)) for _ in range(12)]
    for thread in streams:
        thread.start()
    assert growth_until(head, lambda: not any(thread.is_alive() for thread in streams)) < SLACK


def stream_handshake(head: Head, size: int) -> None:
    """Send a frame of this size instead of a proof of the key, until the connection is closed."""
    with suppress(ConnectionError), closing(connected(head)) as connection:
        connection.sendall(GREETING + COMMAND + size.to_bytes(8, "big"))
        for _ in range(size // MAX_FRAME):
            connection.sendall(bytes(MAX_FRAME))


def test_a_client_that_does_not_complete_its_handshake_is_disconnected(head: Head, stack: ExitStack) -> None:
    silent, begun = (stack.enter_context(closing(connected(head))) for _ in range(2))
    begun.sendall(GREETING)
    for connection in (silent, begun):
        with suppress(ConnectionError):
            while connection.recv(1_000):
                pass  # until it is closed


def test_connections_without_a_key_are_limited(head: Head, stack: ExitStack) -> None:
    files = Path(f"/proc/{head.process.pid}/fd")
    before, most = len(os.listdir(files)), 0
    for _ in range(1_000):
        stack.enter_context(closing(connected(head))).sendall(GREETING)
        most = max(most, len(os.listdir(files)))
    assert most - before < 300  # while they are closed, some more are accepted
    eventually(lambda: len(os.listdir(files)) - before <= MOST_SILENT_PER_HOST)
    stack.enter_context(closing(Member(head.run, "actor", "newcomer"))).leave()


def test_refused_joins_fill_no_log(head: Head, stack: ExitStack) -> None:
    visitor = stack.enter_context(closing(Visitor(head.run, ACTOR)))
    lines, joins = log_size(head), head.traffic()["refused_joins"]
    wrong = encode(request_to_join("elsewhere", "actor", "odd", ""))
    for _ in range(5_000):
        visitor.send_frames(wrong)
        while visitor.client.receive() is not None:
            pass
    visitor.settle()
    assert head.traffic()["refused_joins"] == joins + 5_000
    assert log_size(head) - lines < FEW_LINES


def test_garbage_fills_no_log_and_closes_its_connection(head: Head, stack: ExitStack) -> None:
    lines, malformed = log_size(head), head.traffic()["malformed"]
    visitor = stack.enter_context(closing(Visitor(head.run, ACTOR)))
    while head.traffic()["malformed"] < malformed + 20 * FAULTS:  # it connects again each time
        for _ in range(100):
            visitor.client.send([b"garbage"])
    assert log_size(head) - lines < FEW_LINES
    assert "closed the connection" in head.said


# Memory.


def send_most_of(member: Member, size: int) -> None:
    """Send all but the last fragment of a message of this size."""
    parts: list[list[Frame]] = list(fragments([bytes(size)], 1))
    for part in parts[:-1]:
        eventually(lambda: member.client._feed._offer(part))  # noqa: B023 -- called before it changes


def test_a_head_that_takes_too_much_memory_drops_the_greediest_member_and_tells_once(
    tmp_path: Path, stack: ExitStack
) -> None:
    head = stack.enter_context(serving(tmp_path / "run", "system.memory_limit=160"))
    honest = stack.enter_context(closing(Member(head.run, "actor", "honest")))
    before = head.resident_bytes
    for _ in range(2):
        greedy = stack.enter_context(closing(Member(head.run, "actor", "greedy")))
        send_most_of(greedy, MOST_BYTES[ACTOR])
        eventually(lambda: [actor.name for actor in head.stats().actors] == ["honest"])
    told = [note.text for note in head.stats().notes if "greedy" in note.text and "limit" in note.text]
    assert len(told) == 1
    assert "160 MiB" in told[0]
    eventually(lambda: head.resident_bytes - before < SLACK / 2)
    assert Alive in map(type, honest.say(Heartbeat(0)))


@pytest.mark.slow
def test_huge_transitions_are_evicted_and_those_of_others_stay(tmp_path: Path, stack: ExitStack) -> None:
    head = stack.enter_context(serving(tmp_path / "run", "system.memory_limit=300", "replay.capacity=20000"))
    honest = stack.enter_context(closing(Member(head.run, "actor", "honest")))
    honest.say(chunk(0, 50))
    most, names = 0, (f"greedy-{number}" for number in count())

    def has_evicted() -> bool:
        nonlocal most
        with suppress(AssertionError, ReplayLost), closing(Member(head.run, "actor", next(names))) as greedy:
            for sequence in range(greedy.welcome.sequence, greedy.welcome.sequence + 5):
                for part in fragments(encode(chunk(sequence, 30, size=2**20)), sequence + 1):
                    eventually(lambda: greedy.client._feed._offer(part), 5.0)  # noqa: B023
                most = max(most, head.resident_bytes)
            assert head.runs
        return head.stats().replay.quarantined > 0

    eventually(has_evicted)
    eventually(lambda: head.resident_bytes < 300 * 2**20)
    assert most < 2 * 2**30
    stats = head.stats()
    assert stats.stored == stats.t - stats.replay.quarantined >= 50
    assert "more than its limit of 300 MiB" in "".join(note.text for note in stats.notes)
    assert Acknowledged in map(type, honest.say(chunk(1, 50)))


def chunk(sequence: int, rows: int, size: int = 0) -> Chunk:
    """Transitions with snapshots of at least this size."""
    made = walk(rows, stack=1)
    if size:
        made = replace(made, snapshots=[os.urandom(size) for _ in range(rows)])
    return Chunk(sequence, made, None, np.zeros(0), np.zeros(0, np.int64), 0.0)


# The learner.


@pytest.mark.slow
@pytest.mark.parametrize("message", ["garbage", "requests"])
def test_a_flood_to_the_learner_neither_stops_the_training_nor_fills_its_log(tmp_path: Path, message: str) -> None:
    frames: list[Frame] = [b"garbage"] if message == "garbage" else encode(WeightsRequest(-1, -1))
    with training(tmp_path / "run", "run.checkpoint_period=0", steps=1_000_000) as run:
        run.await_all()
        with closing(Member(run.directory, "evaluator", "spy")) as spy:
            endpoint, keys = spy.welcome.weights_endpoint, spy.address.keys
        log = run.directory.logs / "learner.log"
        lines, batches = log.stat().st_size, run.stats().rate.batches
        with closing(ClientSocket(endpoint, keys, LEARNER)) as client:
            sent = 0
            while sent < 2_000 or run.stats().rate.batches < batches + 500:
                for _ in range(100):
                    sent += client.send(frames)
                    client.receive()
        assert log.stat().st_size - lines < FEW_LINES
        assert run.child("learner") is not None
