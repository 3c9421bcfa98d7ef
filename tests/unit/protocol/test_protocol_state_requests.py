"""When the learner is asked for its state: once for each checkpoint, and once more at the very end."""

from __future__ import annotations

from dataclasses import replace

from dpsr_apex import timeouts
from dpsr_apex.protocol.replay_service import Outgoing
from dpsr_apex.protocol.state_requests import Answer, StateRequests
from dpsr_apex.wire.messages import Gone, LearnerState, Leave, SampleRequest, SaveRequest, SetRate
from tests.unit.protocol.watched_service import (
    ERA,
    KeyedService,
    ask,
    chunk,
    enter,
    give_state,
    join,
    restarted,
    service,
    state_of,
    tick_on,
)

WAIT, HAS_COME = Answer(False, []), Answer(True, [], is_new=True)
WITH_THE_NEWEST = Answer(True, [])


def test_a_checkpoint_waits_for_a_state_that_comes_after_it_was_due() -> None:
    replay = service()
    states = StateRequests(replay)
    enter(replay, "learner-0")
    give_state(replay, 0)
    assert states.for_checkpoint(0.0) == Answer(False, ask(1))
    assert states.for_checkpoint(1.0) == WAIT
    give_state(replay, 1)
    assert states.for_checkpoint(2.0) == HAS_COME
    assert states.for_checkpoint(100.0) == Answer(False, ask(2)), "the next one needs a state of its own"


def test_a_checkpoint_waits_for_a_missing_learner_only_for_a_while() -> None:
    replay = service()
    states = StateRequests(replay)
    assert states.for_checkpoint(100.0) == WAIT
    enter(replay, "learner-0", now=101.0)
    assert states.for_checkpoint(102.0) == Answer(False, ask(1))
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
    give_state(replay, 0)
    asked = []
    for number in range(1, 13):
        replay.handle(b"learner-0", SampleRequest(), 0.0)
        if states.for_crash():
            asked.append(number)
            give_state(replay, number)
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
        if states.for_crash():
            asked.append(number)
            give_state(replay, max(number - 12, 0))
    assert asked == [5, 10, 15, 20, 25, 30]


def test_the_age_of_the_newest_state_is_known_after_a_restart_too() -> None:
    replay = service()
    assert "has not sent any" in replay.learner.describe_state(0.0)
    enter(replay, "actor-0", "learner-0")
    replay.handle(b"actor-0", chunk(0, 3), 5.0)
    give_state(replay, 1, now=10.0)
    replay.handle(b"actor-0", chunk(1, 2), 20.0)
    assert (replay.t, replay.learner.state_t) == (5, 3)
    assert "t = 3, which is 20 s old" in replay.learner.describe_state(30.0)
    successor = restarted(replay)
    assert successor.learner.state_t == 3


def finished() -> KeyedService:
    """A run of 12 steps with its 3 updates, whose learner has answered request 1 before the last of them."""
    replay = service(total_steps=12)
    enter(replay, "actor-0", "learner-0")
    replay.handle(b"actor-0", chunk(0, 12), 0.0)
    for batches in range(3):
        assert StateRequests(replay).for_end() == WAIT
        if batches == 2:
            replay.request_save()
            give_state(replay, 2)
        replay.handle(b"learner-0", SampleRequest(), 0.0)
    assert replay.finished
    return replay


def test_a_run_ends_with_a_state_that_was_requested_after_the_last_update() -> None:
    replay = finished()
    states = StateRequests(replay)
    assert states.for_end() == Answer(False, ask(2))
    assert states.for_end() == WAIT
    give_state(replay, 3)
    assert states.for_end() == HAS_COME


def test_a_state_that_was_requested_for_a_checkpoint_after_the_last_update_is_the_last_one() -> None:
    replay = finished()
    states = StateRequests(replay)
    assert states.for_checkpoint(0.0) == Answer(False, ask(2))
    assert states.for_end() == WAIT
    give_state(replay, 3)
    assert states.for_end() == HAS_COME


def test_a_state_that_was_requested_before_the_last_update_is_not_the_last_one() -> None:
    replay = service(total_steps=12)
    states = StateRequests(replay)
    enter(replay, "actor-0", "learner-0")
    replay.handle(b"actor-0", chunk(0, 12), 0.0)
    for _ in range(2):
        replay.handle(b"learner-0", SampleRequest(), 0.0)
    replay.request_save()
    replay.handle(b"learner-0", SampleRequest(), 0.0)
    assert states.for_end() == WAIT
    give_state(replay, 2)
    assert states.for_end() == Answer(False, ask(2))


def test_the_second_answer_to_a_request_that_was_repeated_is_not_the_last_one() -> None:
    replay = service(total_steps=12)
    states, patience = StateRequests(replay), replay.config.system.lease / 2
    enter(replay, "actor-0", "learner-0")
    replay.handle(b"actor-0", chunk(0, 12), 0.0)
    replay.request_save()
    replay.tick(0.0)
    assert replay.tick(patience) == ask(1)
    second = state_of(replay, 2)
    give_state(replay, 1, now=patience)
    for _ in range(3):
        replay.handle(b"learner-0", SampleRequest(), patience)
    assert states.for_end() == Answer(False, ask(2))
    replay.handle(b"learner-0", second, patience)
    assert states.for_end() == WAIT
    give_state(replay, 3, now=patience)
    assert states.for_end() == HAS_COME


def test_a_request_that_was_lost_does_not_delay_the_end() -> None:
    replay = finished()
    states, patience = StateRequests(replay), replay.config.system.lease / 2
    assert states.for_end() == Answer(False, ask(2))
    replay.tick(0.0)
    assert replay.tick(patience) == ask(2)
    give_state(replay, 3, now=patience)
    assert states.for_end() == HAS_COME


def test_the_answer_to_a_request_from_before_a_learner_has_joined_again_is_not_the_last_one() -> None:
    replay = finished()
    states, lease = StateRequests(replay), replay.config.system.lease
    replay.request_save()
    late = state_of(replay, 2)
    tick_on(replay, 0.0, lease + 1)
    assert replay.sessions.learner is None
    enter(replay, "learner-0", now=lease + 1)
    assert states.for_end() == Answer(False, ask(3))
    replay.handle(b"learner-0", late, lease + 2)
    assert states.for_end() == WAIT
    give_state(replay, 3, now=lease + 3)
    assert states.for_end() == HAS_COME


def test_the_answer_to_a_request_of_the_replay_before_this_one_is_not_the_last_one() -> None:
    replay = restarted(finished(), era=ERA + 1)
    states = StateRequests(replay)
    enter(replay, "learner-0")
    assert replay.finished, "its learner has lost nothing"
    assert states.for_end() == Answer(False, [Outgoing(b"learner-0", SaveRequest(ERA + 1, 1))])
    replay.handle(b"learner-0", LearnerState('{"updates": 2}', b"1", ERA, 1), 0.0)
    assert states.for_end() == WAIT
    give_state(replay, 3)
    assert states.for_end() == HAS_COME


def test_the_state_of_a_learner_that_is_asked_to_stop_is_not_the_last_one() -> None:
    replay = finished()
    states = StateRequests(replay)
    assert states.for_end() == Answer(False, ask(2))
    replay.handle(b"learner-0", LearnerState('{"updates": 2}', b"1"), 0.0)
    assert states.for_end() == WAIT, "it has not trained on its last batch yet"
    replay.handle(b"learner-0", Leave(0), 0.0)
    assert states.for_end() == WAIT
    replay.handle(b"learner-0", join("learner-0", "learner", 2), 0.0)
    assert replay.rate.batches == 2, "its last update is due again"


def test_a_state_from_before_the_last_batches_of_free_running_is_not_the_last_one() -> None:
    replay = service(total_steps=12, steps_per_update=0)
    enter(replay, "actor-0", "learner-0")
    replay.handle(b"actor-0", chunk(0, 12), 0.0)
    states = StateRequests(replay)
    assert states.for_end() == Answer(False, ask(1))
    replay.handle(b"learner-0", SampleRequest(), 0.0)
    replay.handle(b"x", SetRate(4), 0.0)
    give_state(replay, 0)
    assert states.for_end() == Answer(False, ask(2))


def test_a_free_running_run_ends_although_batches_are_still_sent() -> None:
    replay = service(total_steps=12, steps_per_update=0)
    enter(replay, "actor-0", "learner-0")
    replay.handle(b"actor-0", chunk(0, 12), 0.0)
    states = StateRequests(replay)
    for expected in (Answer(False, ask(1)), WAIT, WAIT):
        assert states.for_end() == expected
        replay.handle(b"learner-0", SampleRequest(), 0.0)
    give_state(replay, 0)
    assert states.for_end() == HAS_COME


def test_a_free_running_run_with_a_new_learner_does_not_wait_for_the_updates_of_the_former_one() -> None:
    replay = service(total_steps=12, steps_per_update=0)
    enter(replay, "actor-0", "learner-0")
    replay.handle(b"actor-0", chunk(0, 12), 0.0)
    for _ in range(3):
        replay.handle(b"learner-0", SampleRequest(), 0.0)
    states = StateRequests(replay)
    assert states.for_end() == Answer(False, ask(1))
    replay.handle(b"x", Gone("learner-0"), 0.0)
    replay.handle(b"learner-0", join("learner-0", "learner", 2), 0.0)
    assert states.for_end() == Answer(False, ask(2))
    give_state(replay, 0)
    assert states.for_end() == HAS_COME


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
    states.for_end()
    replay.handle(b"x", Gone("learner-0"), 0.0)
    assert states.for_end() == WAIT
    enter(replay, "learner-0")
    assert replay.rate.batches == 3, "the same process has lost nothing"
    assert states.for_end() == Answer(False, ask(3))
