"""An actor's outbox: chunks by size or age, kept until they are acknowledged, and sent again when they are overdue."""

from __future__ import annotations

import numpy as np
import pytest

from dpsr_apex import timeouts
from dpsr_apex.protocol.client_instructions import Send
from dpsr_apex.protocol.outbox import Outbox
from dpsr_apex.wire.messages import Chunk
from tests.unit.protocol.watched_service import transitions

SIZE, IN_FLIGHT, PATIENCE = 5, 15, 4.0
ACTORS = 100  # enough that a chunk may wait for the longest time


class Box:
    """An outbox, and the number of the next transition to put into it."""

    def __init__(self) -> None:
        self.outbox = Outbox(SIZE, IN_FLIGHT, PATIENCE, 0.0)
        self.next = 0

    def add(self, count: int, td_errors: bool = False, policy: int = 0) -> None:
        rows = transitions(count, self.next)
        errors = np.arange(self.next, self.next + count, dtype=np.float64) if td_errors else None
        self.outbox.add(rows, errors, policy)
        self.next += count

    def acknowledge(self, sequence: int, now: float) -> None:
        self.outbox.acknowledge(sequence, IN_FLIGHT, now)

    def fill(self, chunks: int, now: float = 0.0) -> list[Chunk]:
        sent = []
        for _ in range(chunks):
            self.add(SIZE)
            sent += chunks_of(self.outbox.tick(ACTORS, now))
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
        assert box.outbox.tick(ACTORS, 0.5) == []
    box.add(3)
    (chunk,) = chunks_of(box.outbox.tick(ACTORS, 0.5))
    assert chunk.sequence == 0
    assert chunk.transitions.r_t.tolist() == list(range(7)), "all pending ones, not only a chunk of them"
    assert chunk.td_errors is None
    assert box.outbox.tick(ACTORS, 0.6) == []
    assert box.outbox.sent == box.outbox.unacknowledged == 7


@pytest.mark.parametrize(
    ("actors", "seconds"),
    [(1, timeouts.CHUNK_PACE), (16, 16 * timeouts.CHUNK_PACE), (1_000, timeouts.CHUNK_FLUSH)],
)
def test_fewer_transitions_are_sent_after_a_time_that_grows_with_the_number_of_actors(
    actors: int, seconds: float
) -> None:
    box = Box()
    assert box.outbox.tick(actors, 7.0) == [], "nothing is not sent, however long ago"
    box.add(2)
    assert box.outbox.tick(actors, 7.0 + 0.9 * seconds) == []
    (chunk,) = chunks_of(box.outbox.tick(actors, 7.0 + 1.1 * seconds))
    assert len(chunk.transitions) == 2


@pytest.mark.parametrize(("in_flight", "size"), [(100, SIZE), (8, 4), (3, 1), (1, 1)])
def test_a_chunk_is_at_most_half_of_what_may_be_in_flight(in_flight: int, size: int) -> None:
    box = Box()
    box.outbox.acknowledge(0, in_flight, 0.0)
    sizes = []
    while not box.outbox.is_full:
        box.add(1)
        sizes += [len(chunk.transitions) for chunk in chunks_of(box.outbox.tick(ACTORS, 0.0))]
    assert set(sizes) == {size}
    assert sum(sizes) == in_flight - in_flight % size


def test_a_chunk_tells_the_mean_age_of_the_policies_of_its_transitions() -> None:
    box = Box()
    for count, policy in ((1, 100), (4, 110)):
        box.add(count, policy=policy)
    (chunk,) = chunks_of(box.outbox.tick(ACTORS, 0.0))
    assert chunk.policy == pytest.approx(108)
    box.add(SIZE, policy=120)
    assert [chunk.policy for chunk in chunks_of(box.outbox.tick(ACTORS, 0.0))] == [120]


def test_td_errors_and_episodes_travel_with_their_transitions() -> None:
    box = Box()
    for count in (3, 2):
        box.add(count, td_errors=True)
    box.outbox.add_episode(21.0, 400)
    box.outbox.add_episode(-3.0, 7)
    (chunk,) = chunks_of(box.outbox.tick(ACTORS, 0.0))
    assert chunk.td_errors is not None
    assert chunk.td_errors.tolist() == [0, 1, 2, 3, 4]
    assert (chunk.scores.tolist(), chunk.lengths.tolist()) == ([21.0, -3.0], [400, 7])
    box.add(SIZE, td_errors=True)
    (chunk,) = chunks_of(box.outbox.tick(ACTORS, 0.0))
    assert chunk.td_errors is not None
    assert chunk.td_errors.tolist() == [5, 6, 7, 8, 9]
    assert chunk.scores.size == chunk.lengths.size == 0, "each is told once"


def test_it_is_full_while_as_many_as_may_be_in_flight_are_not_acknowledged() -> None:
    box = Box()
    was_full = []
    for _ in range(3):
        box.fill(1)
        was_full.append(box.outbox.is_full)
    box.acknowledge(1, 0.0)
    assert [*was_full, box.outbox.is_full] == [False, False, True, False]
    assert (box.outbox.oldest, box.outbox.unacknowledged, box.outbox.sent) == (1, 10, 15)
    box.add(4)
    assert not box.outbox.is_full
    box.add(1)
    assert box.outbox.is_full, "transitions that are not sent yet count, too"


def test_the_replay_changes_how_many_may_be_in_flight() -> None:
    box = Box()
    box.fill(2)
    box.outbox.acknowledge(1, 5, 0.0)
    assert box.outbox.is_full
    box.outbox.acknowledge(1, 6, 0.0)
    assert not box.outbox.is_full


@pytest.mark.parametrize("sequence", [0, 1, 2, 3, 9])
def test_an_acknowledgement_settles_all_before_it_and_an_old_one_changes_nothing(sequence: int) -> None:
    box = Box()
    box.fill(3)
    box.acknowledge(sequence, 0.0)
    box.acknowledge(0, 0.0)
    assert box.outbox.oldest == min(sequence, 3)
    assert box.outbox.unacknowledged == 5 * (3 - min(sequence, 3))


def test_what_is_overdue_is_sent_again_from_the_oldest_and_again() -> None:
    box = Box()
    sent = box.fill(2)
    assert box.outbox.tick(ACTORS, PATIENCE) == []
    again = chunks_of(box.outbox.tick(ACTORS, PATIENCE + 0.1))
    assert again == sent, "the very same chunks"
    assert box.outbox.tick(ACTORS, 2 * PATIENCE) == []
    assert numbers(box.outbox.tick(ACTORS, 2 * PATIENCE + 0.2)) == [0, 1]
    assert box.outbox.sent == 10, "repeats are not counted"


def test_every_acknowledgement_extends_the_patience() -> None:
    box = Box()
    box.fill(2)
    box.acknowledge(1, 3.0)
    assert box.outbox.tick(ACTORS, 3.0 + PATIENCE) == []
    box.acknowledge(1, 3.0 + PATIENCE)  # it settles nothing
    assert numbers(box.outbox.tick(ACTORS, 3.1 + PATIENCE)) == [1]


def test_a_chunk_after_a_long_pause_is_not_overdue_at_once() -> None:
    box = Box()
    assert len(box.fill(1, now=100.0)) == 1
    assert box.outbox.tick(ACTORS, 100.0 + PATIENCE) == []
    assert numbers(box.outbox.tick(ACTORS, 100.1 + PATIENCE)) == [0]


def test_after_a_welcome_it_continues_with_the_chunk_that_the_replay_expects() -> None:
    box = Box()
    box.fill(3)
    assert numbers(box.outbox.resume(1, 2.0)) == [1, 2]
    assert box.outbox.oldest == 0, "the replay has the first one, but has not settled it"
    assert box.outbox.tick(ACTORS, 2.0 + PATIENCE) == []
    assert numbers(box.outbox.resume(0, 2.0)) == [0, 1, 2], "a replay that went back needs all of them"
    assert box.outbox.resume(3, 2.0) == []


def test_what_is_left_can_be_sent_at_once() -> None:
    box = Box()
    assert box.outbox.flush(0.0) == []
    box.add(1)
    assert numbers(box.outbox.flush(0.0)) == [0]
    assert box.outbox.flush(0.0) == []
