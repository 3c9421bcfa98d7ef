"""Weights: requested one at a time and again when they do not come, published when somebody waits for them."""

from __future__ import annotations

import logging
from itertools import pairwise

import pytest

from dpsr_apex import timeouts
from dpsr_apex.protocol.client_instructions import (
    ConnectToLearner,
    LoadWeights,
    PublishWeights,
    RequestWeights,
    SendWeights,
    WeightsInstruction,
)
from dpsr_apex.protocol.weights import UNKNOWN, WeightsPublisher, WeightsSubscription
from dpsr_apex.wire.messages import Stranger, Weights, WeightsRequest

LEARNER = "tcp://learner:1"
OTHER = "tcp://learner:2"
FIRST = RequestWeights(WeightsRequest(UNKNOWN, UNKNOWN))


def weights(version: int, target_version: int = 0, t: int = 0) -> Weights:
    return Weights(
        version, target_version, t, version, f"online {version}".encode(), f"target {target_version}".encode()
    )


def following() -> WeightsSubscription:
    subscription = WeightsSubscription(0.0)
    assert subscription.follow(LEARNER) == [ConnectToLearner(LEARNER)]
    return subscription


def answer(subscription: WeightsSubscription, given: Weights) -> None:
    assert subscription.handle(given) == [LoadWeights(given)]
    subscription.loaded(given)


# The subscription.


def test_nothing_is_requested_before_it_is_wanted_and_a_learner_is_known() -> None:
    subscription = WeightsSubscription(0.0)
    subscription.want()
    assert subscription.tick(0.0) == []
    assert subscription.follow("") == [], "that is no learner"
    assert subscription.follow(LEARNER) == [ConnectToLearner(LEARNER)]
    assert subscription.follow(LEARNER) == []
    assert subscription.tick(0.0) == [FIRST]
    assert following().tick(0.0) == []


def test_one_request_is_open_at_a_time_and_names_what_the_client_has() -> None:
    subscription = following()
    subscription.want()
    assert subscription.tick(0.0) == [FIRST]
    subscription.want()
    assert subscription.tick(1.0) == []
    answer(subscription, weights(5, 3, t=70))
    assert (subscription.t, subscription.answers) == (70, 1)
    assert subscription.tick(2.0) == [RequestWeights(WeightsRequest(5, 3))], "wanted again meanwhile"
    answer(subscription, Weights(5, 3, 75, 5, None, None))
    assert (subscription.t, subscription.answers) == (75, 2)
    assert subscription.tick(3.0) == []


def test_an_overdue_answer_is_requested_again_over_a_new_socket_after_twice_the_time() -> None:
    subscription = following()
    subscription.want()
    subscription.tick(0.0)
    asked_at, now = [0.0], 0.0
    while len(asked_at) < 4:
        now += 0.5
        if given := subscription.tick(now):
            assert given == [ConnectToLearner(LEARNER), FIRST]
            asked_at.append(now)
    pauses = [later - earlier for earlier, later in pairwise(asked_at)]
    assert pauses == [timeouts.WEIGHTS_ANSWER * 2**n + 0.5 for n in range(3)]
    answer(subscription, weights(1))
    subscription.want()
    subscription.tick(now)
    assert subscription.tick(now + timeouts.WEIGHTS_ANSWER) == []
    assert len(subscription.tick(now + timeouts.WEIGHTS_ANSWER + 0.5)) == 2, "an answer has restored the patience"


def test_a_request_that_the_socket_did_not_take_is_repeated_at_the_next_tick() -> None:
    subscription = following()
    subscription.want()
    for now in (0.0, 0.1):
        assert subscription.tick(now) == [FIRST]
        subscription.undelivered()
    assert subscription.tick(0.2) == [FIRST]
    assert subscription.tick(0.3) == []


@pytest.mark.parametrize("is_open", [True, False])
def test_another_learner_is_followed_and_asked_what_the_former_one_was(is_open: bool) -> None:
    subscription = following()
    subscription.want()
    subscription.tick(0.0)
    if not is_open:
        answer(subscription, weights(8, 4))
    assert subscription.follow(OTHER) == [ConnectToLearner(OTHER)]
    assert subscription.tick(1.0) == ([FIRST] if is_open else [])


def test_a_learner_that_is_gone_is_not_asked_and_its_request_goes_to_the_next_one() -> None:
    subscription = following()
    subscription.want()
    subscription.tick(0.0)
    assert subscription.follow("") == [ConnectToLearner("")]
    assert subscription.tick(1000.0) == []
    subscription.follow(OTHER)
    assert subscription.tick(1000.0) == [FIRST]


def test_a_learner_that_cannot_be_reached_is_not_asked() -> None:
    subscription = following()
    subscription.unreachable()
    subscription.want()
    assert subscription.tick(0.0) == []
    subscription.follow(OTHER)
    assert subscription.tick(0.0) == [FIRST]


@pytest.mark.parametrize("useless", [None, Stranger()])
def test_an_answer_without_weights_closes_the_request(useless: Stranger | None) -> None:
    subscription = following()
    subscription.want()
    subscription.tick(0.0)
    assert subscription.handle(useless) == []
    assert (subscription.answers, subscription.t) == (1, None)
    subscription.want()
    assert subscription.tick(0.1) == [FIRST]


def test_weights_that_could_not_be_loaded_are_requested_again() -> None:
    subscription = following()
    subscription.want()
    subscription.tick(0.0)
    subscription.handle(weights(5))
    subscription.want()
    assert subscription.tick(0.1) == [FIRST]


def test_what_is_waited_for_is_logged_with_longer_and_longer_pauses(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    subscription, logged = WeightsSubscription(0.0), []
    for now in range(100):
        before = len(caplog.records)
        subscription.log_waiting(float(now))
        logged += [now] * (len(caplog.records) - before)
        if now == 30:
            subscription.follow(LEARNER)
    assert logged == [10, 20, 40, 80]
    assert LEARNER not in caplog.records[1].getMessage()
    assert LEARNER in caplog.records[2].getMessage()
    subscription.loaded(weights(1))
    subscription.log_waiting(1000.0)
    assert len(caplog.records) == 4


# The publisher.


def test_who_asks_before_there_are_weights_is_answered_with_the_first_ones() -> None:
    publisher = WeightsPublisher()
    assert publisher.handle(b"a", WeightsRequest(UNKNOWN, UNKNOWN)) == []
    assert publisher.handle(b"b", WeightsRequest(UNKNOWN, UNKNOWN)) == []
    first = weights(100)
    assert publisher.published(first) == [SendWeights(b"a", first), SendWeights(b"b", first)]
    assert publisher.published(weights(101)) == [], "each is answered once"


def test_who_asks_while_the_published_ones_are_the_newest_is_answered_at_once() -> None:
    publisher = WeightsPublisher()
    publisher.published(weights(100, 90))
    assert publisher.handle(b"a", WeightsRequest(99, 80)) == [SendWeights(b"a", weights(100, 90))]


@pytest.mark.parametrize(
    ("has", "gets"), [((100, 80), (None, b"target 90")), ((99, 90), (b"online 100", None)), ((100, 90), (None, None))]
)
def test_only_what_is_newer_is_sent(has: tuple[int, int], gets: tuple[bytes | None, bytes | None]) -> None:
    publisher = WeightsPublisher()
    publisher.published(weights(100, 90))
    (sent,) = publisher.handle(b"a", WeightsRequest(*has))
    assert isinstance(sent, SendWeights)
    assert (sent.weights.online, sent.weights.target) == gets
    assert (sent.weights.version, sent.weights.target_version) == (100, 90)


def test_newer_weights_are_published_once_for_all_who_wait_for_them() -> None:
    publisher = WeightsPublisher()
    publisher.published(weights(100))
    publisher.updated(101)
    request = WeightsRequest(100, 0)
    assert publisher.handle(b"a", request) == [PublishWeights()]
    assert publisher.handle(b"b", request) == [], "that is under way"
    publisher.updated(102)
    sent = [one for one in publisher.published(weights(102)) if isinstance(one, SendWeights)]
    assert [(one.address, one.weights.version) for one in sent] == [(b"a", 102), (b"b", 102)]
    publisher.updated(103)
    assert publisher.handle(b"a", request) == [PublishWeights()]


def test_who_asks_twice_is_answered_once_by_the_last_request() -> None:
    publisher = WeightsPublisher()
    publisher.handle(b"a", WeightsRequest(UNKNOWN, UNKNOWN))
    publisher.handle(b"a", WeightsRequest(UNKNOWN, 0))
    (sent,) = publisher.published(weights(100))
    assert isinstance(sent, SendWeights)
    assert (sent.weights.online, sent.weights.target) == (b"online 100", None)


def test_a_client_and_the_publisher_agree_over_many_updates() -> None:
    publisher, subscription = WeightsPublisher(), following()
    publisher.published(weights(0))
    for version in range(1, 50):
        publisher.updated(version)
        subscription.want()
        given: list[WeightsInstruction] = subscription.tick(float(version))
        assert len(given) == 1
        assert isinstance(given[0], RequestWeights)
        assert publisher.handle(b"client", given[0].request) == [PublishWeights()]
        (sent,) = publisher.published(weights(version, version // 10, t=3 * version))
        assert isinstance(sent, SendWeights)
        answer(subscription, sent.weights)
        assert (sent.weights.target is None) == (version > 1 and version % 10 != 0)
        assert subscription.t == 3 * version
