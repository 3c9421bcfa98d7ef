"""How a replay process ends: when the run is finished, and when it is asked to."""

from __future__ import annotations

import pytest

from dpsr_apex import timeouts
from dpsr_apex.protocol.run_end import Phase, RunEnd
from dpsr_apex.protocol.state_requests import StateRequests
from dpsr_apex.wire.messages import Goodbye, Leave, SampleRequest
from tests.unit.protocol.watched_service import KeyedService, ask, chunk, enter, give_state, only, service


class Ending:
    """A run of 12 steps with 3 updates, with an actor and a learner that has sent its first state."""

    def __init__(self, inserted: int, batches: int) -> None:
        self.replay: KeyedService = service(total_steps=12)
        self.end = RunEnd(self.replay, StateRequests(self.replay))
        enter(self.replay, "actor-0", "learner-0")
        self.replay.handle(b"actor-0", chunk(0, inserted), 0.0)
        give_state(self.replay, 0)
        for _ in range(batches):
            self.replay.handle(b"learner-0", SampleRequest(), 0.0)

    def goodbyes(self, is_asked: bool, now: float) -> list[bool]:
        """Whether each member is told that the run is finished."""
        return [message.finished for message in only(self.end.tick(is_asked, now), Goodbye)]


def test_a_run_ends_by_itself_with_the_state_after_its_last_update() -> None:
    run = Ending(12, batches=3)
    assert run.end.tick(False, 0.0) == ask(1)
    assert run.end.tick(False, 100.0) == []
    give_state(run.replay, 3)
    assert run.goodbyes(False, 101.0) == [True, True]
    assert (run.end.phase, run.end.is_finished) == (Phase.LEAVING, True)


@pytest.mark.parametrize(("inserted", "batches"), [(12, 3), (12, 2), (8, 1)])
def test_a_run_that_is_stopped_waits_for_a_state_after_all_batches_so_far(inserted: int, batches: int) -> None:
    run = Ending(inserted, batches)
    assert run.end.tick(True, 0.0) == ask(1)
    assert run.end.tick(True, timeouts.LEARNER_STATE - 0.1) == []
    give_state(run.replay, batches)
    assert run.goodbyes(True, timeouts.LEARNER_STATE - 0.1) == [batches == 3] * 2
    assert run.end.is_finished == (batches == 3)


def test_a_state_that_was_requested_before_the_stop_is_not_the_last_one() -> None:
    run = Ending(8, batches=0)
    run.replay.request_save()
    run.replay.handle(b"learner-0", SampleRequest(), 0.0)
    assert run.end.tick(True, 0.0) == []
    give_state(run.replay, 0)
    assert run.end.tick(True, 1.0) == ask(2)
    give_state(run.replay, 1)
    assert run.goodbyes(True, 2.0) == [False, False]


def test_a_state_after_all_batches_that_has_come_already_is_the_last_one() -> None:
    run = Ending(8, batches=1)
    run.replay.request_save()
    give_state(run.replay, 1)
    assert run.goodbyes(True, 0.0) == [False, False]


@pytest.mark.parametrize("inserted", [12, 8])
def test_without_an_answer_of_the_learner_a_stop_ends_and_the_run_is_not_finished(inserted: int) -> None:
    run = Ending(inserted, batches=1)
    run.end.tick(True, 0.0)
    assert run.goodbyes(True, timeouts.LEARNER_STATE) == [False, False]
    assert not run.end.is_finished
    assert "did not answer" in run.replay.notes.newest[-1].text


def test_without_a_learner_nothing_is_awaited() -> None:
    run = Ending(12, batches=3)
    run.end.tick(False, 0.0)
    run.replay.handle(b"learner-0", Leave(0), 0.0)
    assert run.goodbyes(True, 1.0) == [False]


def test_the_last_checkpoint_is_written_when_all_members_have_left_or_after_a_while() -> None:
    run = Ending(8, batches=1)
    run.end.tick(True, 0.0)
    assert not run.end.may_save(100.0)
    give_state(run.replay, 1)
    run.end.tick(True, 1.0)
    assert not run.end.may_save(1.0)
    assert run.end.may_save(1.0 + timeouts.MEMBERS_LEAVE)
    for name in (b"actor-0", b"learner-0"):
        run.replay.handle(name, Leave(0), 1.0)
    assert run.end.may_save(1.0)
    assert run.end.tick(True, 1.0) == []


def test_states_are_requested_for_a_crash_only_while_the_run_continues() -> None:
    run = Ending(8, batches=1)
    run.replay.config = service(total_steps=12, learner_state_period=1).config
    assert run.end.tick(False, 0.0) == ask(1)
    give_state(run.replay, 1)
    run.replay.handle(b"learner-0", Leave(0), 0.0)
    run.end.tick(True, 0.0)
    assert run.end.phase is Phase.LEAVING
    assert run.end.tick(False, 0.0) == []
