"""Whole clients without sockets: what an actor, a learner and an evaluator say to what they hear."""

from __future__ import annotations

import logging

import numpy as np
import pytest

from dpsr_apex import timeouts
from dpsr_apex.config import SystemConfig
from dpsr_apex.protocol.client_instructions import (
    ConnectToLearner,
    LoadWeights,
    PublishWeights,
    Rejected,
    RequestWeights,
    Send,
    SendWeights,
    SetClock,
    SetPosition,
    Work,
)
from dpsr_apex.protocol.clients import RECYCLE_REQUESTS, ActorClient, EvaluatorClient, LearnerClient
from dpsr_apex.wire.messages import (
    Acknowledged,
    Alive,
    Batch,
    Chunk,
    Goodbye,
    Heartbeat,
    Join,
    LearnerState,
    Learning,
    Leave,
    Message,
    Priorities,
    Recycle,
    Refused,
    SampleRequest,
    SaveRequest,
    Stranger,
    Weights,
    WeightsRequest,
    Welcome,
)
from tests.unit.protocol.watched_service import EMPTY, answer, join, transitions

SYSTEM = SystemConfig(chunk=5, in_flight=10, weights_period=3, weights_age=10, prefetch=4, lease=10.0)
WELCOME = Welcome(era=7, t=30, place=1, actors=4, sequence=0, weights_endpoint="tcp://l:1")
NEWEST = Weights(5, 3, 25, 20, b"online", b"target")
REQUEST = Send(SampleRequest())
STATE = LearnerState('{"updates": 3}', b"arrays")


def sent(instructions: list[object]) -> list[Message]:
    return [instruction.message for instruction in instructions if isinstance(instruction, Send)]


# The actor.


def joined_actor(now: float = 0.0) -> ActorClient:
    client = ActorClient(join(), SYSTEM, now)
    assert client.tick(now) == [Send(join())]
    assert client.handle(WELCOME, now) == [SetClock(30), SetPosition(1, 4)]
    return client


def acting(now: float = 0.0) -> ActorClient:
    client = joined_actor(now)
    connect, request = ConnectToLearner("tcp://l:1"), RequestWeights(WeightsRequest(-1, -1))
    assert client.tick(now) == [connect, request, Send(Heartbeat(0))]
    before = client.may_step
    assert client.weights.handle(NEWEST) == [LoadWeights(NEWEST)]
    client.weights.loaded(NEWEST)
    assert (before, client.may_step) == (False, True), "not without weights"
    return client


def step(client: ActorClient, count: int) -> None:
    client.stepped(transitions(count), None, [])


def fill(client: ActorClient, now: float = 0.0) -> list[Message]:
    """Step until the actor has to wait."""
    messages: list[Message] = []
    while client.may_step:
        step(client, 5)
        messages += [message for message in sent([*client.tick(now)]) if isinstance(message, Chunk)]
    return messages


def test_an_actor_steps_until_its_window_is_full_and_then_waits_for_an_acknowledgement() -> None:
    client = acting()
    assert [chunk.sequence for chunk in fill(client) if isinstance(chunk, Chunk)] == [0, 1]
    assert client.handle(Acknowledged(1, 35, 20, 10, 0), 0.1) == [SetClock(35)]
    assert client.may_step


def test_heartbeats_and_joins_tell_what_was_sent_and_what_can_still_be_sent() -> None:
    client = acting()
    fill(client)
    client.handle(Acknowledged(1, 35, 20, 10, 0), 0.5)
    assert client.tick(1.0) == [Send(Heartbeat(10))]
    client.handle(Stranger(), 1.5)
    assert sent([*client.tick(1.5)]) == [join(sequence=1, acknowledged=5)]
    assert not client.may_step


def test_the_last_message_of_an_actor_counts_all_that_it_has_sent() -> None:
    client = acting()
    step(client, 7)
    client.handle(Goodbye(True, "the run is finished"), 0.1)
    assert not client.may_step
    assert [type(message) for message in sent([*client.tick(0.1)])] == [Chunk]
    assert client.membership.leave() == [Send(Leave(7))]


def test_an_actor_that_joins_again_sends_what_the_replay_expects() -> None:
    client = acting()
    first, second = fill(client)
    client.handle(Stranger(), 0.5)
    client.tick(0.5)
    assert client.handle(WELCOME._replace(t=20, sequence=1), 0.6) == [SetClock(20), Send(second)]
    assert client.handle(WELCOME._replace(t=20, sequence=0), 0.7) == [SetClock(20), Send(first), Send(second)]


def test_nothing_is_sent_by_an_actor_that_is_no_member_but_its_request_to_join() -> None:
    client = acting()
    client.handle(Stranger(), 0.0)
    step(client, 5)
    messages = [message for now in np.arange(0.0, 9.0, 0.5).tolist() for message in sent([*client.tick(now)])]
    assert messages
    assert {type(message) for message in messages} == {Join}
    client.handle(WELCOME, 9.0)
    assert [type(message) for message in sent([*client.tick(9.0)])] == [Chunk, Heartbeat]


def test_weights_are_requested_after_a_number_of_steps() -> None:
    client = acting()
    asked = []
    for number in range(10):
        step(client, 1)
        asked += [number for given in client.tick(0.0) if isinstance(given, RequestWeights)]
        client.weights.handle(Weights(5, 3, 25, 20, None, None))
    assert asked == [2, 5, 8]


def test_weights_are_requested_when_they_are_old_by_the_updates_of_the_learner_even_without_a_step() -> None:
    client = acting()
    old = 20 + 4 * SYSTEM.weights_age  # WELCOME tells of 4 actors
    for updates, is_requested in ((old - 1, False), (old, True), (old + 50, False)):
        client.handle(Acknowledged(0, 30, updates, 10, 0), 0.0)
        requests = [given for given in client.tick(0.0) if isinstance(given, RequestWeights)]
        assert bool(requests) == is_requested, "one request at a time"
    newer = NEWEST._replace(version=6, updates=old + 49)
    client.weights.handle(newer)
    client.weights.loaded(newer)
    assert not [given for given in client.tick(0.0) if isinstance(given, RequestWeights)]


def test_a_changed_number_of_actors_changes_the_position_once() -> None:
    client = joined_actor()
    assert client.handle(Alive(31, 6, ""), 0.1) == [SetPosition(1, 6)]
    assert client.handle(Alive(32, 6, ""), 0.2) == []
    assert client.handle(WELCOME._replace(place=0, actors=6), 0.3) == [SetClock(30), SetPosition(0, 6)]


def recycle(number: int) -> Recycle:
    return Recycle(7, number, np.array([number]), transitions(1))


def test_requests_to_recycle_wait_in_their_order_and_of_too_many_the_oldest_are_dropped() -> None:
    client = acting()
    assert client.next_to_recycle() is None
    for number in range(RECYCLE_REQUESTS + 3):
        client.handle(recycle(number), 0.0)
    first = client.next_to_recycle()
    assert first is not None
    assert first.round_number == 3
    answered = answer(first)
    (message,) = sent([*client.recycled(answered)])
    assert message is answered
    numbers = []
    while (request := client.next_to_recycle()) is not None:
        numbers.append(request.round_number)
    assert numbers == list(range(4, RECYCLE_REQUESTS + 3))


def test_an_actor_that_is_told_to_stop_waits_for_the_acknowledgement_of_all_that_it_did() -> None:
    client = acting()
    step(client, 2)
    client.handle(recycle(0), 0.0)
    assert not client.is_over(0.0)
    (chunk,) = sent([*client.stop(1.0)])
    assert isinstance(chunk, Chunk)
    assert client.stop(1.1) == []
    assert not client.may_step
    assert client.next_to_recycle() is None
    assert not client.is_over(1.0 + timeouts.ACTOR_DRAIN - 0.1)
    client.handle(Acknowledged(1, 32, 20, 10, 0), 1.2)
    assert client.is_over(1.2)


@pytest.mark.parametrize("end", ["time", "goodbye"])
def test_an_actor_does_not_wait_for_ever(end: str) -> None:
    client = acting()
    step(client, 2)
    client.stop(1.0)
    if end == "goodbye":
        client.handle(Goodbye(False, "stopped"), 1.1)
    assert client.is_over(1.1) == (end == "goodbye")
    assert client.is_over(1.0 + timeouts.ACTOR_DRAIN)


def test_an_actor_that_has_done_nothing_stops_at_once() -> None:
    client = ActorClient(join(), SYSTEM, 0.0)
    assert client.stop(0.0) == []
    assert client.is_over(0.0)


def test_a_refusal_ends_an_actor_and_what_is_not_for_it_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    client = acting()
    assert client.handle(Refused("a chunk is wrong"), 0.0) == [Rejected("a chunk is wrong")]
    assert not caplog.records
    assert client.handle(SaveRequest(7, 1), 0.0) == []
    assert "SaveRequest" in caplog.text


# The learner.


def batch(number: int) -> Batch:
    return Batch(7, number, EMPTY, np.zeros(0, np.float32), transitions(0))


def joined_learner(now: float = 0.0) -> LearnerClient:
    client = LearnerClient(join("learner", "learner"), SYSTEM, now)
    assert [type(message) for message in sent([*client.tick(0, now)])] == [Join]
    assert client.handle(WELCOME, now) == []
    return client


def training(now: float = 0.0) -> LearnerClient:
    client = joined_learner(now)
    assert client.tick(0, now) == [Send(Heartbeat(0))], "no batch before there is a state to start from"
    assert client.handle(STATE, now) == [Work(STATE)]
    return client


def test_a_learner_starts_from_the_state_of_the_replay_once_and_then_requests_batches() -> None:
    client = training()
    assert client.tick(0, 0.1) == [REQUEST] * 4
    assert client.handle(STATE, 0.2) == [], "it knows more than the replay by now"
    first = batch(1)
    (work,) = client.handle(first, 0.3)
    assert isinstance(work, Work)
    assert work.item is first
    assert client.tick(1, 0.3) == []
    assert client.tick(0, 0.3) == [REQUEST]


def test_a_state_that_was_lost_on_its_way_comes_with_another_welcome() -> None:
    client = joined_learner()
    messages = []
    for now in np.arange(0.0, 8.0, 0.5).tolist():
        client.handle(Alive(30, 1, ""), now)
        messages += [(now, type(message)) for message in sent([*client.tick(0, now)])]
    assert (5.5, Join) in messages
    assert SampleRequest not in {kind for _, kind in messages}


def test_a_learner_that_joins_again_requests_its_batches_again() -> None:
    client = training()
    client.tick(0, 0.1)
    client.handle(Stranger(), 0.2)
    assert [type(message) for message in sent([*client.tick(0, 0.2)])] == [Join]
    client.handle(WELCOME, 0.3)
    assert client.tick(1, 0.3) == [REQUEST] * 3


def test_a_learner_without_a_state_is_not_asked_for_it() -> None:
    client = joined_learner()
    assert client.handle(SaveRequest(7, 1), 0.0) == []
    client.handle(STATE, 0.0)
    assert client.handle(SaveRequest(7, 1), 0.0) == [Work(SaveRequest(7, 1))]


def priorities(*names: int) -> Priorities:
    return Priorities(7, np.array(names), np.ones(len(names)))


def test_priorities_travel_together_and_before_anything_that_came_later() -> None:
    client = training()
    client.updated(priorities(1, 2), version=101)
    client.updated(priorities(3), version=102)
    report = Learning(2, 2, 0.1, 0.2, 0.3, 0.4)
    client.send(report)
    merged, told, *requests = client.tick(4, 0.1)
    assert isinstance(merged, Send)
    assert isinstance(merged.message, Priorities)
    assert merged.message.identities.tolist() == [1, 2, 3]
    assert told == Send(report)
    assert requests == []
    assert client.flush() == []


def test_only_a_state_is_sent_again_when_the_socket_did_not_take_it() -> None:
    client = training()
    for told in (priorities(1), Learning(2, 2, 0.1, 0.2, 0.3, 0.4), STATE):
        client.send(told)
    for message in sent([*client.tick(0, 0.1)]):
        client.undelivered(message)
    assert sent([*client.tick(0, 0.2)]) == [STATE, *[SampleRequest()] * 4], "and requests for batches"


def test_a_learner_serves_weights_also_while_it_is_no_member() -> None:
    client = LearnerClient(join("learner", "learner"), SYSTEM, 0.0)
    assert client.handle_request(b"a", WeightsRequest(-1, -1)) == []
    assert client.published(NEWEST) == [SendWeights(b"a", NEWEST)]
    client.updated(priorities(1), version=6)
    assert client.handle_request(b"a", WeightsRequest(5, 3)) == [PublishWeights()]


# The evaluator.


def test_an_evaluator_follows_the_clock_and_requests_weights_when_it_wants_them() -> None:
    client = EvaluatorClient(join("evaluator", "evaluator"), SYSTEM, 0.0)
    assert [type(message) for message in sent([*client.tick(0.0)])] == [Join]
    assert client.handle(WELCOME, 0.0) == []
    assert client.tick(0.0) == [Send(Heartbeat(0)), ConnectToLearner("tcp://l:1")]
    client.handle(Alive(55, 4, "tcp://l:1"), 0.5)
    assert client.membership.t == 55
    client.weights.want()
    assert client.tick(0.5) == [RequestWeights(WeightsRequest(-1, -1))]
    client.undelivered(Heartbeat(0))
    assert client.tick(0.6) == [Send(Heartbeat(0))]
