"""Whatever happens to the processes of a run, in whatever order: what always holds of its supervision."""

from __future__ import annotations

from collections import defaultdict

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from dpsr_apex import timeouts
from dpsr_apex.protocol.instructions import Resources
from dpsr_apex.protocol.restarts import LIMITS, MAX_NODE_LOSSES, REFUSED, Exit
from dpsr_apex.protocol.supervision import Phase
from tests.unit.protocol.supervised_run import IN_ORDER, PaperProcess, SupervisedRun

STEP = timeouts.SUPERVISOR_POLL
MAX_ACTORS = 4
NAMES = st.sampled_from(["replay", "learner", "evaluator", *(f"actor-{index}" for index in range(MAX_ACTORS))])
FAILURES = st.builds(
    Exit,
    code=st.sampled_from([1, REFUSED, -9]),
    cause=st.just("ended"),
    seconds=st.sampled_from([1.0, timeouts.STABLE_AFTER + 1]),
    is_lost=st.booleans(),
)
ACTORS = st.integers(1, MAX_ACTORS)


class GivenUp:
    """Counts failures in a row by name, in the simplest way."""

    def __init__(self) -> None:
        self._exits: dict[str, list[Exit]] = defaultdict(list)

    def failed(self, name: str, exit: Exit) -> None:
        self._exits[name].append(exit)

    def reset(self, *names: str) -> None:
        for name in names:
            self._exits.pop(name, None)

    def __contains__(self, name: str) -> bool:
        """Whether it has failed too often, at any time since it was reset."""
        exits = self._exits[name]
        return any(self._is_over_limit(name, exits[:end]) for end in range(1, len(exits) + 1))

    def _is_over_limit(self, name: str, exits: list[Exit]) -> bool:
        stable = [i for i, exit in enumerate(exits) if exit.seconds > timeouts.STABLE_AFTER and exit.code != REFUSED]
        in_a_row = exits[stable[-1] :] if stable else exits
        losses = sum(exit.is_lost for exit in in_a_row)
        return losses >= MAX_NODE_LOSSES or len(in_a_row) - losses >= LIMITS[name.split("-")[0]].crashes


class SupervisedRuns(RuleBasedStateMachine):
    """Runs to whose processes anything may happen, and which are stopped in the end."""

    @initialize(actors=ACTORS, is_running=st.booleans())
    def begin(self, actors: int, is_running: bool) -> None:
        self.run = SupervisedRun(actors)
        self.largest_plan = actors
        self.given_up = GivenUp()
        self.head_was_found = False
        self.run.on_start = self.check_start
        self.run.tick()
        if is_running:
            self.the_head_is_found()

    def process(self, name: str) -> PaperProcess | None:
        return self.run.processes.get(name)

    # What may happen.

    @rule(seconds=st.sampled_from([STEP, 1.0, 6.0, 12.0, 40.0]))
    def time_passes(self, seconds: float) -> None:
        self.run.advance(seconds)

    @precondition(lambda self: self.run.phase is Phase.STARTING and "replay" in self.run.processes)
    @rule()
    def the_head_is_found(self) -> None:
        self.head_was_found = True
        self.run.execute(self.run.supervision.head_found(self.run.now))

    @rule(name=NAMES, exit=FAILURES)
    def a_process_fails(self, name: str, exit: Exit) -> None:
        if process := self.process(name):
            if not process.is_told:
                self.given_up.failed(name, exit)
            self.run.exit(name, exit)

    @rule(name=NAMES, exit=FAILURES, times=st.integers(2, MAX_NODE_LOSSES + 1))
    def a_process_fails_whenever_it_is_started(self, name: str, exit: Exit, times: int) -> None:
        for _ in range(times):
            self.a_process_fails(name, exit)
            self.run.advance(timeouts.LONGEST_BACKOFF + 1)

    @rule(name=NAMES)
    def a_process_ends_in_order(self, name: str) -> None:
        if self.process(name):
            self.run.exit(name, IN_ORDER)
            if name == "replay":  # the last evaluation has a restart budget of its own
                self.given_up.reset("evaluator")

    @rule(name=NAMES, is_placed=st.booleans())
    def resources_come_and_go(self, name: str, is_placed: bool) -> None:
        if self.process(name):
            self.run.place(name, is_placed)

    @rule(lacking=st.frozensets(st.sampled_from(sorted(LIMITS))), victims=st.lists(NAMES, unique=True, max_size=2))
    def resources_are_short(self, lacking: frozenset[str], victims: list[str]) -> None:
        actors = [name for name in victims if name.startswith("actor") and self.process(name)]
        self.run.found = Resources(lacking, dict.fromkeys(lacking, actors), "")

    @rule(role=st.sampled_from(["replay", "learner"]), actor=st.integers(0, MAX_ACTORS - 1))
    def an_actor_is_preempted(self, role: str, actor: int) -> None:
        if self.process(role) and self.process(f"actor-{actor}"):
            self.run.place(role, False)
            self.run.found = Resources(frozenset({role}), {role: [f"actor-{actor}"]}, "")
            self.run.advance(2 * timeouts.PLACEMENT_WAIT)

    @precondition(lambda self: self.run.phase is Phase.RUNNING and "replay" in self.run.processes)
    @rule(planned=ACTORS)
    def the_head_answers(self, planned: int) -> None:
        if planned != self.run.planned:
            self.largest_plan = max(self.largest_plan, planned)
            self.given_up.reset(*(f"actor-{index}" for index in range(MAX_ACTORS)))
        self.run.answer(planned=planned)
        self.run.tick()

    @precondition(lambda self: self.run.phase is Phase.RUNNING and "replay" in self.run.processes)
    @rule(plans=st.lists(ACTORS, min_size=2, max_size=3))
    def the_plan_changes_faster_than_actors_leave(self, plans: list[int]) -> None:
        for planned in plans:
            self.the_head_answers(planned)
            self.run.advance(1.0)

    @precondition(lambda self: "replay" in self.run.processes)
    @rule()
    def the_head_says_that_the_run_ends(self) -> None:
        self.run.answer(ending=True)

    @rule(finished=st.booleans(), evaluated=st.booleans())
    def the_record_is_read(self, finished: bool, evaluated: bool) -> None:
        self.run.record(finished=finished, evaluated=evaluated)

    @rule(chance=st.integers(0, 9))
    def the_user_stops_the_run(self, chance: int) -> None:
        if chance == 9:  # rarely: most of what can happen is over then
            self.run.stop()

    # What always holds.

    def check_start(self, name: str) -> None:
        """Nothing is started that was given up, or before there is a head to connect to."""
        assert name == "replay" or self.head_was_found
        assert name not in self.given_up

    @invariant()
    def there_are_never_more_actors_than_planned(self) -> None:
        actors = [process for process in self.run.processes.values() if process.role == "actor"]
        assert sum(not process.is_told for process in actors) <= self.run.planned
        assert len(actors) <= self.largest_plan

    @invariant()
    def resources_are_held_for_what_runs(self) -> None:
        running = {name for name, process in self.run.processes.items() if not process.is_killed}
        assert running <= self.run.kept

    @invariant()
    def a_run_that_stops_keeps_its_budget(self) -> None:
        run = self.run
        if run.phase is Phase.STOPPING:
            only_the_replay_is_left = run.processes.keys() == {"replay"}
            budget = timeouts.PROCESS_LEAVE + (timeouts.WRITE_CHECKPOINT if only_the_replay_is_left else 0.0)
            assert run.now - run.entered[Phase.STOPPING] <= budget + STEP
        elif run.phase is Phase.OVER:
            seconds = run.entered[Phase.OVER] - run.entered.get(Phase.STOPPING, run.entered[Phase.OVER])
            assert seconds <= timeouts.PROCESS_LEAVE + timeouts.WRITE_CHECKPOINT + STEP
            assert not run.processes
            assert not run.kept

    # In the end.

    def teardown(self) -> None:
        if not hasattr(self, "run"):
            return
        if self.run.phase is Phase.RUNNING and "replay" in self.run.processes:
            self.everything_that_is_planned_comes_back()
        self.run.stop()
        while self.run.phase is not Phase.OVER:
            self.a_run_that_stops_keeps_its_budget()
            self.run.advance(STEP)  # nobody leaves but those that are killed
        self.a_run_that_stops_keeps_its_budget()

    def everything_that_is_planned_comes_back(self) -> None:
        """If nothing else happens, each process that should exist runs again, but for those that were given up."""
        run = self.run
        run.found = Resources(frozenset(), {}, "")
        for _ in range(2):  # those that were told to leave by a replay that was restarted need an answer
            run.answer()
            run.advance(timeouts.LONGEST_BACKOFF + timeouts.PROCESS_LEAVE)
        planned = {"replay", "learner", "evaluator", *(f"actor-{index}" for index in range(run.planned))}
        assert run.processes.keys() == {name for name in planned if name not in self.given_up}


TestSupervisedRuns = SupervisedRuns.TestCase
TestSupervisedRuns.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
