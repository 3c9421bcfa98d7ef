"""Resources for the processes of a run: who waits is reported, and actors are preempted for the replay or learner."""

from __future__ import annotations

from dpsr_apex import timeouts
from dpsr_apex.protocol.instructions import FindResources, Instruction, Kill, Release, Report, Resources, Start, Tell
from dpsr_apex.wire.messages import Gone
from tests.unit.protocol.supervised_run import CRASH, IN_ORDER, KILLED, SupervisedRun

SOON = timeouts.PLACEMENT_WAIT / 2
LATE = timeouts.PLACEMENT_WAIT + 0.1
PREEMPTED_FOR = 2 * timeouts.PLACEMENT_WAIT
NOTHING_FREE = "4 CPUs (0 free)"


def lacking(*roles: str, **preemptible: list[str]) -> Resources:
    return Resources(frozenset(roles), preemptible, NOTHING_FREE)


def started(*waiting: str, actors: int = 3) -> SupervisedRun:
    """A run of which these processes wait for resources."""
    run = SupervisedRun(actors)
    run.begin()
    for name in waiting:
        run.place(name, False)
    return run


def questions(instructions: list[Instruction]) -> list[Instruction]:
    return [one for one in instructions if isinstance(one, FindResources)]


def test_resources_are_looked_up_for_those_that_have_waited_for_long() -> None:
    run = started("actor-1", "evaluator")
    assert questions(run.tick(SOON)) == [], "they may be about to start"
    assert questions(run.tick(LATE)) == [FindResources(frozenset({"actor", "evaluator"}), ("actor-0", "actor-2"))]


def test_who_waits_is_reported_once() -> None:
    run = started("actor-1", "actor-2")
    run.found = lacking("actor", actor=["actor-0"])
    run.advance(4 * timeouts.PLACEMENT_WAIT)
    assert run.reports == [f"Waiting for resources: actor-1 and 1 more. The cluster has {NOTHING_FREE}"]
    assert run.processes["actor-0"].is_killed is False, "no actor is preempted for another one"


def test_who_waits_again_is_reported_again() -> None:
    run = started("actor-1")
    run.found = lacking("actor")
    run.tick(LATE)
    run.place("actor-1")
    run.tick(1)
    run.place("actor-1", False)
    run.tick(1)
    assert run.reports == [f"Waiting for resources: actor-1. The cluster has {NOTHING_FREE}"] * 2


def test_a_process_for_which_there_are_resources_is_about_to_start() -> None:
    run = started("actor-1", "learner")
    run.found = lacking()
    run.advance(2 * LATE)
    assert run.reports == []
    assert not any(process.is_told for process in run.processes.values())


def test_an_actor_is_preempted_for_the_learner_and_no_other_is_started_meanwhile() -> None:
    run = started("learner", "actor-2", actors=5)
    run.tick(SOON)
    run.exit("actor-3", CRASH)  # to be started again in a second
    run.exit("actor-4", IN_ORDER)
    run.found = lacking("learner", "actor", learner=["actor-1"])
    before = len(run.log)
    run.now += LATE - SOON
    run.execute([FindResources(frozenset({"learner"}), ())])
    assert [one for _, one in run.log[before + 1 :]] == [
        Report(f"Waiting for resources: learner and 1 more. The cluster has {NOTHING_FREE}"),
        Kill("actor-1"),
        Kill("actor-2"),
        Release("actor-3"),
        Tell(Gone("actor-1")),
        Report("Preempted actor-1 to free resources for the learner"),
    ]
    run.place("learner")
    before = len(run.starts)
    run.advance(PREEMPTED_FOR / 2)
    run.answer()
    run.advance(PREEMPTED_FOR / 2 - 0.1)
    assert run.starts[before:] == []
    run.advance(0.2)
    assert run.starts[before:] == ["actor-1", "actor-2", "actor-3", "actor-4"]
    assert "was killed" not in "".join(run.reports), "to be preempted is not a crash"


def test_a_preempted_actor_has_not_crashed() -> None:
    run = started("learner")
    run.found = lacking("learner", learner=["actor-2"])
    run.tick(LATE)
    run.exit("actor-2", KILLED)
    run.place("learner")
    run.advance(PREEMPTED_FOR)
    for _ in range(4):
        run.exit("actor-2", CRASH)
        run.advance(timeouts.LONGEST_BACKOFF)
        assert "actor-2" in run.processes, "it may crash as often as before"


def test_actors_are_not_preempted_again_before_the_learner_could_take_their_resources() -> None:
    run = started("learner")
    run.found = lacking("learner", learner=["actor-2"])
    run.tick(LATE)
    run.exit("actor-2", KILLED)
    run.found = lacking("learner", learner=["actor-1"])
    run.tick(SOON)
    assert not run.processes["actor-1"].is_killed
    run.tick(LATE - SOON)
    assert run.processes["actor-1"].is_killed


def test_an_actor_that_is_not_gone_yet_is_not_killed_again() -> None:
    run = started("learner")
    run.found = lacking("learner", learner=["actor-2"])
    run.tick(LATE)
    run.tick(LATE)
    assert len(run.times(Kill("actor-2"))) == 1


def test_an_actor_that_is_told_to_leave_is_not_preempted() -> None:
    run = started("learner", "actor-1")
    run.found = lacking("learner", learner=["actor-0"])
    run.answer(planned=1)
    assert questions(run.tick(LATE)) == [FindResources(frozenset({"learner", "actor"}), ("actor-0",))]
    assert [name for name, process in run.processes.items() if process.is_killed] == ["actor-0"]


def test_the_replay_comes_before_the_learner() -> None:
    run = started("learner", "replay")
    run.found = lacking("learner", "replay", learner=["actor-1"], replay=["actor-2"])
    run.tick(LATE)
    assert [name for name, process in run.processes.items() if process.is_killed] == ["actor-2"]


def test_nothing_is_preempted_where_that_would_not_free_enough() -> None:
    run = started("learner")
    run.found = lacking("learner", learner=[])
    run.advance(2 * LATE)
    assert run.reports == [f"Waiting for resources: learner. The cluster has {NOTHING_FREE}"]
    assert not any(process.is_told for process in run.processes.values())


def test_an_actor_that_was_given_up_is_not_started_by_a_preemption() -> None:
    run = started("learner")
    while "actor-2" in run.processes:
        run.exit("actor-2", CRASH)
        run.tick(timeouts.LONGEST_BACKOFF)
    run.found = lacking("learner", learner=["actor-1"])
    run.tick(LATE)
    assert run.processes["actor-1"].is_killed
    run.advance(2 * PREEMPTED_FOR)
    assert "actor-2" not in run.processes


def test_a_preempted_actor_may_be_retired_before_it_is_gone() -> None:
    run = started("learner")
    run.found = lacking("learner", learner=["actor-2"])
    run.tick(LATE)
    run.answer(planned=2)
    run.tick()
    assert run.exit("actor-2", KILLED) == [Tell(Gone("actor-2"))]
    run.advance(2 * PREEMPTED_FOR)
    assert "actor-2" not in run.processes


def test_a_replay_that_starts_waits_for_resources_too() -> None:
    run = SupervisedRun()
    run.has_resources = False
    run.found = lacking("replay")
    run.advance(2 * LATE)
    assert run.starts == [Start("replay", "replay").name]
    assert run.reports == [f"Waiting for resources: replay. The cluster has {NOTHING_FREE}"]
