"""When the learner is asked for its state: once for each checkpoint, and once more at the very end."""

from __future__ import annotations

from dpsr_apex.protocol.flow import Outgoing
from dpsr_apex.protocol.replay_service import ReplayService
from dpsr_apex.protocol.state_requests import Answer, StateRequests
from dpsr_apex.wire.messages import Gone, LearnerState, SampleRequest, SaveRequest
from tests.unit.protocol.watched_service import chunk, enter, service

ASK = [Outgoing(b"learner-0", SaveRequest())]
WAIT, HAS_COME = Answer(False, []), Answer(True, [])


def state(replay: ReplayService, updates: int) -> None:
    replay.handle(b"learner-0", LearnerState(f'{{"updates": {updates}}}', b"1"), 0.0)


def test_a_checkpoint_waits_for_a_learner_and_its_state_and_uses_each_state_once() -> None:
    replay = service()
    states = StateRequests(replay)
    assert states.for_checkpoint() == WAIT
    enter(replay, "learner-0")
    assert states.for_checkpoint() == Answer(False, ASK)
    assert states.for_checkpoint() == WAIT
    state(replay, 0)
    assert states.for_checkpoint() == HAS_COME
    assert states.for_checkpoint() == Answer(False, ASK), "the next one needs a state of its own"


def test_a_state_that_came_for_another_reason_will_do_for_a_checkpoint() -> None:
    replay = service()
    enter(replay, "learner-0")
    state(replay, 0)
    assert StateRequests(replay).for_checkpoint() == HAS_COME


def finished() -> ReplayService:
    """A run of 12 steps with its 3 updates, whose learner has sent a state before the last of them."""
    replay = service(total_steps=12)
    enter(replay, "actor-0", "learner-0")
    replay.handle(b"actor-0", chunk(0, 12), 0.0)
    for _ in range(3):
        assert StateRequests(replay).for_end() == WAIT
        state(replay, 2)
        replay.handle(b"learner-0", SampleRequest(), 0.0)
    assert replay.finished
    return replay


def test_a_run_ends_with_a_state_that_was_requested_after_the_last_update() -> None:
    replay = finished()
    states = StateRequests(replay)
    assert states.for_end() == Answer(False, ASK)
    assert states.for_end() == WAIT
    state(replay, 3)
    assert states.for_end() == HAS_COME


def test_a_state_that_was_requested_before_the_end_is_not_the_last_one() -> None:
    replay = finished()
    states = StateRequests(replay)
    replay.request_save()
    assert states.for_end() == WAIT
    state(replay, 2)
    assert states.for_end() == Answer(False, ASK)


def test_a_learner_that_ends_before_its_last_state_is_waited_for_until_it_has_made_up_for_it() -> None:
    replay = finished()
    states = StateRequests(replay)
    states.for_end()
    replay.handle(b"x", Gone("learner-0"), 0.0)
    assert states.for_end() == WAIT
    enter(replay, "learner-0")
    assert replay.rate.batches == 3, "the same process has lost nothing"
    assert states.for_end() == Answer(False, ASK)
