"""The poller of statistics finds a head, follows it, and survives whatever answers; notes are shown once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dpsr_apex import timeouts
from dpsr_apex.processes.discovery import Address, HeadRecord, MemoryRegistry, follow_head
from dpsr_apex.processes.link import RefusedByReplay, ReplayLost
from dpsr_apex.processes.statistics import NewNotes, StatsPoller, ask_stats
from dpsr_apex.wire.codec import Frame, decode, encode
from dpsr_apex.wire.keys import load_keys, make_keys
from dpsr_apex.wire.messages import OWNER, SERVER, Gone, Hello, Message, Refused, SetRate, Stats, StatsRequest
from dpsr_apex.wire.sockets import ServerSocket, wait
from dpsr_apex.wire.statistics import Note
from tests.unit.wire.examples import STATS

POLL = 0.05  # seconds


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run") / "keys"
    make_keys(folder)
    return folder


def at(keys: Path, head: Head) -> Address:
    """The address of a head, with the owner's keys."""
    return Address(head.endpoint, load_keys(keys / "owner.key", OWNER))


def record(keys: Path, head: Head, incarnation: int = 1) -> HeadRecord:
    return HeadRecord(head.endpoint, at(keys, head).keys.public[SERVER].decode(), incarnation)


class Head:
    """A server that answers every message with the same frames, and remembers what came."""

    def __init__(self, keys: Path, frames: list[Frame]) -> None:
        self.received: list[Message] = []
        self._frames = frames
        self._server = ServerSocket("tcp://127.0.0.1:0", load_keys(keys / "server.key", SERVER), accepted=[OWNER])
        self.endpoint = self._server.endpoint
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        while not self._ended.is_set():
            wait([self._server], POLL)
            while (message := self._server.receive()) is not None:
                self.received.append(decode(message.frames))
                self._server.send(message.sender, self._frames)
        self._server.close()

    def end(self) -> None:
        self._ended.set()
        self._thread.join()


@contextmanager
def answering(keys: Path, *messages: Message | list[Frame]) -> Iterator[list[Head]]:
    """One head for each of these answers."""
    heads = [Head(keys, message if isinstance(message, list) else encode(message)) for message in messages]
    try:
        yield heads
    finally:
        for head in heads:
            head.end()


@contextmanager
def polling(keys: Path, registry: MemoryRegistry) -> Iterator[StatsPoller]:
    poller = StatsPoller(lambda: follow_head(registry, keys / "owner.key", OWNER))
    try:
        yield poller
    finally:
        poller.close()


def await_answer(poller: StatsPoller, wanted: Callable[[Stats], bool] = lambda _: True) -> Stats:
    while True:
        stats = poller.poll(POLL)
        if stats is not None and wanted(stats):
            return stats


def test_a_poller_waits_for_a_head_and_then_asks_it(keys: Path) -> None:
    registry = MemoryRegistry()
    with answering(keys, STATS) as (head,), polling(keys, registry) as poller:
        assert poller.poll(0.0) is None
        assert not poller.send(Gone("actor-0"))
        registry.publish(record(keys, head))
        assert await_answer(poller) == STATS
        assert poller.send(Gone("actor-0"))
        while Gone("actor-0") not in head.received:
            poller.poll(POLL)
        assert StatsRequest() in head.received


def test_a_poller_follows_a_head_that_moves(keys: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timeouts, "REPLAY_SILENCE", 0.1)
    registry = MemoryRegistry()
    with answering(keys, STATS, STATS._replace(era=2)) as (first, second), polling(keys, registry) as poller:
        registry.publish(record(keys, first))
        await_answer(poller)
        registry.publish(record(keys, second, 2))
        assert await_answer(poller).era == STATS.era  # the first one still answers
        first.end()
        assert await_answer(poller, lambda stats: stats.era == 2)


def test_what_is_no_statistics_is_passed_over(keys: Path) -> None:
    answers: list[Message | list[Frame]] = [Hello(), [b"garbage"], [*encode(STATS), b"more"]]
    for answer in answers:
        registry = MemoryRegistry()
        with answering(keys, answer) as (head,), polling(keys, registry) as poller:
            registry.publish(record(keys, head))
            while not head.received:
                assert poller.poll(POLL) is None
            assert poller.poll(POLL) is None


def test_one_question_has_one_answer_or_a_reason(keys: Path) -> None:
    with answering(keys, STATS, Refused("not today"), Hello()) as (head, refusing, foreign):
        assert ask_stats(at(keys, head), SetRate(4), 10.0) == STATS
        assert head.received[0] == SetRate(4)
        with pytest.raises(RefusedByReplay, match="not today"):
            ask_stats(at(keys, refusing), StatsRequest(), 10.0)
        with pytest.raises(ReplayLost, match="not the head of a run"):
            ask_stats(at(keys, foreign), StatsRequest(), 10.0)


def noted(era: int, *numbers: int) -> Stats:
    return STATS._replace(era=era, notes=[Note(number, f"note {number} of {era}") for number in numbers])


@pytest.mark.parametrize("skip_first", [False, True])
def test_each_note_is_new_once_in_every_era(skip_first: bool) -> None:
    notes = NewNotes(skip_first=skip_first)
    assert notes.of(noted(1, 1, 2)) == ([] if skip_first else ["note 1 of 1", "note 2 of 1"])
    assert notes.of(noted(1, 1, 2)) == []
    assert notes.of(noted(1, 2, 3)) == ["note 3 of 1"]
    assert notes.of(noted(2)) == []
    assert notes.of(noted(2, 1)) == ["note 1 of 2"]
    assert notes.of(noted(1, 4)) == ["note 4 of 1"]
