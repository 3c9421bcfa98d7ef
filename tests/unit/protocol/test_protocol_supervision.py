"""The supervision of a run that continues: starting, restarting, the planned number of actors, and reports."""

from __future__ import annotations

import pytest

from dpsr_apex import timeouts
from dpsr_apex.protocol.instructions import Kill, Release, Report, Start, Tell, Terminate
from dpsr_apex.protocol.restarts import MAX_NODE_LOSSES, REFUSED
from dpsr_apex.protocol.supervision import Phase
from dpsr_apex.wire.messages import Gone
from tests.unit.protocol.supervised_run import CRASH, IN_ORDER, LOGS, LOSS, SupervisedRun

LATER = timeouts.LONGEST_BACKOFF


@pytest.fixture
def run() -> SupervisedRun:
    """One that runs, with two actors."""
    run = SupervisedRun(actors=2)
    run.begin()
    return run


def crash_until_given_up(run: SupervisedRun, name: str) -> int:
    """Let a process crash as soon as it is started, until it is not restarted; return how often it crashed."""
    crashes = 0
    while name in run.processes:
        run.exit(name)
        crashes += 1
        run.tick(LATER)
        assert crashes < 100
    return crashes


# The start.


def test_the_replay_is_started_first_and_alone() -> None:
    run = SupervisedRun(actors=3)
    run.advance(2 * timeouts.NO_PROGRESS)
    assert run.starts == ["replay"]
    run.execute(run.supervision.head_found(run.now))
    assert run.starts == ["replay", "learner", "actor-0", "evaluator", "actor-1", "actor-2"]
    assert run.phase is Phase.RUNNING


def test_a_replay_that_takes_long_to_start_is_reported() -> None:
    run = SupervisedRun()
    run.advance(4 * timeouts.NO_PROGRESS + 1)
    assert run.reports == [f"Waiting for the replay to load its checkpoint ({s} s so far)" for s in (30, 60, 120)]


def test_a_replay_that_has_no_resources_yet_does_not_load() -> None:
    run = SupervisedRun()
    run.has_resources = False
    run.advance(4 * timeouts.NO_PROGRESS)
    assert run.reports == []


@pytest.mark.parametrize("code", [0, 1, 2, -9])
def test_a_replay_that_does_not_start_ends_the_run_with_its_output(code: int) -> None:
    run = SupervisedRun()
    run.tick()
    run.exit("replay", CRASH._replace(code=code))
    assert run.failure[:2] == ("replay", "ended with exit code 1: ValueError: 1")
    assert CRASH.output in run.failure.message
    assert run.phase is Phase.OVER
    assert run.kept == set()


def test_a_replay_whose_node_is_lost_while_it_starts_is_started_elsewhere() -> None:
    run = SupervisedRun()
    run.tick()
    for _ in range(MAX_NODE_LOSSES - 1):
        run.exit("replay", LOSS)
        run.tick(timeouts.NODE_LOST_BACKOFF / 2)
        assert "replay" not in run.processes
        run.tick(timeouts.NODE_LOST_BACKOFF / 2)
        assert "replay" in run.processes
    run.exit("replay", LOSS)
    assert run.failure[:2] == ("replay", "was lost")
    assert run.phase is Phase.OVER


# Restarts.


@pytest.mark.parametrize("name", ["learner", "actor-1", "evaluator"])
def test_a_member_that_crashes_is_reported_to_the_head_and_to_the_user_and_restarted(
    run: SupervisedRun, name: str
) -> None:
    text = f"{name} ended with exit code 1; its last output ({LOGS / name}.log):\n{CRASH.output}"
    assert run.exit(name) == [Tell(Gone(name)), Report(text)]
    run.tick(timeouts.FIRST_BACKOFF * 0.9)
    assert name not in run.processes
    assert name in run.kept, "its resources are kept for its next start"
    run.tick(timeouts.FIRST_BACKOFF * 0.1)
    assert run.starts[-1] == name


def test_the_output_of_the_first_crash_in_a_row_is_shown_and_no_other(run: SupervisedRun) -> None:
    for seconds in (1.0, 1.0, timeouts.STABLE_AFTER + 1, 1.0):
        run.exit("actor-0", CRASH._replace(seconds=seconds))
        run.tick(LATER)
    crashes = [text for text in run.reports if text.startswith("actor-0 ended")]
    assert [CRASH.output in text for text in crashes] == [True, False, True, False]


def test_the_same_output_is_not_shown_again_when_the_last_evaluation_is_tried(run: SupervisedRun) -> None:
    run.exit("evaluator")
    run.exit("replay", IN_ORDER)
    for output in (CRASH.output, CRASH.output, "    KeyError: 2"):
        run.tick(LATER)
        run.exit("evaluator", CRASH._replace(output=output))
    shown = [text for text in run.reports if text.startswith("evaluator ended")]
    assert [CRASH.output in text for text in shown] == [True, False, False, False]


def test_another_output_is_shown_when_the_last_evaluation_is_tried(run: SupervisedRun) -> None:
    run.exit("evaluator")
    run.exit("replay", IN_ORDER)
    run.tick(LATER)
    run.exit("evaluator", CRASH._replace(output="    KeyError: 2"))
    assert "KeyError: 2" in run.reports[-1]


def test_a_replay_that_crashes_is_restarted_and_nothing_is_told_to_it(run: SupervisedRun) -> None:
    run.exit("replay")
    run.tick(timeouts.FIRST_BACKOFF)
    assert run.starts[-1] == "replay"
    assert run.gone == []
    assert run.phase is Phase.RUNNING


@pytest.mark.parametrize("name", ["replay", "learner"])
def test_a_run_whose_replay_or_learner_is_given_up_fails(run: SupervisedRun, name: str) -> None:
    assert crash_until_given_up(run, name) == 3
    assert run.failure[:2] == (name, "ended with exit code 1: ValueError: 1")
    assert f"{LOGS / name}.log" in run.failure.message
    assert run.phase is Phase.STOPPING
    assert name not in run.kept


def test_a_run_fails_when_every_actor_is_given_up(run: SupervisedRun) -> None:
    assert crash_until_given_up(run, "actor-0") == 5
    assert "actor-0 failed 5 times in a row and is not restarted" in "\n".join(run.reports)
    assert actors(run) == ["actor-1"], "the run continues with the other one"
    assert "actor-0" not in run.kept
    crash_until_given_up(run, "actor-1")
    assert run.failure[:2] == ("actor-1", "ended with exit code 1: ValueError: 1")
    assert str(LOGS / "actor-1.log") in run.failure.message
    assert run.phase is Phase.STOPPING


def test_a_run_continues_without_an_evaluator(run: SupervisedRun) -> None:
    assert crash_until_given_up(run, "evaluator") == 3
    assert run.phase is Phase.RUNNING


def test_an_evaluator_that_was_given_up_is_restarted_for_the_last_evaluation(run: SupervisedRun) -> None:
    for _ in range(2):
        run.exit("evaluator")
        run.tick(LATER)
    run.exit("evaluator", CRASH._replace(code=REFUSED, output=""))  # by a replay that is ending
    run.exit("replay", IN_ORDER)
    run.tick()
    assert "evaluator" in run.processes
    assert run.record() == []  # others are still leaving
    assert run.phase is Phase.FINISHING


# Members that a replay has told to leave, which was restarted since.


@pytest.mark.parametrize("name", ["actor-0", "learner", "evaluator"])
def test_a_member_that_ended_in_order_is_started_again_when_the_run_continues(run: SupervisedRun, name: str) -> None:
    run.exit(name, IN_ORDER)
    assert name not in run.kept
    run.tick(LATER)
    assert name not in run.processes, "nobody knows yet that the run continues"
    run.answer()
    run.tick()
    assert run.starts[-1] == name
    assert crash_until_given_up(run, name) in (3, 5), "to end in order is not a crash"


def test_an_answer_that_may_be_older_than_the_end_proves_nothing(run: SupervisedRun) -> None:
    run.exit("actor-0", IN_ORDER)
    run.now += timeouts.STOP_ANSWER
    run.answer()
    run.tick(LATER)
    assert "actor-0" not in run.processes


def test_members_of_a_run_that_ends_are_not_started_again(run: SupervisedRun) -> None:
    run.exit("actor-0", IN_ORDER)
    run.now += LATER
    run.answer(ending=True)
    run.tick(LATER)
    assert "actor-0" not in run.processes


# The planned number of actors.


def actors(run: SupervisedRun) -> list[str]:
    return sorted(name for name, process in run.processes.items() if process.role == "actor" and not process.is_told)


def test_actors_are_added_when_more_are_planned(run: SupervisedRun) -> None:
    run.answer(planned=4)
    run.tick()
    assert actors(run) == ["actor-0", "actor-1", "actor-2", "actor-3"]


def test_the_last_actors_leave_when_fewer_are_planned(run: SupervisedRun) -> None:
    run.answer(planned=1)
    assert run.tick() == [Terminate("actor-1")]
    assert run.exit("actor-1", IN_ORDER) == [Release("actor-1"), Tell(Gone("actor-1"))]
    run.answer()
    run.advance(LATER)
    assert actors(run) == ["actor-0"]


def test_an_actor_that_does_not_leave_is_killed_before_its_name_is_used_again(run: SupervisedRun) -> None:
    run.answer(planned=1)
    run.tick()
    run.answer(planned=3)
    run.advance(timeouts.PROCESS_LEAVE - 1)
    assert actors(run) == ["actor-0"], "not even under another name: the new ones take the names in order"
    run.advance(2)
    assert run.times(Kill("actor-1")) == [timeouts.PROCESS_LEAVE]
    assert actors(run) == ["actor-0", "actor-1", "actor-2"]
    assert run.reports == [], "this is not a crash"


def test_an_actor_that_waits_to_be_restarted_leaves_at_once(run: SupervisedRun) -> None:
    run.exit("actor-1")
    run.answer(planned=1)
    assert run.tick() == [Release("actor-1"), Tell(Gone("actor-1"))]
    run.tick(LATER)
    assert actors(run) == ["actor-0"]


def test_a_retired_actor_may_crash(run: SupervisedRun) -> None:
    run.answer(planned=1)
    run.tick()
    run.exit("actor-1", CRASH)
    run.advance(LATER)
    assert actors(run) == ["actor-0"]
    assert "actor-1" not in "".join(run.reports)


def test_a_new_plan_starts_actors_again_that_were_given_up(run: SupervisedRun) -> None:
    crash_until_given_up(run, "actor-0")
    run.answer()
    run.tick(LATER)
    assert actors(run) == ["actor-1"], "the plan is the same"
    run.answer(planned=3)
    run.tick()
    assert actors(run) == ["actor-0", "actor-1", "actor-2"]
    assert crash_until_given_up(run, "actor-0") == 5


def test_the_plan_of_a_run_that_ends_is_not_followed(run: SupervisedRun) -> None:
    run.answer(planned=5, ending=True)
    run.tick()
    assert actors(run) == ["actor-0", "actor-1"]


# No progress.


def test_no_progress_is_reported_after_30_60_and_120_seconds_with_its_reason(run: SupervisedRun) -> None:
    for _ in range(130):
        run.answer(t=1_234, waiting="Actors paused: the learner is behind.")
        run.advance(1)
    stalls = [f"No progress for {s} s at t = 1,234. Actors paused: the learner is behind." for s in (30, 60, 120)]
    assert run.reports == stalls


def test_progress_begins_the_count_again(run: SupervisedRun) -> None:
    for t in range(10):
        run.answer(t=t)
        run.advance(timeouts.NO_PROGRESS - 1)
    assert run.reports == []


def test_a_replay_that_does_not_answer_is_the_reason(run: SupervisedRun) -> None:
    run.answer(t=7, waiting="an old reason")
    run.advance(timeouts.NO_PROGRESS + 1)
    assert run.reports == ["No progress for 30 s at t = 7. The replay has not answered for 30 s."]


def test_no_progress_without_a_reason_says_so(run: SupervisedRun) -> None:
    for _ in range(31):
        run.answer()
        run.advance(1)
    assert run.reports == ["No progress for 30 s at t = 0. No process reports what it is waiting for."]


def test_everything_is_started_under_its_role(run: SupervisedRun) -> None:
    assert {process.role for process in run.processes.values()} == {"replay", "learner", "evaluator", "actor"}
    assert [one for _, one in run.log if isinstance(one, Start)][2] == Start("actor-0", "actor")
