"""How many transitions may be in flight, and how old the policies are that chose their actions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpsr_apex import timeouts
from dpsr_apex.config import ActorConfig, SystemConfig
from dpsr_apex.protocol.policy_age import PolicyAge, PolicyAges
from dpsr_apex.protocol.throttle import Throttle
from dpsr_apex.wire.messages import Acknowledged, Batch, SampleRequest
from tests.unit.protocol.watched_service import CONFIG, chunk, enter, join, only, service

IN_FLIGHT, BEHIND = 15, 6
THROTTLED = replace(CONFIG, system=replace(CONFIG.system, in_flight_behind=BEHIND))


def throttle(**system: Any) -> Throttle:
    return Throttle(replace(CONFIG, system=SystemConfig(**system), actor=ActorConfig(environments=3)))


def test_all_actors_together_have_a_few_updates_worth_in_flight_while_chunks_wait() -> None:
    limiter = throttle(in_flight=200, in_flight_ahead=128, in_flight_behind=16)
    fleets = [(actors, steps) for actors in (0, 2, 16) for steps in (0, 1, 4, 658)]
    ahead = [limiter.limit(actors, steps) for actors, steps in fleets]
    assert ahead == [*(200, 128, 200, 200), *(200, 64, 200, 200), *(200, 8, 32, 200)]
    limiter.observe(chunks_wait=True, now=5.0)
    behind = [limiter.limit(actors, steps) for actors, steps in fleets]
    # At least four per actor.
    assert behind == [*(200, 16, 64, 200), *(200, 8, 32, 200), *(200, 4, 4, 200)]


def test_the_limit_is_raised_when_no_chunk_has_waited_for_a_while() -> None:
    limiter = throttle(in_flight=200, in_flight_behind=16)
    limiter.observe(chunks_wait=True, now=5.0)
    for now, is_active in (
        (5.0, True),
        (5.0 + timeouts.THROTTLE_RELEASE, True),
        (5.1 + timeouts.THROTTLE_RELEASE, False),
    ):
        limiter.observe(chunks_wait=False, now=now)
        assert limiter.is_active == is_active


def test_actors_are_told_at_once_when_the_learner_falls_behind_and_when_it_has_caught_up() -> None:
    replay = service(THROTTLED)
    enter(replay, "actor-0", "actor-1")
    for number in range(4):
        (reply,) = only(replay.handle(b"actor-0", chunk(number), 0.0), Acknowledged)
        assert reply.in_flight == IN_FLIGHT
    told = only(replay.handle(b"actor-0", chunk(4), 1.0), Acknowledged, "actor-1")
    assert [(reply.sequence, reply.in_flight) for reply in told] == [(0, BEHIND)]  # 6 updates of 2 steps, 2 actors
    *_, welcomed = only(replay.handle(b"actor-2", join("actor-2"), 1.5), Acknowledged, "actor-2")
    assert welcomed.in_flight == BEHIND * 2 // 3
    enter(replay, "learner-0", now=2.0)
    for _ in range(4):
        replay.handle(b"learner-0", SampleRequest(), 2.0)
    assert not replay.flow.inbox, "it has caught up"
    assert not only(replay.tick(2.0 + timeouts.THROTTLE_RELEASE / 2), Acknowledged)
    raised = only(replay.tick(3.1 + timeouts.THROTTLE_RELEASE), Acknowledged)
    assert [reply.in_flight for reply in raised] == [IN_FLIGHT] * 3


def test_an_acknowledgement_tells_how_many_updates_there_are() -> None:
    replay = service()
    enter(replay, "actor-0", "learner-0")
    for _ in range(2):
        replay.handle(b"learner-0", SampleRequest(), 0.0)
    updates = []
    for number in range(3):
        outgoing = replay.handle(b"actor-0", chunk(number), 0.0)
        updates += [reply.updates for reply in only(outgoing, Acknowledged)]
    assert updates == [0, 0, 2], "batches that became due by a chunk are sent after its acknowledgement"


# The age of policies.


def test_the_age_of_a_policy_is_the_number_of_updates_that_were_due_and_that_it_lacks() -> None:
    replay = service(learning_starts=8, steps_per_update=2, rate_tolerance=1_000)
    enter(replay, "actor-0", "learner-0")
    for number, policy in enumerate((0.0, 0.0, 1.5, 9.0)):  # due before each: 0, 0, 2 and 4
        replay.handle(b"actor-0", chunk(number)._replace(policy=policy), 0.0)
    assert replay.flow.policy_ages.drain() == PolicyAge(mean=0.5 / 4, p95=0.5)
    assert replay.flow.policy_ages.drain() == PolicyAge(None, None)


def test_in_free_running_it_is_the_number_of_updates_that_were_made() -> None:
    replay = service(learning_starts=8, steps_per_update=0)
    enter(replay, "actor-0", "learner-0")
    for number in range(2):
        replay.handle(b"actor-0", chunk(number), 0.0)
    assert len(only(replay.handle(b"learner-0", SampleRequest(), 0.0), Batch)) == 1
    replay.flow.policy_ages.drain()
    replay.handle(b"actor-0", chunk(2), 0.0)
    assert replay.flow.policy_ages.drain() == PolicyAge(1.0, 1.0)


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(1, 5)), min_size=1, max_size=30))
def test_ages_are_weighted_by_their_transitions(ages: list[tuple[int, int]]) -> None:
    collected = PolicyAges()
    for age, count in ages:
        collected.add(updates_due=100.0, policy=100.0 - age, count=count)
    each = np.repeat([age for age, _ in ages], [count for _, count in ages])
    mean, p95 = collected.drain()
    assert mean == pytest.approx(each.mean())
    assert p95 == np.quantile(each, 0.95, method="inverted_cdf")


def test_a_policy_that_claims_impossible_updates_distorts_no_age_beyond_what_is_possible() -> None:
    collected = PolicyAges()
    for policy in (-1e300, 1e300):
        collected.add(updates_due=10.0, policy=policy, count=1)
    assert collected.drain() == PolicyAge(5.0, 10.0)
