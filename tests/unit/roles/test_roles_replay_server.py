"""The replay server's budget of batches: the learner gets the first at learning_starts, then one every F_s."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpsr_apex.config import Config, LearnerConfig, ReplayConfig
from dpsr_apex.replay.memory import DpsrReplay
from dpsr_apex.replay.transitions import Transitions
from dpsr_apex.roles.replay_server import ReplayServer
from dpsr_apex.state import State
from dpsr_apex.wire.messages import Insert, Priorities, Recycled, SampleRequest

REPLAY = ReplayConfig(capacity=20, replace_candidates=4, recycle_candidates=3, recycle_period=5)


def transitions(count: int) -> Transitions:
    return Transitions(
        s_tm1=[(b"s", str(i).encode()) for i in range(count)],
        a_tm1=np.arange(count) % 2,
        r_t=np.arange(count, dtype=np.float32),
        s_t=[(str(i).encode(), b"s'") for i in range(count)],
        terminal=np.zeros(count, dtype=np.bool_),
        n_steps=np.ones(count, dtype=np.uint8),
        snapshots=[f"snapshot {i}".encode() for i in range(count)],
    )


def server(learning_starts: int = 8, steps_per_update: int = 1, method: str = "per") -> ReplayServer:
    config = ReplayConfig(**{**REPLAY.__dict__, "method": method})
    learner = LearnerConfig(batch_size=2, learning_starts=learning_starts, steps_per_update=steps_per_update)
    return ReplayServer(DpsrReplay(config, 1000, np.random.default_rng(0)), Config(learner=learner))


def drain(replay: ReplayServer) -> int:
    batches = 0
    while replay.sample(SampleRequest(2)):
        batches += 1
    return batches


def due_one_by_one(t: int, learning_starts: int, steps_per_update: int) -> int:
    return sum(1 for now in range(1, t + 1) if now >= learning_starts and now % steps_per_update == 0)


@settings(deadline=None)
@given(st.lists(st.integers(1, 9), max_size=12), st.integers(1, 12), st.integers(1, 5))
def test_batches_follow_the_transitions_however_they_arrive(
    chunks: list[int], learning_starts: int, steps_per_update: int
) -> None:
    replay = server(learning_starts, steps_per_update)
    given_out = 0
    for chunk in chunks:
        inserted, rounds = replay.insert(Insert(transitions(chunk), None))
        assert inserted.t == replay.replay.t
        assert not rounds
        given_out += drain(replay)
        assert given_out == replay.rate.batches == due_one_by_one(replay.replay.t, learning_starts, steps_per_update)


def test_a_learner_that_is_late_gets_every_batch_that_is_due() -> None:
    replay = server(learning_starts=8, steps_per_update=4)
    replay.insert(Insert(transitions(19), None))
    assert drain(replay) == 3  # at t = 8, 12 and 16
    assert drain(replay) == 0


def test_a_batch_carries_the_clock_and_whole_transitions() -> None:
    replay = server()
    replay.insert(Insert(transitions(9), None))
    batch = replay.sample(SampleRequest(2))
    assert batch is not None
    assert batch.t == 9
    stored = replay.replay.read(batch.identities)
    assert (batch.transitions.s_tm1, batch.transitions.s_t) == (stored.s_tm1, stored.s_t)
    np.testing.assert_array_equal(batch.transitions.r_t, stored.r_t)
    replay.priorities(Priorities(0, batch.identities, np.array([3.0, 4.0])))
    assert replay.replay.priorities.max() == 4.0 + REPLAY.priority_floor


@pytest.mark.parametrize("at_once", [1, 4])
def test_a_round_is_asked_for_with_all_that_an_actor_needs(at_once: int) -> None:
    replay = server(method="dpsr")
    replay.insert(Insert(transitions(24), None))
    stored = {name: replay.replay.read(np.array([name])) for name in replay.replay.identities.tolist()}
    _, (request,) = replay.insert(Insert(transitions(at_once), None))
    assert len(set(request.identities.tolist())) == 3
    for row, name in enumerate(request.identities.tolist()):
        start, kept = request.starts.rows(row, row + 1), stored[name]
        assert (start.s_tm1, start.a_tm1, start.snapshots) == (kept.s_tm1, kept.a_tm1, kept.snapshots)
    errors = np.array([2.0, 1.0, 3.0])
    stale = Recycled(1, request.round_number, request.identities, transitions(3), errors, np.zeros(0, np.int64))
    replay.recycled(stale)
    assert replay.replay.counters.rounds_closed == 0, "of another life of the replay"
    replay.recycled(stale._replace(era=0))
    assert replay.replay.counters.rounds_closed == 1
    assert replay.replay.check_valid() == (True, "")


def test_one_that_is_saved_and_loaded_gives_the_same_batches() -> None:
    replay, other = server(), server()
    replay.insert(Insert(transitions(12), None))
    replay.sample(SampleRequest(2))
    facts, arrays = replay.save()
    other.load(State(json.loads(json.dumps(facts)), arrays))
    for _ in range(4):
        one, two = replay.sample(SampleRequest(2)), other.sample(SampleRequest(2))
        assert one is not None
        assert two is not None
        np.testing.assert_array_equal(one.identities, two.identities)
        np.testing.assert_array_equal(one.weights, two.weights)
    assert replay.sample(SampleRequest(2)) is other.sample(SampleRequest(2)) is None
