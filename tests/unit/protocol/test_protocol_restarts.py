from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpsr_apex import timeouts
from dpsr_apex.protocol.restarts import LIMITS, MAX_NODE_LOSSES, REFUSED, Exit, RestartPolicy

SHORT = timeouts.STABLE_AFTER / 2
LONG = timeouts.STABLE_AFTER + 1


def crash(seconds: float = SHORT, code: int = 1) -> Exit:
    return Exit(code, f"ended with exit code {code}", seconds)


def loss(seconds: float = SHORT) -> Exit:
    return Exit(-9, "was lost", seconds, is_lost=True)


ENDED_IN_ORDER = Exit(0, "ended with exit code 0", LONG)


def started(role: str = "actor") -> RestartPolicy:
    policy = RestartPolicy(role, 0.0)
    policy.started()
    return policy


def test_a_process_is_started_when_it_is_planned_and_not_while_it_runs() -> None:
    policy = RestartPolicy("actor", 10.0)
    assert not policy.is_due(9.9)
    assert policy.is_due(10.0)
    policy.started()
    assert not policy.is_due(1e9)


@pytest.mark.parametrize("role", LIMITS)
def test_a_process_is_given_up_after_as_many_crashes_in_a_row_as_its_role_allows(role: str) -> None:
    limit = {"replay": 3, "learner": 3, "evaluator": 3, "actor": 5, "run": 2}[role]
    policy = started(role)
    for number in range(1, limit):
        policy.exited(crash(), 100.0)
        assert (policy.crashes, policy.given_up) == (number, False)
        assert policy.start_at is not None
        policy.started()
    policy.exited(crash(), 100.0)
    assert policy.given_up
    assert policy.start_at is None
    assert not policy.is_due(1e9)


def test_the_pause_before_a_restart_doubles() -> None:
    policy = started()
    pauses = []
    for _ in range(4):
        policy.exited(crash(), 100.0)
        assert policy.start_at is not None
        pauses.append(policy.start_at - 100.0)
        policy.started()
    assert pauses == [1, 2, 4, 8]


def test_the_pause_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timeouts, "LONGEST_BACKOFF", 3.0)
    policy = started()
    for _ in range(3):
        policy.exited(crash(), 100.0)
        policy.started()
    policy.exited(crash(), 100.0)
    assert policy.start_at == 103.0


def test_a_process_that_ran_for_long_has_its_whole_budget_again() -> None:
    policy = started("learner")
    for _ in range(20):
        policy.exited(crash(), 100.0)
        policy.started()
        policy.exited(crash(LONG), 200.0)
        assert (policy.crashes, policy.start_at) == (1, 200.0 + timeouts.FIRST_BACKOFF)
        policy.started()


def test_a_process_that_was_refused_was_never_stable() -> None:
    policy = started("learner")
    for _ in range(3):
        assert not policy.given_up
        policy.exited(crash(LONG, REFUSED), 100.0)
    assert policy.given_up


def test_a_run_of_an_experiment_that_was_refused_is_not_tried_again() -> None:
    policy = started("run")
    policy.exited(crash(code=REFUSED), 100.0)
    assert policy.given_up


def test_the_loss_of_a_node_is_not_a_crash_but_has_a_limit_of_its_own() -> None:
    policy = started("learner")
    policy.exited(crash(), 100.0)
    policy.started()
    for number in range(1, MAX_NODE_LOSSES):
        policy.exited(loss(), 100.0)
        assert (policy.crashes, policy.losses, policy.failures) == (1, number, number + 1)
        assert policy.start_at == 100.0 + timeouts.NODE_LOST_BACKOFF
        policy.started()
    policy.exited(loss(), 100.0)
    assert policy.given_up


def test_a_process_that_ended_in_order_is_started_again_only_when_it_is_asked_for() -> None:
    policy = started()
    policy.exited(crash(), 100.0)
    policy.started()
    policy.exited(ENDED_IN_ORDER, 200.0)
    assert (policy.crashes, policy.start_at, policy.given_up) == (1, None, False)
    policy.restart(210.0)
    assert policy.is_due(210.0)


def test_preemption_is_not_a_crash() -> None:
    policy = started()
    policy.preempted(110.0)
    assert (policy.failures, policy.start_at, policy.given_up) == (0, 110.0, False)


def test_a_process_that_was_given_up_is_started_again_only_after_a_reset() -> None:
    policy = started("run")
    policy.exited(crash(), 100.0)
    policy.exited(crash(), 100.0)
    policy.preempted(110.0)
    policy.restart(110.0)
    assert not policy.is_due(1e9)
    policy.reset(120.0)
    assert (policy.failures, policy.given_up, policy.start_at) == (0, False, 120.0)


def test_a_reset_gives_the_budget_back_and_leaves_a_planned_start_as_it_is() -> None:
    policy = started()
    policy.exited(crash(), 100.0)
    policy.reset(100.5)
    assert (policy.failures, policy.start_at) == (0, 100.0 + timeouts.FIRST_BACKOFF)


def failures_in_a_row(exits: list[Exit]) -> list[Exit]:
    """Return the exits since the last process that ran for long, that one included."""
    stable = [i for i, exit in enumerate(exits) if exit.seconds > timeouts.STABLE_AFTER and exit.code != REFUSED]
    return exits[stable[-1] :] if stable else exits


EXITS = st.builds(
    Exit,
    code=st.sampled_from([1, REFUSED, -9]),
    cause=st.just(""),
    seconds=st.sampled_from([0.0, SHORT, timeouts.STABLE_AFTER, LONG]),
    is_lost=st.booleans(),
)


@given(role=st.sampled_from(sorted(LIMITS)), exits=st.lists(EXITS, max_size=20))  # budgets are 10 at most
def test_the_policy_agrees_with_counting_the_exits_in_a_row(role: str, exits: list[Exit]) -> None:
    limits, policy = LIMITS[role], started(role)
    for number, exit in enumerate(exits, start=1):
        policy.exited(exit, 0.0)
        in_a_row = failures_in_a_row(exits[:number])
        losses = sum(one.is_lost for one in in_a_row)
        assert (policy.losses, policy.crashes) == (losses, len(in_a_row) - losses)
        refused = exit.code == REFUSED and not limits.retries_refused
        assert policy.given_up == (refused or policy.crashes >= limits.crashes or losses >= MAX_NODE_LOSSES)
        if policy.given_up:
            assert policy.start_at is None
            return
        assert policy.start_at is not None
        assert timeouts.FIRST_BACKOFF <= policy.start_at <= timeouts.LONGEST_BACKOFF
        policy.started()
