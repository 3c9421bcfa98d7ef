"""The end of a run: finished, stopped, or failed; in order, or with processes that do not leave."""

from __future__ import annotations

import pytest

from dpsr_apex import timeouts
from dpsr_apex.protocol.instructions import Instruction, Kill, Release, Report, Terminate
from dpsr_apex.protocol.supervision import Phase
from tests.unit.protocol.supervised_run import CRASH, IN_ORDER, KILLED, LOGS, SupervisedRun

MEMBERS = ("learner", "actor-0", "actor-1")
GRACE, LEAVE, WRITE = timeouts.LEAVE_GRACE, timeouts.PROCESS_LEAVE, timeouts.WRITE_CHECKPOINT


@pytest.fixture
def run() -> SupervisedRun:
    """One that runs, with two actors."""
    run = SupervisedRun(actors=2)
    run.begin()
    return run


def told(instructions: list[Instruction]) -> list[str]:
    """Names of those that get SIGTERM."""
    return [one.name for one in instructions if isinstance(one, Terminate)]


def assert_over(run: SupervisedRun) -> None:
    assert run.phase is Phase.OVER
    assert run.processes == {}
    assert run.kept == set()
    assert run.tick(1_000) == run.stop() == []


# The replay has ended in order.


def finished(run: SupervisedRun) -> None:
    """Let the replay end in order and all members leave."""
    run.exit("replay", IN_ORDER)
    for name in MEMBERS:
        run.exit(name, IN_ORDER)


def test_members_leave_after_the_replay_and_the_evaluator_stays(run: SupervisedRun) -> None:
    assert run.exit("replay", IN_ORDER) == [Release("replay")]
    assert run.phase is Phase.FINISHING
    run.advance(LEAVE + 1)
    for name in MEMBERS:
        assert run.times(Terminate(name)) == [GRACE], "they were told by the replay"
        assert run.times(Kill(name)) == [LEAVE]
    assert list(run.processes) == ["evaluator"]
    assert not run.processes["evaluator"].is_told


def test_a_member_that_crashes_while_it_leaves_is_not_started_again(run: SupervisedRun) -> None:
    run.exit("replay", IN_ORDER)
    assert run.exit("learner", CRASH) == [Release("learner")]
    run.exit("actor-0", IN_ORDER)
    run.answer()  # one that was on its way
    run.advance(timeouts.LONGEST_BACKOFF)
    assert list(run.processes) == ["evaluator"]


def test_a_member_that_waits_to_be_restarted_is_not_started_any_more(run: SupervisedRun) -> None:
    run.exit("actor-1", CRASH)
    assert Release("actor-1") in run.exit("replay", IN_ORDER)
    run.advance(timeouts.LONGEST_BACKOFF)
    assert run.starts.count("actor-1") == 1


def test_a_run_ends_when_the_last_evaluation_is_recorded(run: SupervisedRun) -> None:
    finished(run)
    assert run.record() == [Report("Training is done; the last evaluation is running")]
    assert run.record() == []
    run.exit("evaluator", IN_ORDER)
    run.record(evaluated=True)
    assert run.supervision.failure is None
    assert_over(run)


def test_an_evaluator_that_does_not_end_after_the_last_evaluation_is_stopped(run: SupervisedRun) -> None:
    finished(run)
    assert told(run.record(evaluated=True)) == ["evaluator"]
    run.advance(LEAVE + 1)
    assert run.times(Kill("evaluator")) == [LEAVE]
    assert_over(run)


def test_nothing_is_decided_before_the_members_have_left(run: SupervisedRun) -> None:
    run.exit("replay", IN_ORDER)
    assert run.record(evaluated=True) == []
    assert run.phase is Phase.FINISHING
    for name in MEMBERS:
        run.exit(name, IN_ORDER)
    assert told(run.record(evaluated=True)) == ["evaluator"]


def test_an_evaluator_that_crashes_in_the_last_evaluation_is_restarted(run: SupervisedRun) -> None:
    finished(run)
    run.exit("evaluator", CRASH)
    run.record()
    run.advance(timeouts.FIRST_BACKOFF)
    assert run.starts[-1] == "evaluator"


def test_a_run_fails_when_the_evaluator_is_given_up_before_the_last_evaluation(run: SupervisedRun) -> None:
    finished(run)
    for _ in range(3):
        run.exit("evaluator", CRASH)
        run.advance(timeouts.LONGEST_BACKOFF)
    run.record()
    assert run.failure.process == "evaluator"
    assert str(LOGS / "evaluator.log") in run.failure.message
    assert_over(run)


def test_a_run_fails_when_the_evaluator_ends_without_the_last_evaluation(run: SupervisedRun) -> None:
    run.exit("evaluator", IN_ORDER)
    finished(run)
    run.record()
    assert run.failure.process == "evaluator"
    assert str(LOGS / "evaluator.log") in run.failure.message
    assert_over(run)


def test_a_run_whose_replay_ended_before_it_was_finished_stops_without_an_evaluation(run: SupervisedRun) -> None:
    finished(run)
    assert told(run.record(finished=False)) == ["evaluator"]
    run.exit("evaluator", IN_ORDER)
    assert run.supervision.failure is None
    assert_over(run)


def test_the_last_evaluation_can_be_stopped(run: SupervisedRun) -> None:
    finished(run)
    run.record()
    assert told(run.stop()) == ["evaluator"]
    run.exit("evaluator", IN_ORDER)
    assert_over(run)


# Training is done, and the replay stays for its callbacks until the last evaluation.


def test_a_replay_that_awaits_the_last_evaluation_is_not_reported_as_stalled(run: SupervisedRun) -> None:
    assert run.execute(run.supervision.trained(run.now)) == [Report("Training is done; the last evaluation is running")]
    assert run.execute(run.supervision.trained(run.now)) == []
    for name in MEMBERS:
        run.exit(name, IN_ORDER)
    before = len(run.log)
    run.advance(10 * timeouts.NO_PROGRESS)
    assert run.log[before:] == []
    assert run.phase is Phase.RUNNING
    run.exit("evaluator", IN_ORDER)
    run.exit("replay", IN_ORDER)
    run.record(evaluated=True)
    assert run.supervision.failure is None
    assert_over(run)


def test_a_replay_that_awaits_the_last_evaluation_is_stopped_when_the_evaluator_is_given_up(run: SupervisedRun) -> None:
    run.execute(run.supervision.trained(run.now))
    for _ in range(3):
        run.exit("evaluator", CRASH)
        run.advance(timeouts.LONGEST_BACKOFF)
    assert run.supervision.failure is not None
    assert run.supervision.failure.process == "evaluator"
    assert run.processes["replay"].is_told


# A run is stopped.


def test_the_replay_and_the_evaluator_are_told_first(run: SupervisedRun) -> None:
    assert told(run.stop()) == ["replay", "evaluator"]
    run.advance(GRACE + 1)
    for name in (*MEMBERS, "evaluator"):  # the replay tells the members
        run.exit(name, IN_ORDER)
    run.exit("replay", IN_ORDER)
    assert run.reports == []
    assert_over(run)


def test_members_that_do_not_leave_after_the_replay_has_ended_get_sigterm_and_are_killed(run: SupervisedRun) -> None:
    run.stop()
    run.advance(2.0)
    run.exit("replay", IN_ORDER)
    run.exit("learner", IN_ORDER)
    run.advance(LEAVE)
    for name in ("actor-0", "actor-1"):
        assert run.times(Terminate(name)) == [2.0 + GRACE]
        assert run.times(Kill(name)) == [LEAVE]
    assert_over(run)


def test_a_replay_may_write_its_last_checkpoint_for_long_and_nothing_else_runs_meanwhile(run: SupervisedRun) -> None:
    run.stop()
    run.advance(LEAVE + 0.5)
    assert list(run.processes) == ["replay"]
    assert run.times(Terminate("actor-0")) == [LEAVE - GRACE]
    run.advance(WRITE - 1)
    assert list(run.processes) == ["replay"]
    run.exit("replay", IN_ORDER)
    assert run.reports == []
    assert_over(run)


def test_a_replay_that_does_not_end_is_killed_and_that_is_reported(run: SupervisedRun) -> None:
    run.stop()
    run.advance(LEAVE + WRITE + 1)
    assert run.times(Kill("replay")) == [LEAVE + WRITE]
    assert run.times(Terminate("replay")) == [0.0]
    assert run.reports == [f"replay {KILLED.cause}; its last output ({LOGS / 'replay.log'}):\n{KILLED.output}"]
    assert_over(run)


def test_a_replay_that_crashes_while_it_stops_is_reported_and_not_restarted(run: SupervisedRun) -> None:
    run.stop()
    run.exit("replay", CRASH)
    assert run.reports == [f"replay {CRASH.cause}; its last output ({LOGS / 'replay.log'}):\n{CRASH.output}"]
    run.advance(LEAVE + 1)
    assert run.times(Terminate("learner")) == [GRACE]
    assert run.starts.count("replay") == 1
    assert_over(run)


def test_where_the_replay_is_down_everybody_is_told_at_once_and_again(run: SupervisedRun) -> None:
    run.exit("replay", CRASH)
    assert told(run.stop()) == ["learner", "actor-0", "evaluator", "actor-1"]
    run.advance(LEAVE + 1)
    assert run.times(Terminate("learner")) == [0.0, GRACE]
    assert run.times(Kill("learner")) == [LEAVE]
    assert_over(run)


def test_a_run_can_be_stopped_before_its_replay_was_started() -> None:
    run = SupervisedRun()
    assert run.stop() == []
    assert_over(run)


def test_a_run_can_be_stopped_while_its_replay_starts() -> None:
    run = SupervisedRun()
    run.tick()
    assert told(run.stop()) == ["replay"]
    run.execute(run.supervision.head_found(run.now))
    run.exit("replay", IN_ORDER)
    assert run.starts == ["replay"]
    assert_over(run)


def test_processes_that_wait_to_be_restarted_are_not_started_in_a_run_that_stops(run: SupervisedRun) -> None:
    run.exit("actor-1", CRASH)
    run.exit("learner", IN_ORDER)
    assert Release("actor-1") in run.stop()
    run.answer()
    run.advance(LEAVE + WRITE + 1)
    assert run.starts.count("actor-1") == run.starts.count("learner") == 1
    assert_over(run)


def test_a_retired_actor_keeps_its_earlier_deadline_in_a_run_that_stops(run: SupervisedRun) -> None:
    run.answer(planned=1)
    run.tick()
    run.advance(LEAVE - 2)
    run.stop()
    run.advance(LEAVE + 1)
    assert run.times(Kill("actor-1")) == [LEAVE]
    assert run.times(Kill("actor-0")) == [LEAVE - 2 + LEAVE]


def test_a_run_is_stopped_once(run: SupervisedRun) -> None:
    run.stop()
    run.now += 5
    assert run.stop() == []
    run.advance(LEAVE)
    assert run.times(Kill("learner")) == [LEAVE]


def test_a_run_that_failed_is_stopped_like_any_other(run: SupervisedRun) -> None:
    for _ in range(3):
        instructions = run.exit("learner", CRASH)
        run.tick(timeouts.LONGEST_BACKOFF)
    assert told(instructions) == ["replay", "evaluator"]
    assert run.supervision.failure is not None
    for name in ("actor-0", "actor-1", "evaluator", "replay"):
        run.exit(name, IN_ORDER)
    assert_over(run)
