from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from dpsr_apex.envs.make import make_stacked
from dpsr_apex.envs.snapshot import UnusableEnvironment
from dpsr_apex.envs.stacked import StackedEnv, Step
from dpsr_apex.state import State

USER = "tests.unit.envs.user_envs:"


def play(env: StackedEnv, steps: int, seed: int) -> Iterator[tuple[Step, bytes, bytes]]:
    """Take random actions across episodes and yield every outcome exactly."""
    random = np.random.default_rng(seed)
    for _ in range(steps):
        step = env.step(int(random.integers(env.actions)))
        yield step, env.frames.tobytes(), env.snapshot()
        if step.terminal or step.truncated:
            env.reset()


def test_a_reset_fills_the_stack_and_a_step_shifts_it_by_one() -> None:
    env = make_stacked(USER + "Good", stack=3, seed=0)
    assert env.frames.shape == env.observation_shape == (3, 1)
    assert env.frames.dtype == np.float32
    assert len(set(env.stack)) == 1
    before, stack = env.frames.copy(), env.stack
    env.step(1)
    np.testing.assert_array_equal(env.frames[:2], before[1:])
    assert env.stack[0] is stack[1]
    np.testing.assert_array_equal(env.codec.decompress_stack(env.stack), env.frames)


def test_a_step_does_not_change_an_earlier_observation() -> None:
    env = make_stacked(USER + "Good", stack=2)
    kept, copy = env.frames, env.frames.copy()
    env.step(1)
    np.testing.assert_array_equal(kept, copy)


@pytest.mark.parametrize(("name", "depth"), [("Breakout", 4), ("MinAtar/Breakout", 1), ("CartPole-v1", 1)])
def test_the_default_stack_is_4_for_grey_frames_and_1_for_planes_and_vectors(name: str, depth: int) -> None:
    assert make_stacked(name).observation_shape[0] == depth


def test_planes_are_stacked_frame_by_frame() -> None:
    env = make_stacked("MinAtar/Breakout", stack=2, seed=0)
    assert env.shows_pixels
    assert env.frames.shape == env.observation_shape == (2, 4, 10, 10)
    before, stack = env.frames.copy(), env.stack
    env.step(1)
    np.testing.assert_array_equal(env.frames[0], before[1])
    assert (env.frames[1] != before[1]).any()
    assert env.stack[0] is stack[1]
    np.testing.assert_array_equal(env.codec.decompress_stack(env.stack), env.frames)


@pytest.mark.parametrize(
    "name",
    [
        *("Breakout", "Qbert", "CartPole-v1", "Acrobot-v1", "Corridor", "MinAtar/Asterix", "MinAtar/Freeway"),
        *(USER + "Good", USER + "OtherGenerator"),
    ],
)
@pytest.mark.parametrize("stopped_at", [0, 41])
def test_a_saved_environment_continues_exactly(name: str, stopped_at: int) -> None:
    env = make_stacked(name, seed=1)
    list(play(env, stopped_at, seed=2))
    state = env.save()
    saved = State(json.loads(json.dumps(state.facts)), {key: array.copy() for key, array in state.arrays.items()})
    untouched = list(play(env, 250, seed=3))

    continued = make_stacked(name, seed=99)
    list(play(continued, 13, seed=4))
    continued.load(saved)
    assert list(play(continued, 250, seed=3)) == untouched
    assert (continued.game_score, continued.game_steps) == (env.game_score, env.game_steps)


def test_a_lost_life_is_part_of_the_saved_state() -> None:
    env, continued = make_stacked("Breakout", seed=0), make_stacked("Breakout", seed=5)
    step = env.step(0)
    while not step.terminal:
        step = env.step(0)
    assert not step.game_over
    continued.load(env.save())
    env.reset()
    continued.reset()
    assert continued.snapshot() == env.snapshot()
    np.testing.assert_array_equal(continued.frames, env.frames)


def test_saving_does_not_change_the_environment() -> None:
    saving, plain = make_stacked("CartPole-v1", seed=0), make_stacked("CartPole-v1", seed=0)
    for one, other in zip(play(saving, 100, seed=0), play(plain, 100, seed=0), strict=True):
        saving.save()
        assert one == other


def test_an_environment_that_cannot_be_restored_starts_a_new_game_when_loaded() -> None:
    env, continued = (make_stacked(USER + "NoSnapshot", seed=seed) for seed in (0, 1))
    assert not env.restorable
    assert env.snapshot() == b""
    env.step(1)
    continued.load(env.save())
    env.reset()
    np.testing.assert_array_equal(continued.frames, env.frames)
    assert continued.game_steps == 0
    with pytest.raises(UnusableEnvironment, match="cannot be restored"):
        env.restore(b"?", env.stack)


def test_a_state_of_another_environment_is_refused() -> None:
    with pytest.raises(UnusableEnvironment, match="saved observation"):
        make_stacked("CartPole-v1").load(make_stacked("Corridor").save())


def test_score_and_steps_are_summed_across_lost_lives() -> None:
    env = make_stacked("Qbert", seed=0)
    scores: list[float] = []
    ends = 0
    for step, _, _ in play(env, 2000, seed=0):
        scores.append(step.score)
        ends += step.terminal
        if step.game_over:
            break
        assert (env.game_score, env.game_steps) == (sum(scores), len(scores))
    assert ends == 4
    assert sum(scores) > 0
    env.reset()
    assert (env.game_score, env.game_steps) == (0.0, 0)


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("BadReward", "reward is nan"),
        ("BadObservation", "observation is .*inf"),
        ("WrongShape", r"observation is float64\(2,\)"),
        ("WidePixels", r"observation is uint16\(8, 8\) but its observation_space is uint8\(8, 8\)"),
        ("ColoursLast", r"float64\(1,\) is not in Box\(0, 255, \(8, 8, 3\), uint8\)"),
        ("FourAxes", "observation_space is Box.*planes first"),
        ("WithText", r"observation_space cannot be converted into numbers: 'told'\[0\] is Text"),
        ("Continuous", "action_space is Box[^\n]*DQN needs a Discrete action space"),
        ("MultiDiscreteActions", "action_space is MultiDiscrete"),
        ("ActionsFromOne", "starts at 0"),
        ("NoBytes", "snapshot.. returned str"),
    ],
)
def test_invalid_user_environments_are_refused_by_name(name: str, problem: str) -> None:
    def use() -> Any:
        return list(play(make_stacked(USER + name), 10, seed=0))

    with pytest.raises(UnusableEnvironment, match=f"{USER}{name}: .*{problem}"):
        use()


def test_a_reward_beyond_the_limit_is_refused_with_the_setting() -> None:
    env = make_stacked("CartPole-v1", seed=0)
    env.reward_limit = 1.0
    env.step(0)
    env.reward_limit = 0.5
    with pytest.raises(
        UnusableEnvironment, match=r"its reward is 1\.0, and env.reward_limit is 0\.5. .*raise env.reward_limit"
    ):
        env.step(0)
