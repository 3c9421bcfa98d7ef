"""The learner: one update for a batch, |delta| from before it, and a target network that follows the clock t."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from dpsr_apex.agent.dqn import DqnAgent
from dpsr_apex.agent.protocol import Update
from dpsr_apex.config import LearnerConfig
from dpsr_apex.envs.compression import FrameCodec
from dpsr_apex.replay.transitions import Stack, from_lists
from dpsr_apex.roles.experience import decompress
from dpsr_apex.roles.learner import Learner
from dpsr_apex.schedules import Schedule, constant
from dpsr_apex.state import State
from dpsr_apex.wire.messages import Batch, Priorities

SIZE, TOTAL_STEPS = 3, 1_000
CODEC = FrameCodec((SIZE,), np.float32)


def batch(t: int, rows: int = 4) -> Batch:
    rng = np.random.default_rng(t)
    stacks: list[Stack] = [(CODEC.compress(frame),) for frame in rng.normal(size=(2 * rows, SIZE)).astype(np.float32)]
    transitions = from_lists(
        s_tm1=stacks[:rows],
        a_tm1=rng.integers(2, size=rows),
        r_t=rng.normal(size=rows).astype(np.float32),
        s_t=stacks[rows:],
        terminal=rng.random(rows) < 0.3,
        n_steps=rng.integers(1, 4, size=rows).astype(np.uint8),
        snapshots=[b"x"] * rows,
    )
    return Batch(0, t, rng.integers(1000, size=rows), rng.random(rows).astype(np.float32), transitions)


def build(target_period: int = 10, seed: int = 0, learning_rate: Schedule = constant(0.01)) -> Learner:
    config = LearnerConfig(batch_size=4, hidden=(8,), head=8, target_period=target_period, learning_rate=learning_rate)
    return Learner(config, TOTAL_STEPS, DqnAgent(config, (1, SIZE), False, 2, seed, threads=1), CODEC)


def network(learner: Learner, name: str) -> dict[str, NDArray[Any]]:
    return {key.removeprefix(name): array for key, array in learner.agent.save().items() if key.startswith(name)}


def is_synced(learner: Learner) -> bool:
    online, target = network(learner, "online."), network(learner, "target.")
    return all(np.array_equal(online[key], target[key]) for key in online)


def learn(learner: Learner, given: Batch) -> tuple[Priorities, Update]:
    return learner.learn(given, learner.prepare(given))


def test_priorities_are_of_the_networks_before_the_update_and_by_identity() -> None:
    learner = build()
    given = batch(1)
    expected = learner.agent.td_errors(decompress(given.transitions, CODEC))
    before = network(learner, "online.")
    priorities, update = learn(learner, given)
    np.testing.assert_array_equal(priorities.identities, given.identities)
    np.testing.assert_allclose(priorities.td_errors, expected, rtol=1e-5)
    np.testing.assert_array_equal(update.priorities, priorities.td_errors)
    assert any(not np.array_equal(before[key], array) for key, array in network(learner, "online.").items())
    assert learner.updates == 1


@pytest.mark.parametrize(
    ("clocks", "synced_at"),
    [
        (range(1, 32), [10, 20, 30]),  # an update at every t
        (range(4, 44, 4), [12, 20, 32, 40]),  # the first update at or after a multiple of F_t
        ([25, 26, 29, 30, 31], [25, 30]),  # learning starts late
        ([5, 47, 48, 50], [47, 50]),  # a jump over several is one sync
        ([10, 10, 10, 20], [10, 20]),  # several updates at one t: the first of them
    ],
)
def test_the_target_network_is_synced_by_t_after_the_update(clocks: list[int], synced_at: list[int]) -> None:
    learner = build(target_period=10)
    synced = []
    for t in clocks:
        learn(learner, batch(t))
        if is_synced(learner):
            synced.append(t)
    assert synced == synced_at


def test_the_learning_rate_follows_the_clock() -> None:
    """The first step of Adam moves every weight with a gradient by the learning rate."""
    for t, expected in ((0, 0.1), (TOTAL_STEPS // 2, 0.06), (TOTAL_STEPS, 0.02)):
        learner = build(learning_rate=Schedule(0.1, 0.02))
        before = network(learner, "online.")
        learn(learner, batch(t=t))
        moved = [np.abs(array - before[key]).max() for key, array in network(learner, "online.").items()]
        assert max(moved) == pytest.approx(expected, rel=1e-3)


def test_a_learner_that_is_saved_and_loaded_continues_bit_for_bit() -> None:
    learner, other = build(seed=1), build(seed=2)
    for t in range(1, 16):
        learn(learner, batch(t))
    state = learner.save()
    other.load(State(json.loads(json.dumps(state.facts)), state.arrays))
    for t in range(16, 25):
        assert learn(learner, batch(t))[1].loss == learn(other, batch(t))[1].loss
    for name, array in learner.save().arrays.items():
        np.testing.assert_array_equal(array, other.save().arrays[name])
    assert (other.updates, other.target_synced_at) == (learner.updates, learner.target_synced_at) == (24, 20)
