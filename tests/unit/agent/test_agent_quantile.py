"""The quantile agent against a naive loss, one pair of quantiles at a time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from dpsr_apex.agent.protocol import Experience
from dpsr_apex.agent.quantile import QuantileAgent
from dpsr_apex.config import LearnerConfig

N, ACTIONS, SHAPE = 5, 3, (2, 3)
CONFIG = LearnerConfig(agent="quantile", quantiles=N, hidden=(16,), head=8, discount=0.9, device="cpu")
LEARNING_RATE = 0.01
ONES = np.ones(8, dtype=np.float32)


def new_agent(config: LearnerConfig = CONFIG, seed: int = 0) -> QuantileAgent:
    return QuantileAgent(config, SHAPE, False, ACTIONS, seed, threads=1)


def experience(seed: int = 0, batch: int = 8) -> Experience:
    rng = np.random.default_rng(seed)
    return Experience(
        s_tm1=rng.normal(size=(batch, *SHAPE)).astype(np.float32),
        a_tm1=rng.integers(0, ACTIONS, batch),
        r_t=(2 * rng.normal(size=batch)).astype(np.float32),
        s_t=rng.normal(size=(batch, *SHAPE)).astype(np.float32),
        terminal=rng.random(batch) < 0.4,
        n_steps=rng.integers(1, 4, batch).astype(np.uint8),
    )


def diverged(config: LearnerConfig = CONFIG) -> QuantileAgent:
    """An agent whose two networks differ."""
    agent = new_agent(config)
    agent.load_weights("target", new_agent(config, seed=7).weights("target"))
    return agent


def quantiles(network: torch.nn.Module, states: NDArray[Any]) -> NDArray[np.float64]:
    with torch.no_grad():
        outputs = network(torch.tensor(states))
    return np.asarray(outputs, dtype=np.float64).reshape(len(states), ACTIONS, N)


def naive(agent: QuantileAgent, batch: Experience, double: bool = True) -> tuple[list[float], list[float]]:
    """Return loss and mean TD error of each row."""
    now, following = quantiles(agent.online, batch.s_tm1), quantiles(agent.target, batch.s_t)
    choosing = quantiles(agent.online, batch.s_t) if double else following
    losses, deltas = [], []
    for row, action in enumerate(batch.a_tm1):
        best = int(np.argmax([np.mean(choosing[row, a]) for a in range(ACTIONS)]))
        discount = 0.0 if batch.terminal[row] else agent.config.discount ** int(batch.n_steps[row])
        targets = [float(batch.r_t[row]) + discount * value for value in following[row, best]]
        loss = 0.0
        for i, theta in enumerate(now[row, action]):
            tau = (i + 0.5) / N
            for target in targets:
                u = target - theta
                huber = 0.5 * u * u if abs(u) <= 1 else abs(u) - 0.5
                loss += abs(tau - (u < 0)) * huber / N
        losses.append(loss)
        deltas.append(float(np.mean(targets) - np.mean(now[row, action])))
    return losses, deltas


@pytest.mark.parametrize("double", [True, False])
def test_loss_and_priorities_match_the_oracle(double: bool) -> None:
    agent, batch = diverged(replace(CONFIG, double=double)), experience(9, batch=60)
    losses, deltas = naive(agent, batch, double)
    weights = np.linspace(0.1, 1.0, 60).astype(np.float32)
    np.testing.assert_allclose(agent.td_errors(batch), np.abs(deltas), rtol=1e-4, atol=1e-6)
    update = agent.update(agent.stage(batch, weights), LEARNING_RATE)
    np.testing.assert_allclose(update.priorities, np.abs(deltas), rtol=1e-4, atol=1e-6)
    assert update.loss == pytest.approx(np.mean(weights * losses), rel=1e-4)


def test_the_batch_distinguishes_double_from_single() -> None:
    agent, batch = diverged(), experience(9, batch=60)
    assert naive(agent, batch, True) != naive(agent, batch, False)


def test_the_quantile_loss_can_be_the_priority() -> None:
    agent, batch = diverged(replace(CONFIG, quantile_priority="loss")), experience(9, batch=60)
    np.testing.assert_allclose(agent.td_errors(batch), naive(agent, batch)[0], rtol=1e-4, atol=1e-6)


def test_the_value_of_an_action_is_the_mean_of_its_quantiles() -> None:
    agent, states = diverged(), experience(3).s_t
    expected = quantiles(agent.online, states).mean(axis=2)
    np.testing.assert_allclose(agent.q_values(states), expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(agent.act(states), expected.argmax(axis=1))


def test_quantiles_of_a_random_reward_are_learned() -> None:
    """A terminal reward of 0 or 1, each with probability 1/2: the lower quantiles become 0, the upper ones 1."""
    config = replace(CONFIG, quantiles=4, dueling=False)
    agent, rng = QuantileAgent(config, SHAPE, False, 1, 0, threads=1), np.random.default_rng(0)
    states = np.ones((64, *SHAPE), dtype=np.float32)
    fixed = (np.zeros(64, dtype=np.int64), states, np.ones(64, dtype=np.bool_), np.ones(64, dtype=np.uint8))
    for _ in range(400):
        rewards = rng.integers(0, 2, 64).astype(np.float32)
        batch = Experience(states, fixed[0], rewards, *fixed[1:])
        agent.update(agent.stage(batch, np.ones(64, dtype=np.float32)), LEARNING_RATE)
    with torch.no_grad():
        found = agent.online(torch.tensor(states[:1])).numpy()[0]
    # The quantile Huber loss is quadratic within 1, so that quantiles are drawn towards the mean.
    assert found[0] < 0.3 < 0.7 < found[3]
    assert (np.diff(found) > 0).all()


def test_a_loaded_agent_continues_bit_for_bit() -> None:
    agent, other = diverged(), new_agent(seed=1)
    other.load(agent.save())
    for seed in range(10, 13):
        left, right = (each.update(each.stage(experience(seed), ONES), LEARNING_RATE) for each in (agent, other))
        np.testing.assert_array_equal(left.priorities, right.priorities)
    for name, array in agent.save().items():
        np.testing.assert_array_equal(array, other.save()[name], err_msg=name)


def test_quantiles_are_those_of_the_network_in_ascending_order() -> None:
    agent, states = new_agent(), experience(4).s_tm1
    found = agent.quantiles(states)
    np.testing.assert_allclose(found, np.sort(quantiles(agent.online, states), axis=2), rtol=1e-5)
    np.testing.assert_allclose(found.mean(axis=2), agent.q_values(states), rtol=1e-4, atol=1e-6)
    assert agent.saliency(states[0], 2).shape == SHAPE
