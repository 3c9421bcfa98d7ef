"""A client's membership: it joins, keeps its lease, finds a head that moved, and gives up in the end."""

from __future__ import annotations

import numpy as np
import pytest

from dpsr_apex import timeouts
from dpsr_apex.protocol.client_instructions import (
    HeadLost,
    LinkInstruction,
    LookUpHead,
    Reconnect,
    Rejected,
    Send,
)
from dpsr_apex.protocol.membership import Membership
from dpsr_apex.wire.messages import (
    Acknowledged,
    Alive,
    Goodbye,
    Heartbeat,
    Leave,
    Message,
    Refused,
    Stranger,
    Welcome,
)
from tests.unit.protocol.watched_service import join

LEASE = 10.0
TICK = 0.25  # seconds; a power of two, so that sums are exact
WELCOME = Welcome(era=7, t=30, place=1, actors=4, sequence=0, weights_endpoint="tcp://l:1")
REQUEST = join()


def member(now: float = 0.0) -> Membership:
    membership = Membership(REQUEST, LEASE, now)
    assert membership.tick(now) == [Send(REQUEST)]
    assert membership.handle(WELCOME, now) == []
    return membership


def ticks(
    membership: Membership, start: float, stop: float, moved: bool = False
) -> list[tuple[float, LinkInstruction]]:
    """All instructions of ticks four times a second; a look-up is answered at once, and what follows from it."""
    given = []
    for now in np.arange(start, stop, TICK).tolist():
        for instruction in membership.tick(now):
            given.append((now, instruction))
            if isinstance(instruction, LookUpHead):
                given += [(now, further) for further in membership.head_looked_up(moved, now)]
    return given


def messages(given: list[tuple[float, LinkInstruction]]) -> list[tuple[float, Message]]:
    return [(now, instruction.message) for now, instruction in given if isinstance(instruction, Send)]


def test_it_asks_to_join_once_a_second_until_it_is_welcome() -> None:
    membership = Membership(REQUEST, LEASE, 0.0)
    asked = messages(ticks(membership, 0.0, 2.0))
    assert asked == [(0.0, REQUEST), (1.0, REQUEST)]
    membership.handle(WELCOME, 2.0)
    assert membership.welcome == WELCOME
    assert (membership.t, membership.actors, membership.learner) == (30, 4, "tcp://l:1")


def test_a_request_that_the_socket_did_not_take_is_repeated_at_the_next_tick() -> None:
    membership = Membership(REQUEST, LEASE, 0.0)
    for now in (0.0, 0.1, 0.2):
        assert membership.tick(now) == [Send(REQUEST)]
        membership.undelivered(REQUEST)
    assert membership.tick(0.3) == [Send(REQUEST)]
    assert membership.tick(0.4) == []


def test_a_member_sends_a_heartbeat_every_second_with_its_count() -> None:
    membership = member()
    beats = []
    for now in np.arange(0.0, 3.0, TICK).tolist():
        membership.sent = int(now * 10)
        membership.handle(Alive(31, 5, ""), now)
        beats += [(now, instruction) for instruction in membership.tick(now)]
    assert beats == [(now, Send(Heartbeat(int(now * 10)))) for now in (0.0, 1.0, 2.0)]
    assert (membership.t, membership.actors, membership.learner) == (31, 5, "")


def test_a_heartbeat_that_the_socket_did_not_take_is_repeated_at_the_next_tick() -> None:
    membership = member()
    for now in (0.0, 0.1):
        assert membership.tick(now) == [Send(Heartbeat(0))]
        membership.undelivered(Heartbeat(0))
    assert membership.tick(0.2) == [Send(Heartbeat(0))]
    assert membership.tick(0.3) == []


def test_one_that_the_replay_does_not_know_joins_again_from_its_first_unacknowledged_chunk() -> None:
    membership = member()
    membership.sequence = 17
    membership.handle(Stranger(), 0.5)
    assert membership.welcome is None
    assert membership.tick(0.5) == [Send(REQUEST._replace(sequence=17))]
    membership.handle(Stranger(), 0.6)  # the answer to something that was sent before
    assert membership.tick(0.6) == [], "the request to join is on its way"


def test_a_silent_head_is_looked_up_once_a_second_and_where_it_has_not_moved_nothing_changes() -> None:
    membership = member()
    given = ticks(membership, 0.0, 6.0)
    looked_up = [now for now, instruction in given if instruction == LookUpHead()]
    assert looked_up == [2.0, 3.0, 4.0, 5.0]
    assert [now for now, _ in messages(given)] == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0], "heartbeats"
    assert membership.welcome is not None


def test_a_head_that_moved_is_joined_where_it_is_now() -> None:
    membership = member()
    ticks(membership, 0.0, 2.0)
    assert membership.tick(2.0) == [LookUpHead()]
    assert membership.head_looked_up(True, 2.0) == [Reconnect(2.0), Send(REQUEST)]
    assert membership.welcome is None
    assert ticks(membership, 2.25, 3.0) == [], "the new head has as much time to answer"
    membership.handle(WELCOME, 3.0)
    assert membership.tick(3.0) == [Send(Heartbeat(0))]


def test_after_a_lease_of_silence_it_connects_and_joins_again_and_so_on() -> None:
    membership = member()
    given = ticks(membership, 0.0, 31.0)
    assert [now for now, instruction in given if isinstance(instruction, Reconnect)] == [10.25, 20.5, 30.75]
    silences = [instruction.silence for _, instruction in given if isinstance(instruction, Reconnect)]
    assert silences == [10.25, 20.5, 30.75]
    asked = [now for now, message in messages(given) if message == REQUEST]
    assert asked[:13] == [*np.arange(10.25, 20.5), 20.5, 21.5], "once a second, and at once over a new socket"


def test_any_message_of_the_replay_ends_its_silence() -> None:
    membership = member()
    for now in range(1, 100):
        membership.handle(Acknowledged(now, now, 0, 1, 0), float(now))
        given = ticks(membership, now + 0.0, now + 1.0)
        assert all(isinstance(message, Heartbeat) for _, message in messages(given))
        assert len(messages(given)) == len(given)


def test_it_gives_up_on_a_head_that_is_lost_for_good() -> None:
    membership = member()
    for now in np.arange(0.0, timeouts.HEAD_LOST, 1.0).tolist():
        for instruction in membership.tick(now):
            assert not isinstance(instruction, HeadLost)
            if isinstance(instruction, LookUpHead):
                membership.head_looked_up(False, now)
    assert membership.tick(timeouts.HEAD_LOST + 1) == [HeadLost(timeouts.HEAD_LOST + 1)]


def test_a_process_that_was_suspended_itself_looks_for_the_head_before_it_gives_up() -> None:
    membership = member()
    awake = 10 * timeouts.HEAD_LOST
    assert membership.tick(awake) == [LookUpHead()]
    assert isinstance(membership.head_looked_up(False, awake)[0], Reconnect)
    last = awake + timeouts.HEAD_LOST - timeouts.HEAD_SILENCE
    for now in np.arange(awake + 1, last, 1.0).tolist():
        assert not any(isinstance(instruction, HeadLost) for instruction in membership.tick(now))
    assert membership.tick(last + 1) == [HeadLost(last + 1)]


def test_connecting_again_does_not_extend_the_time_until_it_gives_up() -> None:
    membership = Membership(REQUEST, LEASE, 0.0)
    for now in np.arange(0.0, timeouts.HEAD_LOST, 2.0).tolist():
        membership.tick(now)
        membership.head_looked_up(True, now)
    assert isinstance(membership.tick(timeouts.HEAD_LOST + 1)[0], HeadLost)


def test_a_refusal_ends_it_and_a_goodbye_is_kept() -> None:
    membership = member()
    assert membership.handle(Refused("no"), 1.0) == [Rejected("no")]
    goodbye = Goodbye(True, "the run is finished")
    assert membership.handle(goodbye, 1.0) == []
    assert membership.goodbye == goodbye


@pytest.mark.parametrize("is_member", [True, False])
def test_only_a_member_says_that_it_leaves(is_member: bool) -> None:
    membership = member() if is_member else Membership(REQUEST, LEASE, 0.0)
    membership.sent = 40
    assert membership.leave() == ([Send(Leave(40))] if is_member else [])
