"""`DpsrDQN` against stable-baselines3's own DQN, and against the environment that its states are re-entered in."""

from __future__ import annotations

import importlib
import inspect
import sys
from copy import deepcopy
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from stable_baselines3 import DQN
from stable_baselines3.common.type_aliases import ReplayBufferSamples
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

import dpsr_apex as da
from dpsr_apex.api.settings import ReplaySettings
from dpsr_apex.sb3 import DpsrDQN

SMALL: dict[str, Any] = {
    "buffer_size": 60,
    "learning_starts": 40,
    "batch_size": 8,
    "train_freq": 1,
    "target_update_interval": 50,
    "policy_kwargs": {"net_arch": [8]},
    "seed": 3,
    "device": "cpu",
}
RECYCLING: ReplaySettings = {"recycle_period": 10, "recycle_candidates": 4, "replace_candidates": 8}


def cartpole() -> da.SnapshotEnv:
    return da.make_env("CartPole-v1")


def dpsr(env: Any = "CartPole-v1", **arguments: Any) -> DpsrDQN:
    return DpsrDQN("MlpPolicy", env, **{"replay_settings": RECYCLING, **SMALL, **arguments})


def columns(batch: da.Batch) -> ReplayBufferSamples:
    """Return a batch as stable-baselines3 samples it: a column of numbers has two axes."""
    obs, actions, rewards, next_obs, terminated, discounts, *_ = batch.torch()
    narrow = (one[:, None] for one in (terminated, rewards, discounts))
    return ReplayBufferSamples(obs, actions[:, None], next_obs, *narrow)


def test_with_uniform_replay_an_update_is_that_of_dqn(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = dpsr(method="uniform", n_steps=3)
    ours.learn(60)
    reference = DQN("MlpPolicy", cartpole(), **SMALL)
    reference.learn(1)
    reference.policy.load_state_dict(ours.policy.state_dict())
    reference.policy.optimizer.load_state_dict(deepcopy(ours.policy.optimizer.state_dict()))
    batches: list[da.Batch] = []
    sample = ours.replay_buffer.buffer.sample

    def recorded(size: int) -> da.Batch:
        batches.append(sample(size))
        return batches[-1]

    monkeypatch.setattr(ours.replay_buffer.buffer, "sample", recorded)
    monkeypatch.setattr(reference.replay_buffer, "sample", lambda _size, env: columns(batches.pop(0)))  # noqa: ARG005
    ours.train(4, 8)
    assert len(batches) == 4
    reference.train(4, 8)
    assert ours.logger.name_to_value["train/loss"] == pytest.approx(reference.logger.name_to_value["train/loss"])
    for mine, theirs in zip(ours.q_net.parameters(), reference.q_net.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs)


def test_the_loss_is_weighted_and_td_errors_become_priorities(tmp_path: Path) -> None:
    model = dpsr(method="per", target_update_interval=1_000)
    model.learn(60)
    buffer, twin = model.replay_buffer.buffer, dpsr(method="per").replay_buffer.buffer
    buffer.save(tmp_path)
    twin.load(tmp_path)
    twin.total_steps = buffer.total_steps
    batch = twin.sample(8)
    assert len(set(batch.weights.tolist())) > 1
    td_errors = np.array([_td_error(model, batch, row) for row in range(8)])
    model.train(1, 8)
    small = np.abs(td_errors) < 1
    losses = np.where(small, td_errors**2 / 2, np.abs(td_errors) - 0.5)
    assert model.logger.name_to_value["train/loss"] == pytest.approx(float(np.mean(batch.weights * losses)), rel=1e-4)
    last = {int(name): abs(error) + 1e-6 for name, error in zip(batch.ids, td_errors, strict=True)}
    priorities = dict(zip(buffer._replay.identities.tolist(), buffer._replay.priorities.tolist(), strict=True))
    assert {name: priorities[name] for name in last} == pytest.approx(last, rel=1e-4)


def _td_error(model: DpsrDQN, batch: da.Batch, row: int) -> float:
    with torch.no_grad():
        values = model.q_net(torch.as_tensor(batch.obs[row : row + 1]))[0]
        ahead = model.q_net_target(torch.as_tensor(batch.next_obs[row : row + 1]))[0].max()
    target = batch.rewards[row] + (0.0 if batch.terminated[row] else 0.99 * float(ahead))
    return float(target - values[batch.actions[row]])


@pytest.mark.parametrize("n_steps", [1, 3])
def test_recycled_steps_are_what_the_environment_does_in_the_stored_states(n_steps: int) -> None:
    envs = DummyVecEnv([cartpole, cartpole])
    model = dpsr(envs, recycle_env=cartpole(), n_steps=n_steps)
    model.learn(200)
    replay = model.replay_buffer.buffer._replay
    assert replay.check_valid() == (True, "")
    assert replay.counters.recycled == model.logger.name_to_value["replay/recycled"] > 0
    rows = replay.read(replay.identities[replay.depths > 0])
    codec, oracle = model.replay_buffer.buffer._codec, cartpole()
    states, ends = (codec.decompress_stacks(stacks) for stacks in (rows.s_tm1, rows.s_t))
    for row in range(len(rows)):
        s_tm1, s_t = states[row], ends[row]
        assert oracle.restore(rows.snapshots[row], s_tm1).tolist() == s_tm1.tolist()
        obs, reward, terminated, *_ = oracle.step(int(rows.a_tm1[row]))
        assert (obs.tolist(), reward, terminated) == (s_t.tolist(), rows.r_t[row], rows.terminal[row])


def test_schedules_end_with_the_steps_of_learn() -> None:
    model = dpsr(method="per")
    replay = model.replay_buffer.buffer._replay
    for length in (50, 100):  # the second time as the first: the number of time steps is reset
        model.learn(length)
        assert (replay.total_steps, replay.t) == (replay.t, length if length == 50 else 150)
    model.learn(30, reset_num_timesteps=False)
    assert (replay.total_steps, replay.t) == (180, 180)


def test_a_time_limit_is_no_terminal_and_its_last_observation_is_kept() -> None:
    model = dpsr(da.make_env("CartPole-v1", max_episode_steps=5), method="per")
    model.learn(20)
    replay = model.replay_buffer.buffer._replay
    rows = replay.read(np.sort(replay.identities))
    assert not rows.terminal.any()
    assert rows.episode_steps.tolist() == [0, 1, 2, 3, 4] * 4
    oracle = gymnasium.make("CartPole-v1").unwrapped
    for row in (4, 9):
        s_tm1, s_t = (np.frombuffer(stack[row][0], np.float32, 4) for stack in (rows.s_tm1, rows.s_t))
        oracle.reset()
        oracle.state = s_tm1.tolist()  # type: ignore[attr-defined]
        np.testing.assert_allclose(oracle.step(int(rows.a_tm1[row]))[0], s_t, rtol=1e-4)


def test_an_episode_that_learn_cuts_off_is_not_continued() -> None:
    model = dpsr(method="per", n_steps=3, buffer_size=200)
    model.learn(5)
    model.learn(30)
    replay = model.replay_buffer.buffer._replay
    rows = replay.read(np.sort(replay.identities))
    assert rows.n_steps[:5].tolist() == [3, 3, 3, 2, 1]
    assert rows.r_t[:5].tolist() == pytest.approx([2.9701, 2.9701, 2.9701, 1.99, 1.0])


def test_normalization_applies_to_batches_and_the_replay_holds_what_the_environment_returned() -> None:
    envs = VecNormalize(DummyVecEnv([cartpole]), norm_reward=True)
    model = dpsr(envs, recycle_env=cartpole())
    model.learn(150)
    buffer = model.replay_buffer.buffer
    assert buffer.counters["recycled"] > 0
    batch = buffer.sample(8)
    assert set(batch.rewards.tolist()) == {1.0}
    seen = model._normalized(batch)
    np.testing.assert_array_equal(seen.obs, envs.normalize_obs(batch.obs))
    np.testing.assert_array_equal(seen.rewards, envs.normalize_reward(batch.rewards))
    assert not np.array_equal(seen.obs, batch.obs)


def test_a_saved_model_and_its_replay_continue(tmp_path: Path) -> None:
    first = dpsr(n_steps=3)
    first.learn(120)
    first.save(tmp_path / "model")
    first.save_replay_buffer(tmp_path / "replay")
    second = DpsrDQN.load(tmp_path / "model", env=cartpole(), recycle_env=cartpole())
    second.load_replay_buffer(tmp_path / "replay")
    second.replay_buffer.buffer.total_steps = 120  # `learn` sets it
    for mine, theirs in zip(first.replay_buffer.buffer.sample(8), second.replay_buffer.buffer.sample(8), strict=True):
        assert mine.tobytes() == theirs.tobytes()
    before = second.replay_buffer.buffer.counters["recycled"]
    second.learn(60, reset_num_timesteps=False)
    assert second.num_timesteps == 180
    assert second.replay_buffer.buffer.counters["recycled"] > before


def test_images_with_channels_first_are_trained_on() -> None:
    model = DpsrDQN("CnnPolicy", "Breakout", buffer_size=20, learning_starts=30, replay_settings=RECYCLING, seed=0)
    model.learn(40)
    assert model.replay_buffer.buffer.sample(2).obs.shape == (2, 4, 84, 84)
    assert model.replay_buffer.buffer.counters["recycled"] > 0


class Other(gymnasium.Env[NDArray[np.float32], Any]):
    """An environment that is not CartPole."""

    observation_space = spaces.Box(0, 1, (1,), np.float32)
    action_space = spaces.Discrete(2)


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"method": "perr"}, "method must be one of .*'per'"),
    ({"replay_settings": {"capacity": 3}}, "replay_settings must not have 'capacity'"),
    ({"replay_settings": {"alpha": 0.6}}, "no setting 'alpha'"),
    ({"replay_buffer_class": object}, "does not take replay_buffer_class: the replay follows from `method`"),
    ({"optimize_memory_usage": True}, "does not take optimize_memory_usage"),
    ({"env": gymnasium.make("CartPole-v1")}, "pass recycle_env, or choose method='double'"),
    ({"env": gymnasium.make("CartPole-v1"), "recycle_env": cartpole()}, "env has no snapshot\\(\\): TimeLimit"),
    ({"env": cartpole(), "recycle_env": Other()}, "recycle_env must have the observation_space of env"),
    ({"env": cartpole(), "recycle_env": gymnasium.make("CartPole-v1")}, "env cannot be restored"),
]


@pytest.mark.parametrize(("arguments", "message"), REFUSED)
def test_what_cannot_work_is_refused_in_one_line(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(da.UserError, match=message) as refusal:
        dpsr(**arguments).learn(100)
    assert "\n" not in str(refusal.value)


def test_without_the_package_the_import_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "stable_baselines3", None)
    monkeypatch.delitem(sys.modules, "dpsr_apex.sb3")
    with pytest.raises(ImportError, match=r"needs the package stable_baselines3, .*pip install '\.\[sb3\]'") as failure:
        importlib.import_module("dpsr_apex.sb3")
    assert isinstance(failure.value, da.UserError)


def test_its_signature_is_pinned() -> None:
    assert str(inspect.signature(DpsrDQN)) == (
        "(policy: 'Any', env: 'Any', *, method: 'str' = 'dpsr', recycle_env: 'Any' = None, "
        "replay_settings: 'ReplaySettings | None' = None, _init_setup_model: 'bool' = True, "
        "**arguments: 'Any') -> 'None'"
    )
