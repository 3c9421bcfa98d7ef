"""When the learner is asked for its state: once for each checkpoint, and once more at the very end."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from dpsr_apex import timeouts
from dpsr_apex.protocol.flow import Outgoing
from dpsr_apex.protocol.run_end import RunEnd
from dpsr_apex.protocol.state_requests import Answer, StateRequests
from dpsr_apex.wire.messages import Gone, LearnerState, SampleRequest, SaveRequest, SetRate
from tests.unit.protocol.watched_service import KeyedService, chunk, enter, restarted, service, tick_on

ASK = [Outgoing(b"learner-0", SaveRequest())]
WAIT, HAS_COME = Answer(False, []), Answer(True, [], is_new=True)
WITH_THE_NEWEST = Answer(True, [])


def state(replay: KeyedService, updates: int, now: float = 0.0) -> None:
    replay.handle(b"learner-0", LearnerState(f'{{"updates": {updates}}}', b"1"), now)


def test_a_checkpoint_waits_for_a_state_that_comes_after_it_was_due() -> None:
    replay = service()
    states = StateRequests(replay)
    enter(replay, "learner-0")
    state(replay, 0)
    assert states.for_checkpoint(0.0) == Answer(False, ASK)
    assert states.for_checkpoint(1.0) == WAIT
    state(replay, 1)
    assert states.for_checkpoint(2.0) == HAS_COME
    assert states.for_checkpoint(100.0) == Answer(False, ASK), "the next one needs a state of its own"


def test_a_checkpoint_waits_for_a_missing_learner_only_for_a_while() -> None:
    replay = service()
    states = StateRequests(replay)
    assert states.for_checkpoint(100.0) == WAIT
    enter(replay, "learner-0", now=101.0)
    assert states.for_checkpoint(102.0) == Answer(False, ASK)
    assert states.for_checkpoint(100.0 + timeouts.CHECKPOINT_STATE) == WITH_THE_NEWEST


def test_a_frozen_learner_delays_every_checkpoint_by_the_same_time() -> None:
    replay = service()
    states = StateRequests(replay)
    enter(replay, "learner-0")
    for since in (0.0, 50.0, 100.0):
        assert not states.for_checkpoint(since).may_proceed
        assert not states.for_checkpoint(since + timeouts.CHECKPOINT_STATE - 0.1).may_proceed
        assert states.for_checkpoint(since + timeouts.CHECKPOINT_STATE) == WITH_THE_NEWEST


def test_the_state_is_saved_after_every_period_of_updates() -> None:
    replay = service(steps_per_update=0)
    replay.config = replace(replay.config, run=replace(replay.config.run, learner_state_period=5))
    states = StateRequests(replay)
    enter(replay, "actor-0", "learner-0")
    replay.handle(b"actor-0", chunk(0, 10), 0.0)
    state(replay, 0)
    asked = []
    for number in range(1, 13):
        replay.handle(b"learner-0", SampleRequest(), 0.0)
        if states.for_crash() == ASK:
            asked.append(number)
            state(replay, number)
    assert asked == [5, 10]
    replay.config = replace(replay.config, run=replace(replay.config.run, learner_state_period=0))
    for _ in range(20):
        replay.handle(b"learner-0", SampleRequest(), 0.0)
        assert states.for_crash() == []


def test_batches_that_were_lost_with_a_link_do_not_lead_to_a_request_after_every_state() -> None:
    replay = service(steps_per_update=0, learner_state_period=5)
    states = StateRequests(replay)
    enter(replay, "actor-0", "learner-0")
    replay.handle(b"actor-0", chunk(0, 10), 0.0)
    asked = []
    for number in range(1, 31):
        replay.handle(b"learner-0", SampleRequest(), 0.0)
        if states.for_crash() == ASK:
            asked.append(number)
            state(replay, max(number - 12, 0))
    assert asked == [5, 10, 15, 20, 25, 30]


def test_the_age_of_the_newest_state_is_known_after_a_restart_too() -> None:
    replay = service()
    assert "has not sent any" in replay.learner.describe_state(0.0)
    enter(replay, "actor-0", "learner-0")
    replay.handle(b"actor-0", chunk(0, 3), 5.0)
    state(replay, 1, now=10.0)
    replay.handle(b"actor-0", chunk(1, 2), 20.0)
    assert (replay.t, replay.learner.state_t) == (5, 3)
    assert "t = 3, which is 20 s old" in replay.learner.describe_state(30.0)
    successor = restarted(replay)
    assert successor.learner.state_t == 3


def finished() -> KeyedService:
    """A run of 12 steps with its 3 updates, whose learner has sent a state before the last of them."""
    replay = service(total_steps=12)
    enter(replay, "actor-0", "learner-0")
    replay.handle(b"actor-0", chunk(0, 12), 0.0)
    for _ in range(3):
        assert StateRequests(replay).for_end(0.0) == WAIT
        state(replay, 2)
        replay.handle(b"learner-0", SampleRequest(), 0.0)
    assert replay.finished
    return replay


def test_a_run_ends_with_a_state_that_was_requested_after_the_last_update() -> None:
    replay = finished()
    states = StateRequests(replay)
    assert states.for_end(0.0) == Answer(False, ASK)
    assert states.for_end(0.0) == WAIT
    state(replay, 3)
    assert states.for_end(0.0) == HAS_COME


def test_a_state_that_was_requested_before_the_end_is_not_the_last_one() -> None:
    replay = finished()
    states = StateRequests(replay)
    replay.request_save()
    assert states.for_end(0.0) == WAIT
    state(replay, 2)
    assert states.for_end(0.0) == Answer(False, ASK)


def test_the_answer_to_a_request_that_was_repeated_is_not_the_last_one() -> None:
    replay = finished()
    states, patience = StateRequests(replay), replay.config.system.lease / 2
    replay.request_save()
    replay.tick(0.0)
    assert replay.tick(patience) == ASK
    state(replay, 1, now=patience)
    assert states.for_end(patience) == Answer(False, ASK)
    state(replay, 2, now=patience + 1)
    assert states.for_end(patience + 1) == WAIT, "it answers the repeated request"
    state(replay, 3, now=patience + 2)
    assert states.for_end(patience + 2) == HAS_COME


def test_a_request_that_was_lost_delays_the_end_for_a_while() -> None:
    replay = finished()
    states, patience = StateRequests(replay), replay.config.system.lease / 2
    assert states.for_end(0.0) == Answer(False, ASK)
    replay.tick(0.0)
    assert replay.tick(patience) == ASK
    state(replay, 3, now=patience)
    assert states.for_end(2 * patience - 0.1) == WAIT
    assert states.for_end(2 * patience) == HAS_COME


def test_requests_from_before_a_learner_has_joined_again_may_still_be_answered() -> None:
    replay = finished()
    states, lease = StateRequests(replay), replay.config.system.lease
    replay.request_save()
    tick_on(replay, 0.0, lease + 1)
    assert replay.sessions.learner is None
    enter(replay, "learner-0", now=lease + 1)
    assert states.for_end(lease + 1) == Answer(False, ASK)
    state(replay, 2, now=lease + 2)
    assert states.for_end(lease + 2) == WAIT, "it answers a request from before the lease has expired"
    state(replay, 3, now=lease + 3)
    state(replay, 3, now=lease + 3)
    assert states.for_end(lease + 3) == HAS_COME


def test_a_state_from_before_the_last_batches_of_free_running_is_not_the_last_one() -> None:
    replay = service(total_steps=12, steps_per_update=0)
    enter(replay, "actor-0", "learner-0")
    replay.handle(b"actor-0", chunk(0, 12), 0.0)
    states = StateRequests(replay)
    assert states.for_end(0.0) == Answer(False, ASK)
    replay.handle(b"learner-0", SampleRequest(), 0.0)
    replay.handle(b"x", SetRate(4), 0.0)
    state(replay, 0)
    assert states.for_end(0.0) == Answer(False, ASK)


def test_a_free_running_run_ends_although_a_request_was_lost_and_batches_are_still_sent() -> None:
    replay = service(total_steps=12, steps_per_update=0, learner_state_period=1)
    enter(replay, "actor-0", "learner-0")
    replay.handle(b"actor-0", chunk(0, 12), 0.0)
    end, patience = RunEnd(replay, StateRequests(replay)), replay.config.system.lease / 2
    replay.request_save()
    replay.tick(0.0)
    replay.tick(patience)  # it was asked again, but the first request was lost
    state(replay, 0, now=patience)
    assert end.tick(False, patience) == ASK
    for now in np.arange(patience + 0.1, 3 * patience, 0.1).tolist():
        replay.handle(b"learner-0", SampleRequest(), now)
        for out in end.tick(False, now):
            if isinstance(out.message, SaveRequest):
                state(replay, replay.rate.batches, now)
        if now < patience + 0.15:
            state(replay, replay.rate.batches, now)
    assert end.is_finished


def test_a_learner_that_joins_again_is_asked_once() -> None:
    replay = finished()
    replay.request_save()
    replay.tick(0.0)
    patience = replay.config.system.lease / 2
    enter(replay, "learner-0", now=patience)
    assert replay.tick(patience) == []


def test_a_learner_that_ends_before_its_last_state_is_waited_for_until_it_has_made_up_for_it() -> None:
    replay = finished()
    states = StateRequests(replay)
    states.for_end(0.0)
    replay.handle(b"x", Gone("learner-0"), 0.0)
    assert states.for_end(0.0) == WAIT
    enter(replay, "learner-0")
    assert replay.rate.batches == 3, "the same process has lost nothing"
    assert states.for_end(0.0) == Answer(False, ASK)
