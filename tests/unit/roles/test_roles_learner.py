"""The learner: one update for a batch, |delta| from before it, and a target network that follows the clock t."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from dpsr_apex.agent.dqn import DqnAgent
from dpsr_apex.agent.protocol import Update
from dpsr_apex.checksums import add_checksum
from dpsr_apex.config import LearnerConfig
from dpsr_apex.envs.compression import FrameCodec
from dpsr_apex.replay.transitions import Stack, from_lists, unpacked
from dpsr_apex.roles.experience import decompress
from dpsr_apex.roles.learner import NOT_FINITE, Learned, Learner, unusable
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
    return Learner(config, TOTAL_STEPS, DqnAgent(config, (1, SIZE), False, 2, seed, threads=1), CODEC, 2)


def network(learner: Learner, name: str) -> dict[str, NDArray[Any]]:
    return {key.removeprefix(name): array for key, array in learner.agent.save().items() if key.startswith(name)}


def is_synced(learner: Learner) -> bool:
    online, target = network(learner, "online."), network(learner, "target.")
    return all(np.array_equal(online[key], target[key]) for key in online)


def learn(learner: Learner, given: Batch) -> tuple[Priorities, Update]:
    learned = learner.learn(given, learner.prepare(given))
    assert learned.update is not None
    return learned.priorities, learned.update


def test_priorities_are_of_the_networks_before_the_update_and_by_identity() -> None:
    learner = build()
    given = batch(1)
    expected = learner.agent.td_errors(decompress(unpacked(given.transitions), CODEC))
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


# Transitions that cannot be trained on.


def spoilt_frame(given: Batch, row: int) -> None:
    unpacked(given.transitions).s_t[row] = (unpacked(given.transitions).s_t[row][0][:-1] + b"?",)


def short_frame(given: Batch, row: int) -> None:
    unpacked(given.transitions).s_tm1[row] = (add_checksum(bytes(8)),)


def not_finite(given: Batch, row: int) -> None:
    unpacked(given.transitions).s_t[row] = (CODEC.compress(np.array([0, np.nan, 0], np.float32)),)


def huge(given: Batch, row: int) -> None:
    """Finite, but the network overflows."""
    unpacked(given.transitions).s_tm1[row] = (CODEC.compress(np.full(SIZE, 3e38, np.float32)),)


def steep(given: Batch, row: int) -> None:
    """The outputs of the network are finite, the gradient of its weights is not."""
    unpacked(given.transitions).s_tm1[row] = (CODEC.compress(np.array([1e38, -1e38, 1e38], np.float32)),)


def unknown_action(given: Batch, row: int) -> None:
    unpacked(given.transitions).a_tm1[row] = 2


def no_reward(given: Batch, row: int) -> None:
    unpacked(given.transitions).r_t[row] = np.inf


FAULTS: dict[Callable[[Batch, int], None], str] = {
    spoilt_frame: "damaged frame: its checksum does not match",
    short_frame: "damaged frame: expected 12 bytes (got 8)",
    not_finite: "observation not finite",
    huge: NOT_FINITE,
    steep: NOT_FINITE,
    unknown_action: "action 2 of 2",
    no_reward: "reward inf",
}


def found_in(learner: Learner, given: Batch) -> tuple[Learned, dict[int, str]]:
    """Learn from a batch; also return the reason for each unusable row."""
    prepared = learner.prepare(given)
    learned = learner.learn(given, prepared)
    reported = [*unusable(given, prepared.faults), *learned.unusable]
    rows = {identity: row for row, identity in enumerate(given.identities.tolist())}
    assert all(message.era == given.era for message in reported)
    return learned, {rows[name]: message.reason for message in reported for name in message.identities.tolist()}


@pytest.mark.parametrize("spoil", FAULTS, ids=lambda spoil: spoil.__name__)
def test_a_bad_transition_is_left_out_and_reported(spoil: Callable[[Batch, int], None]) -> None:
    learner, given = build(), batch(1)
    spoil(given, 2)
    learned, reasons = found_in(learner, given)
    assert reasons == {2: FAULTS[spoil]}
    assert learned.update is not None
    assert np.isfinite(learned.update.loss)
    assert learned.priorities.identities.tolist() == given.identities[[0, 1, 3]].tolist()
    sound = build()
    expected = sound.agent.td_errors(decompress(unpacked(given.transitions).pick(np.array([0, 1, 3])), CODEC))
    np.testing.assert_allclose(learned.priorities.td_errors, expected, rtol=1e-5)
    assert learner.updates == 1


@pytest.mark.parametrize("spoil", FAULTS, ids=lambda spoil: spoil.__name__)
def test_the_update_is_the_one_without_the_bad_transition(spoil: Callable[[Batch, int], None]) -> None:
    """A row of weight 0 changes nothing."""
    learner, other = build(), build()
    given, without = batch(1), batch(1)
    spoil(given, 0)
    found_in(learner, given)
    rows = np.array([1, 1, 2, 3])
    without.weights[0] = 0
    learn(other, without._replace(transitions=unpacked(without.transitions).pick(rows)))
    for name, array in learner.save().arrays.items():
        np.testing.assert_array_equal(array, other.save().arrays[name])


@pytest.mark.parametrize("spoil", FAULTS, ids=lambda spoil: spoil.__name__)
def test_a_batch_without_a_good_transition_is_skipped(spoil: Callable[[Batch, int], None]) -> None:
    learner, given = build(), batch(1)
    before = learner.save().arrays
    for row in range(4):
        spoil(given, row)
    learned, reasons = found_in(learner, given)
    assert reasons == dict.fromkeys(range(4), FAULTS[spoil])
    assert (learned.update, learned.priorities.identities.size, learner.updates) == (None, 0, 0)
    for name, array in learner.save().arrays.items():
        np.testing.assert_array_equal(array, before[name])


@pytest.mark.parametrize("has_learned", [False, True])
def test_a_network_that_has_diverged_is_no_fault_of_the_transitions(has_learned: bool) -> None:
    learner = build()
    if has_learned:
        learn(learner, batch(1))
    weights = learner.agent.weights("online")
    learner.agent.load_weights("online", {name: np.full_like(array, 1e38) for name, array in weights.items()})
    given = batch(2)
    with pytest.raises(FloatingPointError, match="Check the rewards"):
        learner.learn(given, learner.prepare(given))
