"""What the replay returns, as messages: everything that the other side needs, and nothing else."""

from __future__ import annotations

import numpy as np

from dpsr_apex.config import ReplayConfig
from dpsr_apex.protocol.conversions import batch_message, recycle_request
from dpsr_apex.replay.replay import Replay
from tests.unit.protocol.watched_service import ERA, transitions

CONFIG = ReplayConfig(capacity=20, replace_candidates=4, recycle_candidates=3, recycle_period=5)


def filled(count: int) -> Replay:
    replay = Replay(CONFIG, 1000, np.random.default_rng(0))
    assert replay.insert(transitions(count)) == []
    return replay


def test_a_batch_carries_the_clock_and_whole_transitions_without_snapshots() -> None:
    replay = filled(9)
    sample = replay.sample(4)
    batch = batch_message(sample, replay.t, ERA)
    assert (batch.era, batch.t) == (ERA, 9)
    np.testing.assert_array_equal(batch.identities, sample.identities)
    np.testing.assert_array_equal(batch.weights, sample.weights)
    stored = replay.read(batch.identities)
    assert (batch.transitions.s_tm1, batch.transitions.s_t) == (stored.s_tm1, stored.s_t)
    for column in ("a_tm1", "r_t", "terminal", "n_steps"):
        np.testing.assert_array_equal(getattr(batch.transitions, column), getattr(stored, column))
    assert batch.transitions.snapshots == [b""] * 4
    assert all(stored.snapshots), "the replay still has them"


def test_a_request_to_recycle_has_all_that_an_actor_needs() -> None:
    replay = filled(24)
    stored = {name: replay.read(np.array([name])) for name in replay.identities.tolist()}
    (round_,) = replay.insert(transitions(1, first=24))
    request = recycle_request(round_, ERA)
    assert (request.era, request.round_number) == (ERA, round_.number)
    assert len(set(request.identities.tolist())) == 3
    assert request.starts.s_t == [()] * 3
    for row, name in enumerate(request.identities.tolist()):
        start, kept = request.starts.rows(row, row + 1), stored[name]
        assert (start.s_tm1, start.a_tm1, start.snapshots) == (kept.s_tm1, kept.a_tm1, kept.snapshots)
