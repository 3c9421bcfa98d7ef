from __future__ import annotations

import warnings
from typing import Any

import gymnasium
import numpy as np
import pytest

from dpsr_apex.envs.classic import EXACT, ByHistory, ClassicControl, make_registered
from dpsr_apex.envs.compression import DamagedSnapshot
from dpsr_apex.envs.stacked import StackedEnv

NO_FRAMES = np.zeros((0,))


@pytest.mark.parametrize("name", EXACT)
def test_steps_match_gymnasium(name: str) -> None:
    ours, theirs = ClassicControl(name), gymnasium.make(name)
    np.testing.assert_array_equal(ours.reset(seed=3)[0], theirs.reset(seed=3)[0])
    random = np.random.default_rng(0)
    ended = False
    while not ended:
        action = int(random.integers(ours.action_space.n))  # type: ignore[attr-defined] # Discrete
        mine, other = ours.step(action), theirs.step(action)
        np.testing.assert_array_equal(mine[0], other[0])
        assert mine[1:4] == other[1:4]
        ended = mine[2] or mine[3]


def test_the_time_limit_is_part_of_a_snapshot() -> None:
    env, other = ClassicControl("MountainCar-v0"), ClassicControl("MountainCar-v0")
    env.reset(seed=0)
    other.reset(seed=1)
    for _ in range(199):
        assert not env.step(1)[3]
    other.restore(env.snapshot(), NO_FRAMES)
    assert other.step(1)[3]


def test_acrobots_precision_is_part_of_a_snapshot() -> None:
    env, other = ClassicControl("Acrobot-v1"), ClassicControl("Acrobot-v1")
    env.reset(seed=0)
    other.restore(env.snapshot(), NO_FRAMES)
    assert other.unwrapped.state.dtype == np.float32  # type: ignore[attr-defined]
    env.step(0)
    other.restore(env.snapshot(), NO_FRAMES)
    assert other.unwrapped.state.dtype == np.float64  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", EXACT)
def test_a_snapshot_of_another_size_is_refused(name: str) -> None:
    env = ClassicControl(name)
    env.reset(seed=0)
    env.step(0)
    snapshot = env.snapshot()
    for damaged in [snapshot[:size] for size in range(len(snapshot))] + [snapshot + bytes(8)]:
        with pytest.raises(DamagedSnapshot):
            env.restore(damaged, NO_FRAMES)
    assert env.snapshot() == snapshot


def history(seed: int) -> StackedEnv:
    return StackedEnv(ByHistory("CartPole-v1"), stack=1, seed=seed)


def test_replaying_a_history_restores_the_state() -> None:
    env, other = history(0), history(1)
    for _ in range(3):
        for _ in range(6):
            env.step(0)
        other.restore(env.snapshot(), env.stack)
        assert other.step(1) == env.step(1)
        np.testing.assert_array_equal(other.frames, env.frames)
        env.reset()


def test_the_same_seed_gives_gymnasiums_first_observation() -> None:
    first, _ = gymnasium.make("CartPole-v1").reset(seed=5)
    np.testing.assert_array_equal(history(5).frames[0], first)


@pytest.mark.parametrize("damage", [lambda blob: blob[:-2], lambda blob: blob[:20] + b"?" + blob[21:]])
def test_a_damaged_history_is_refused(damage: Any) -> None:
    env = history(0)
    with pytest.raises(DamagedSnapshot):
        env.restore(damage(env.snapshot()), env.stack)


def test_lunar_lander_restores_if_box2d_is_installed() -> None:
    pytest.importorskip("Box2D")
    env, other = (StackedEnv(ByHistory("LunarLander-v3"), stack=1, seed=seed) for seed in (0, 1))
    for action in (2, 2, 1, 3, 2, 0):
        env.step(action)
    other.restore(env.snapshot(), env.stack)
    assert other.step(2) == env.step(2)
    np.testing.assert_array_equal(other.frames, env.frames)


def test_an_outdated_version_is_reported_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dpsr_apex.envs.classic._made", set())
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(3):
            make_registered("CartPole-v0").close()
    assert sum("out of date" in str(warning.message) for warning in caught) == 1
