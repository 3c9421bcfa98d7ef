from __future__ import annotations

import numpy as np
import pytest

from dpsr_apex.envs.compression import DamagedSnapshot
from dpsr_apex.envs.corridor import LEFT, RIGHT, Corridor


def play(env: Corridor, action: int) -> tuple[float, int]:
    """Play an episode with one action only, and return its return and length."""
    env.reset()
    total, steps, terminal = 0.0, 0, False
    while not terminal:
        _, reward, terminal, truncated, _ = env.step(action)
        total, steps = total + reward, steps + 1
        assert not truncated
    return total, steps


def test_right_returns_500_in_500_steps() -> None:
    assert play(Corridor(depth=30), RIGHT) == (500.0, 500)


@pytest.mark.parametrize(("depth", "better"), [(1, True), (100, True), (500, True), (501, False), (800, False)])
def test_left_is_better_exactly_if_the_treasure_is_at_most_500_deep(depth: int, better: bool) -> None:
    env = Corridor(depth=depth)
    left, steps = play(env, LEFT)
    assert (left, steps) == (1000.0 - (depth - 1), depth)
    assert (left > play(env, RIGHT)[0]) is better


@pytest.mark.parametrize("side", [LEFT, RIGHT])
def test_turning_around_ends_the_episode_with_reward_0(side: int) -> None:
    env = Corridor()
    env.reset()
    env.step(side)
    assert env.step(1 - side)[1:4] == (0.0, True, False)


def test_the_observation_is_side_and_position() -> None:
    env = Corridor(depth=1000)
    np.testing.assert_array_equal(env.reset()[0], [0, 0])
    for _ in range(250):
        observation = env.step(LEFT)[0]
        assert env.observation_space.contains(observation)
    np.testing.assert_array_equal(observation, [-1, 0.5])


def test_a_state_is_restored() -> None:
    env, other = Corridor(), Corridor()
    env.reset()
    for _ in range(7):
        observation = env.step(LEFT)[0]
    other.restore(env.snapshot(), observation[np.newaxis])
    np.testing.assert_array_equal(other.step(LEFT)[0], env.step(LEFT)[0])


@pytest.mark.parametrize("state", [b"", b"\0" * 4, b"\2\1\0\0\0", b"\0\1\0\0\0", b"\1\0\0\0\0", b"\xff\x65\0\0\0"])
def test_a_state_that_the_corridor_does_not_have_is_refused_and_changes_nothing(state: bytes) -> None:
    env = Corridor(depth=100)
    observation, _ = env.reset()
    env.step(LEFT)
    before = env.snapshot()
    with pytest.raises(DamagedSnapshot):
        env.restore(state, observation[np.newaxis])
    assert env.snapshot() == before


def test_every_state_of_an_episode_can_be_restored() -> None:
    for side in (LEFT, RIGHT):
        env, other = Corridor(depth=7), Corridor(depth=7)
        observation, _ = env.reset()
        terminal = False
        while not terminal:
            other.restore(env.snapshot(), observation[np.newaxis])
            observation, *outcome = env.step(side)
            again, *repeated = other.step(side)
            assert (again.tolist(), repeated) == (observation.tolist(), outcome)
            terminal = bool(outcome[1])
        other.restore(env.snapshot(), observation[np.newaxis])


def test_the_state_key_is_side_and_position() -> None:
    env = Corridor()
    env.reset()
    keys = [env.state_key()]
    for side in (LEFT, RIGHT):
        env.reset()
        assert env.state_key() == keys[0]
        for _ in range(3):
            env.step(side)
            keys.append(env.state_key())
    assert len(set(keys)) == 7


@pytest.mark.parametrize("depth", [0, -3, 2.5])
def test_an_impossible_depth_is_refused(depth: int) -> None:
    with pytest.raises(ValueError, match="depth"):
        Corridor(depth=depth)


def test_render_shows_the_agent_moving() -> None:
    env = Corridor(depth=10)
    env.reset()
    before = env.render()
    env.step(LEFT)
    assert before.dtype == np.uint8
    assert before.shape == env.render().shape
    assert (before != env.render()).any()
