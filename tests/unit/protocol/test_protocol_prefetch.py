"""The learner's batches ahead of time: never more than the depth, and never fewer for longer than the patience."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpsr_apex.protocol.client_instructions import Send
from dpsr_apex.protocol.prefetch import Prefetch, merge_priorities
from dpsr_apex.wire.messages import LearnerState, Message, Priorities, SampleRequest

DEPTH, PATIENCE = 4, 5.0
REQUEST = Send(SampleRequest())


def test_batches_neither_requested_nor_ready_are_requested() -> None:
    prefetch = Prefetch(DEPTH, PATIENCE)
    assert prefetch.tick(1, 0.0) == [REQUEST] * 3
    assert prefetch.tick(1, 0.1) == []
    prefetch.arrived(0.2)
    assert prefetch.tick(2, 0.2) == [], "one more is ready and one less requested"
    assert prefetch.tick(0, 0.3) == [REQUEST] * 2
    assert prefetch.tick(9, 0.3) == []


def test_what_does_not_come_is_requested_again() -> None:
    prefetch = Prefetch(DEPTH, PATIENCE)
    prefetch.tick(0, 0.0)
    prefetch.arrived(3.0)
    assert prefetch.tick(1, 3.0 + PATIENCE) == []
    assert prefetch.tick(1, 3.1 + PATIENCE) == [REQUEST] * 3
    assert prefetch.tick(1, 3.1 + 2 * PATIENCE) == []
    assert prefetch.tick(1, 3.2 + 2 * PATIENCE) == [REQUEST] * 3


def test_requests_for_more_do_not_postpone_those_that_are_overdue() -> None:
    prefetch = Prefetch(DEPTH, PATIENCE)
    assert prefetch.tick(3, 0.0) == [REQUEST]
    assert prefetch.tick(2, PATIENCE - 1) == [REQUEST]
    assert prefetch.tick(2, PATIENCE + 0.1) == [REQUEST] * 2


def test_a_pause_without_requests_is_not_overdue() -> None:
    prefetch = Prefetch(DEPTH, PATIENCE)
    assert prefetch.tick(DEPTH, 0.0) == []
    assert prefetch.tick(DEPTH - 1, 100.0) == [REQUEST]
    assert prefetch.tick(DEPTH - 1, 100.0 + PATIENCE) == []


def test_after_a_rejoin_all_batches_are_requested_again() -> None:
    prefetch = Prefetch(DEPTH, PATIENCE)
    prefetch.tick(0, 0.0)
    prefetch.joined()
    assert prefetch.tick(1, 0.1) == [REQUEST] * 3


def test_what_the_socket_did_not_take_is_requested_at_the_next_tick() -> None:
    prefetch = Prefetch(DEPTH, PATIENCE)
    prefetch.tick(0, 0.0)
    prefetch.undelivered()
    prefetch.undelivered()
    assert prefetch.tick(0, 0.1) == [REQUEST] * 2


@given(st.lists(st.sampled_from(["tick", "arrived", "taken", "undelivered", "joined", "wait"]), max_size=60))
def test_never_more_than_the_depth_is_requested_or_ready(events: list[str]) -> None:
    prefetch, now = Prefetch(DEPTH, PATIENCE), 0.0
    requested = ready = 0  # by the last count of the replay, which forgets requests when a learner joins
    for event in events:
        if event == "tick":
            sent = len(prefetch.tick(ready, now))
            requested += sent
            assert sent == 0 or sent + ready <= DEPTH
        elif event == "arrived" and requested:
            prefetch.arrived(now)
            requested, ready = requested - 1, ready + 1
        elif event == "taken" and ready:
            ready -= 1
        elif event == "undelivered" and requested:
            prefetch.undelivered()
            requested -= 1
        elif event == "joined":
            prefetch.joined()
            requested = 0
        elif event == "wait":
            now += PATIENCE + 1  # all that are open count as lost
            requested = len(prefetch.tick(ready, now))
            assert requested == max(DEPTH - ready, 0)


# Priorities.


def priorities(era: int, *names: int) -> Priorities:
    return Priorities(era, np.array(names), np.array(names, dtype=np.float64) / 2)


def test_priorities_that_wait_together_travel_together_in_their_order() -> None:
    (merged,) = merge_priorities([priorities(1, 3, 4), priorities(1, 3), priorities(1, 9, 8, 7)])
    assert isinstance(merged, Priorities)
    assert merged.era == 1
    assert merged.identities.tolist() == [3, 4, 3, 9, 8, 7], "of one named twice the later one counts"
    assert merged.td_errors.tolist() == [1.5, 2.0, 1.5, 4.5, 4.0, 3.5]


@pytest.mark.parametrize(
    "messages",
    [
        [],
        [priorities(1, 3)],
        [priorities(1, 3), priorities(2, 3)],
        [priorities(1, 3), LearnerState("", b""), priorities(1, 4)],
    ],
)
def test_nothing_changes_its_place_and_no_two_eras_are_mixed(messages: list[Message]) -> None:
    assert merge_priorities(messages) == messages
