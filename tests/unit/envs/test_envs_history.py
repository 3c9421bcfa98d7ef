"""`ByHistory`: environments without snapshots are restored by replaying their episode, or refused if that differs."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from dpsr_apex.config import Config, EnvConfig, ReplayConfig
from dpsr_apex.envs.check import check_restore, ensure_restorable
from dpsr_apex.envs.classic import ByHistory, can_replay
from dpsr_apex.envs.compression import DamagedSnapshot
from dpsr_apex.envs.make import make_env, make_stacked
from dpsr_apex.formatting import number
from dpsr_apex.roles.build import build_env
from dpsr_apex.usability import ensure_usable
from tests.unit.envs import user_envs

USER = "tests.unit.envs.user_envs:"
NO_FRAMES = np.zeros(0)


class Wide(user_envs.NoSnapshot):
    """More actions than fit into a byte; the last one is the longest way."""

    def __init__(self) -> None:
        super().__init__(length=30)
        self.action_space = spaces.Discrete(300)

    def step(self, action: int) -> Any:
        self.place += action
        return super().step(1)


@pytest.mark.parametrize("name", ["NoSnapshot", "OwnGenerator", "make_wrapped"])
def test_an_environment_without_snapshots_is_restored_exactly(name: str) -> None:
    result = check_restore(USER + name, moments=60)
    assert result.passed, result.problem
    assert result.by_history
    assert result.game_ends > 0


@pytest.mark.parametrize("name", ["FrozenLake-v1", "Taxi-v4", "Blackjack-v1"])
def test_tasks_of_gymnasium_without_snapshots_are_restored_exactly(name: str) -> None:
    result = check_restore(name, moments=60)
    assert result.passed, result.problem
    assert result.by_history


@pytest.mark.parametrize(
    ("name", "conversion"),
    [
        pytest.param(
            "highway_env:highway-fast-v0",
            "Box(-inf, inf, (5, 5), float32) -> 25 numbers",
            marks=[pytest.mark.slow, pytest.mark.thorough],  # tests/system trains on it as well
        ),
        ("gym_anytrading:stocks-v0", "Box(-1e+10, 1e+10, (30, 2), float32) -> 60 numbers"),
    ],
)
def test_environments_of_other_packages_are_restored_exactly(name: str, conversion: str) -> None:
    result = check_restore(name, moments=20)
    assert result.passed, result.problem
    assert (result.by_history, result.conversion) == (True, conversion)


def test_randomness_that_is_not_seeded_is_noticed_at_every_restore() -> None:
    env = make_env(USER + "Unrepeatable", by_history=True)
    assert isinstance(env, ByHistory)
    env.reset(seed=0)
    first = env.snapshot()
    env.step(0)
    with pytest.raises(DamagedSnapshot, match="replaying its history led to another state"):
        env.restore(env.snapshot(), NO_FRAMES)
    env.restore(first, NO_FRAMES)


def test_an_episode_that_ends_earlier_when_it_is_replayed_is_noticed() -> None:
    env = ByHistory(user_envs.NoSnapshot(length=5))
    env.reset(seed=0)
    for _ in range(4):
        env.step(1)
    snapshot = env.snapshot()
    shorter = ByHistory(user_envs.NoSnapshot(length=2))
    with pytest.raises(DamagedSnapshot, match="another state"):
        shorter.restore(snapshot, NO_FRAMES)
    assert shorter.unwrapped.steps == 2  # type: ignore[attr-defined] # no step was taken after the end


def test_every_episode_has_its_own_seed_and_a_restored_one_continues_with_the_same() -> None:
    env, same, other = (ByHistory(user_envs.OwnGenerator()) for _ in range(3))
    starts = [float(env.reset(seed=3)[0][0])] + [float(env.reset()[0][0]) for _ in range(4)]
    assert len(set(starts)) == 5
    assert starts == [float(same.reset(seed=3)[0][0])] + [float(same.reset()[0][0]) for _ in range(4)]
    assert starts[0] == gymnasium.utils.seeding.np_random(3)[0].random()
    other.restore(env.snapshot(), NO_FRAMES)
    np.testing.assert_array_equal(other.reset()[0], env.reset()[0])


def test_numbers_of_actions_beyond_a_byte_are_recorded() -> None:
    env, twin = ByHistory(Wide()), ByHistory(Wide())
    env.reset(seed=0)
    for action in (299, 0, 255, 256):
        env.step(action)
    twin.restore(env.snapshot(), NO_FRAMES)
    np.testing.assert_array_equal(twin.step(7)[0], env.step(7)[0])


def test_a_snapshot_of_an_environment_with_more_actions_is_refused() -> None:
    many, few = ByHistory(user_envs.NoSnapshot()), ByHistory(user_envs.NoSnapshot())
    many.reset(seed=0)
    many.step(7)
    with pytest.raises(DamagedSnapshot, match="unknown actions"):
        few.restore(many.snapshot(), NO_FRAMES)


@pytest.mark.parametrize("name", ["Continuous", "ActionsFromOne", "MultiDiscreteActions", "Duck"])
def test_other_actions_or_another_interface_have_no_history(name: str) -> None:
    assert not can_replay(getattr(user_envs, name)())
    assert not isinstance(make_env(USER + name, by_history=True), ByHistory)


def test_the_environments_own_snapshots_come_first() -> None:
    assert isinstance(make_env(USER + "Good", by_history=True), user_envs.Good)
    assert isinstance(make_env(USER + "NoSnapshot", by_history=True), ByHistory)
    assert isinstance(make_env(USER + "NoSnapshot"), user_envs.NoSnapshot)


def test_a_saved_environment_continues_exactly_by_its_history() -> None:
    env, continued = (make_stacked(USER + "OwnGenerator", seed=seed, by_history=True) for seed in (1, 2))
    for _ in range(33):
        if env.step(1).terminal:
            env.reset()
    continued.load(env.save())
    for _ in range(50):
        step = env.step(0)
        assert continued.step(0) == step
        np.testing.assert_array_equal(continued.frames, env.frames)
        if step.terminal:
            env.reset()
            continued.reset()


@pytest.mark.parametrize(("method", "records"), [("dpsr", True), ("per", False), ("uniform", False)])
def test_only_methods_that_restore_states_record_histories(method: str, records: bool) -> None:
    config = Config(env=EnvConfig(USER + "NoSnapshot"), replay=ReplayConfig(method=method))
    env = build_env(config, 0, training=True)
    assert env.restorable == isinstance(env.env, ByHistory) == records
    assert bool(env.snapshot()) == records


def test_the_cost_of_a_restore_is_measured_by_the_steps_that_were_replayed() -> None:
    result = ensure_restorable(USER + "NoSnapshot")
    assert (result.episode_steps, result.finished_steps % 20) == (20, 0)
    assert result.restored_steps > 0
    per_step = result.restore_seconds / result.restored_steps
    assert result.episode_seconds == pytest.approx(20 * per_step)
    assert "for an episode of 20 steps" in result.history_cost
    assert ensure_restorable(USER + "Good").history_cost == ""


@pytest.mark.parametrize(
    ("recycling", "restores"),
    [
        ({"recycle_period": 1_000, "recycle_candidates": 8}, 80),
        ({"recycle_share": 0.5, "recycle_steps": 10}, 1_000),
        ({"recycle_share": 0.2, "recycle_steps": 1}, 2_500),
    ],
)
def test_the_cost_for_a_run_is_that_of_half_an_episode_per_restore(
    recycling: dict[str, Any], restores: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dpsr_apex.envs.check.Result.episode_seconds", 0.25)
    config = Config(env=EnvConfig(USER + "Rooms", wrappers=(USER + "Tired",)), replay=ReplayConfig(**recycling))
    observations, cost = ensure_usable(config).notes
    assert observations == "Observations: Dict(place, step) -> 11 numbers"
    assert cost.startswith("Restores replay the history: 250 ms for an episode of 9 steps, about ")
    assert cost.endswith(f"about {number(restores * 0.125, 2)} s per 10,000 steps of the run")


def test_a_run_without_recycling_reports_the_conversion_only() -> None:
    config = Config(env=EnvConfig(USER + "Rooms"), replay=ReplayConfig(method="per"))
    assert ensure_usable(config).notes == ["Observations: Dict(place, step) -> 11 numbers"]


def test_a_check_that_takes_too_long_ends_with_what_it_has_found() -> None:
    assert check_restore(USER + "NoSnapshot", moments=100, max_seconds=0).moments == 1
    assert not check_restore(USER + "Unrepeatable", moments=100, max_seconds=60).passed
