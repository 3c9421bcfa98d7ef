"""`make_env` and `make_vec` on real emulators: after a restore, the same actions lead to identical outcomes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from numpy.typing import NDArray

import dpsr_apex as da
from dpsr_apex.envs.compression import DamagedSnapshot

LANES = 3
Outcome = tuple[NDArray[Any], float, bool, bool]


def follow(envs: da.SnapshotVectorEnv, lane: int, actions: NDArray[np.int64]) -> list[Outcome]:
    """Step all lanes with these actions; return what one lane does, including its resets."""
    outcomes = []
    for row in actions:
        obs, rewards, terminated, truncated, _ = envs.step(row)
        outcomes.append((obs[lane], rewards[lane], terminated[lane], truncated[lane]))
    return outcomes


def assert_same(first: list[Outcome], second: list[Outcome]) -> None:
    for one, other in zip(first, second, strict=True):
        np.testing.assert_array_equal(one[0], other[0])
        assert one[1:] == other[1:]


@pytest.mark.parametrize(("name", "shape"), [("Breakout", (4, 84, 84)), ("CartPole-v1", (4,))])
@pytest.mark.parametrize("with_observation", [True, False])
def test_a_restored_lane_repeats_its_steps_exactly(name: str, shape: tuple[int, ...], with_observation: bool) -> None:
    envs = da.make_vec(name, LANES)
    rng = np.random.default_rng(0)
    obs, _ = envs.reset(seed=0)
    assert obs.shape == (LANES, *shape)
    assert obs in envs.observation_space
    actions = rng.integers(envs.single_action_space.n, size=(160, LANES))
    follow(envs, 1, actions[:60])
    before = envs.envs[1].observation
    snapshot = envs.snapshot(1, with_observation)
    first = follow(envs, 1, actions[60:])
    ends = np.flatnonzero([outcome[2] for outcome in first])
    assert ends.size  # an episode ends, and the lane is reset
    upto = int(ends[0])  # where the next episode begins is random in CartPole
    for lane, taken in ((1, actions[60:]), (2, np.roll(actions[60:], 1, axis=1))):
        restored = envs.restore(lane, snapshot, None if with_observation else before)
        np.testing.assert_array_equal(restored, before)
        assert_same(first[:upto], follow(envs, lane, taken)[:upto])
    envs.close()


def test_the_final_observation_and_the_first_of_the_next_episode_are_both_returned() -> None:
    envs = da.make_vec("CartPole-v1", 2)
    single = da.make_env("CartPole-v1")
    envs.reset(seed=4)
    single.reset(seed=5)
    while True:
        obs, _, terminated, _, infos = envs.step(np.array([1, 1]))
        expected, *_ = single.step(1)
        if terminated[1]:
            break
        np.testing.assert_array_equal(obs[1], expected)
    np.testing.assert_array_equal(infos["final_obs"][1], expected)
    assert infos["_final_obs"][1]
    assert np.abs(obs[1]).max() <= 0.05  # CartPole's initial states


def test_a_buffer_is_fed_from_a_vector_environment_and_recycles_with_a_single_one() -> None:
    envs, recycler = da.make_vec("Breakout", 2), da.make_env("Breakout")
    buffer = da.ReplayBuffer(
        *(60, envs.single_observation_space, recycler.action_space), recycle_period=20, recycle_candidates=4
    )
    rng = np.random.default_rng(0)
    obs, _ = envs.reset(seed=0)
    for _ in range(50):
        snapshots, actions = envs.snapshots(), rng.integers(4, size=2)
        next_obs, rewards, terminated, truncated, infos = envs.step(actions)
        buffer.add(obs, actions, rewards, next_obs, terminated, truncated, snapshots, final_obs=infos.get("final_obs"))
        buffer.recycle(recycler, lambda obs: np.zeros(len(obs), int), lambda batch: batch.rewards)
        obs = next_obs
    assert buffer.counters["candidates_lost"] == 0
    assert buffer.counters["recycled"] == 2 * 3  # at t = 80 and 100, one slot each goes to the new transition
    batch = buffer.sample(32)
    assert batch.obs.shape == (32, 4, 84, 84)


def test_it_is_a_gymnasium_environment() -> None:
    env = da.make_env("MountainCar-v0")
    check_env(env, skip_render_check=True)


def other_snapshot(with_observation: bool = True) -> bytes:
    env = da.make_env("MountainCar-v0")
    env.reset(seed=0)
    return env.snapshot(with_observation)


def test_lanes_are_seeded_by_one_number_or_one_each() -> None:
    envs = da.make_vec("CartPole-v1", 2)
    first, _ = envs.reset(seed=3)
    seeds: list[Any] = [np.int64(3), [3, 4], np.array([3, 4])]
    for seed in seeds:
        np.testing.assert_array_equal(envs.reset(seed=seed)[0], first)
    one, _ = envs.reset(seed=[3, None])
    np.testing.assert_array_equal(one[0], first[0])
    assert not np.array_equal(one[1], first[1])


def test_lanes_differ_until_they_are_seeded() -> None:
    obs, _ = da.make_vec("CartPole-v1", 3).reset()
    again, _ = da.make_vec("CartPole-v1", 3).reset()
    assert len(np.unique(np.concatenate([obs, again]), axis=0)) == 6


def test_every_lane_is_rendered() -> None:
    assert [image.shape for image in da.make_vec("Breakout", 2).render()] == [(210, 160, 3)] * 2


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda env: env.snapshot(3), "lane must be between 0 and 1"),
        (lambda env: env.restore(0, "text"), "snapshot must be bytes"),
        (lambda env: env.restore(0, env.snapshot(0, with_observation=False)), "without its observation"),
        (lambda env: env.restore(0, env.snapshot(0), np.zeros(3, np.float32)), "observation must have the shape"),
        (lambda env: env.step(np.array([0, 2])), "action must be between 0 and 1"),
        (lambda env: env.snapshot("first"), "lane must be an integer"),
        (lambda env: env.reset(seed=[1, 2, 3]), r"seed must be .* one for each of the 2 lanes \(got 3\)"),
        (lambda env: env.reset(seed=-1), r"seed must be an integer >= 0 \(got -1\)"),
        (lambda env: env.envs[0].reset(seed=1.5), r"seed must be an integer >= 0 \(got 1.5\)"),
        (lambda env: env.envs[0].step(2), "action must be between 0 and 1"),
        (lambda env: env.restore(0, other_snapshot()), "snapshot: damaged frame"),
        (lambda env: env.restore(0, other_snapshot(with_observation=False), np.zeros(4)), "or one of another task"),
        (lambda _: da.make_vec("CartPole-v1", 0), "num_envs must be an integer >= 1"),
        (lambda _: da.make_env("CartPole-v1", stack=0), "stack must be an integer >= 1"),
        (lambda _: da.make_env("CartPole-v1", wrappers="my:Wrapper"), "wrappers must be a list"),
        (lambda _: da.make_env("CartPole-v1", wrappers=[5]), "wrappers must be a list"),  # type: ignore[list-item]
        (lambda _: da.make_env("Breakoutt"), "Breakout"),
    ],
)
def test_wrong_input_is_refused(call: Any, message: str) -> None:
    envs = da.make_vec("CartPole-v1", 2)
    envs.reset(seed=0)
    with pytest.raises(da.UserError, match=message):
        call(envs)


def test_a_seed_may_be_a_number_of_numpy() -> None:
    one, two = da.make_env("CartPole-v1"), da.make_env("CartPole-v1")
    assert one.reset(seed=np.int64(3))[0].tolist() == two.reset(seed=3)[0].tolist()  # type: ignore[arg-type]  # of numpy


def test_a_changed_snapshot_is_refused() -> None:
    env = da.make_env("CartPole-v1")
    env.reset(seed=0)
    snapshot = env.snapshot()
    for damaged in (b"", b"\x07" + snapshot, snapshot[:-1], snapshot[:9] + b"\xff" + snapshot[10:]):
        with pytest.raises(da.UserError, match="damaged snapshot") as refusal:
            env.restore(damaged)
        assert isinstance(refusal.value, DamagedSnapshot)  # which recycling counts as a lost candidate
