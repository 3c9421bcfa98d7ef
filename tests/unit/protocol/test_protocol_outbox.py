"""An actor's outbox: chunks by size or age, kept until they are acknowledged, and sent again when they are overdue."""

from __future__ import annotations

import numpy as np
import pytest

from dpsr_apex import timeouts
from dpsr_apex.protocol.client_instructions import Send
from dpsr_apex.protocol.outbox import Outbox
from dpsr_apex.wire.messages import Chunk
from tests.unit.protocol.watched_service import transitions

SIZE, WINDOW, PATIENCE = 5, 3, 4.0


class Box:
    """An outbox, and the number of the next transition to put into it."""

    def __init__(self) -> None:
        self.outbox = Outbox(SIZE, WINDOW, PATIENCE, 0.0)
        self.next = 0

    def add(self, count: int, td_errors: bool = False) -> None:
        rows = transitions(count, self.next)
        self.outbox.add(rows, np.arange(self.next, self.next + count, dtype=np.float64) if td_errors else None)
        self.next += count

    def fill(self, chunks: int, now: float = 0.0) -> list[Chunk]:
        sent = []
        for _ in range(chunks):
            self.add(SIZE)
            sent += chunks_of(self.outbox.tick(now))
        return sent


def chunks_of(sends: list[Send]) -> list[Chunk]:
    chunks = [send.message for send in sends]
    assert all(isinstance(chunk, Chunk) for chunk in chunks)
    return [chunk for chunk in chunks if isinstance(chunk, Chunk)]


def numbers(sends: list[Send]) -> list[int]:
    return [chunk.sequence for chunk in chunks_of(sends)]


def test_a_chunk_is_sent_when_there_are_enough_transitions_and_they_stay_in_order() -> None:
    box = Box()
    for count in (2, 2):
        box.add(count)
        assert box.outbox.tick(0.5) == []
    box.add(3)
    (chunk,) = chunks_of(box.outbox.tick(0.5))
    assert chunk.sequence == 0
    assert chunk.transitions.r_t.tolist() == list(range(7)), "all pending ones, not only a chunk of them"
    assert chunk.td_errors is None
    assert box.outbox.tick(0.6) == []
    assert box.outbox.sent == box.outbox.unacknowledged == 7


def test_fewer_transitions_are_sent_when_the_last_chunk_is_long_ago() -> None:
    box = Box()
    box.add(2)
    assert box.outbox.tick(timeouts.CHUNK_FLUSH) == []
    (chunk,) = chunks_of(box.outbox.tick(timeouts.CHUNK_FLUSH + 0.1))
    assert len(chunk.transitions) == 2
    assert box.outbox.tick(PATIENCE) == [], "nothing is not sent, however long ago"


def test_td_errors_and_episodes_travel_with_their_transitions() -> None:
    box = Box()
    for count in (3, 2):
        box.add(count, td_errors=True)
    box.outbox.add_episode(21.0, 400)
    box.outbox.add_episode(-3.0, 7)
    (chunk,) = chunks_of(box.outbox.tick(0.0))
    assert chunk.td_errors is not None
    assert chunk.td_errors.tolist() == [0, 1, 2, 3, 4]
    assert (chunk.scores.tolist(), chunk.lengths.tolist()) == ([21.0, -3.0], [400, 7])
    box.add(SIZE, td_errors=True)
    (chunk,) = chunks_of(box.outbox.tick(0.0))
    assert chunk.td_errors is not None
    assert chunk.td_errors.tolist() == [5, 6, 7, 8, 9]
    assert chunk.scores.size == chunk.lengths.size == 0, "each is told once"


def test_it_is_full_while_a_window_of_chunks_is_not_acknowledged() -> None:
    box = Box()
    was_full = []
    for _ in range(WINDOW):
        box.fill(1)
        was_full.append(box.outbox.is_full)
    box.outbox.acknowledged(1, 0.0)
    assert [*was_full, box.outbox.is_full] == [False] * (WINDOW - 1) + [True, False]
    assert (box.outbox.oldest, box.outbox.unacknowledged, box.outbox.sent) == (1, 10, 15)


@pytest.mark.parametrize("sequence", [0, 1, 2, 3, 9])
def test_an_acknowledgement_settles_all_before_it_and_an_old_one_changes_nothing(sequence: int) -> None:
    box = Box()
    box.fill(3)
    box.outbox.acknowledged(sequence, 0.0)
    box.outbox.acknowledged(0, 0.0)
    assert box.outbox.oldest == min(sequence, 3)
    assert box.outbox.unacknowledged == 5 * (3 - min(sequence, 3))


def test_what_is_overdue_is_sent_again_from_the_oldest_and_again() -> None:
    box = Box()
    sent = box.fill(2)
    assert box.outbox.tick(PATIENCE) == []
    again = chunks_of(box.outbox.tick(PATIENCE + 0.1))
    assert again == sent, "the very same chunks"
    assert box.outbox.tick(2 * PATIENCE) == []
    assert numbers(box.outbox.tick(2 * PATIENCE + 0.2)) == [0, 1]
    assert box.outbox.sent == 10, "repeats are not counted"


def test_every_acknowledgement_extends_the_patience() -> None:
    box = Box()
    box.fill(2)
    box.outbox.acknowledged(1, 3.0)
    assert box.outbox.tick(3.0 + PATIENCE) == []
    box.outbox.acknowledged(1, 3.0 + PATIENCE)  # it settles nothing
    assert numbers(box.outbox.tick(3.1 + PATIENCE)) == [1]


def test_a_chunk_after_a_long_pause_is_not_overdue_at_once() -> None:
    box = Box()
    assert len(box.fill(1, now=100.0)) == 1
    assert box.outbox.tick(100.0 + PATIENCE) == []
    assert numbers(box.outbox.tick(100.1 + PATIENCE)) == [0]


def test_after_a_welcome_it_continues_with_the_chunk_that_the_replay_expects() -> None:
    box = Box()
    box.fill(3)
    assert numbers(box.outbox.resume(1, 2.0)) == [1, 2]
    assert box.outbox.oldest == 0, "the replay has the first one, but has not settled it"
    assert box.outbox.tick(2.0 + PATIENCE) == []
    assert numbers(box.outbox.resume(0, 2.0)) == [0, 1, 2], "a replay that went back needs all of them"
    assert box.outbox.resume(3, 2.0) == []


def test_what_is_left_can_be_sent_at_once() -> None:
    box = Box()
    assert box.outbox.flush(0.0) == []
    box.add(1)
    assert numbers(box.outbox.flush(0.0)) == [0]
    assert box.outbox.flush(0.0) == []
