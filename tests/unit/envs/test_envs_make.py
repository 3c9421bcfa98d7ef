from __future__ import annotations

import re
import subprocess
import sys
from typing import Any

import gymnasium
import pytest
from gymnasium.envs.registration import EnvSpec

from dpsr_apex.envs.make import make_env
from dpsr_apex.envs.snapshot import Restorable, UnusableEnvironment
from tests.unit.envs.user_envs import Good

USER = "tests.unit.envs.user_envs:"


@pytest.mark.parametrize("name", ["Breakout", "breakout", "MsPacman", "ms_pacman", "PongNoFrameskip-v4"])
def test_atari_names_are_accepted_in_any_spelling(name: str) -> None:
    assert isinstance(make_env(name), Restorable)


@pytest.mark.parametrize(
    ("name", "plain"),
    [
        ("minigrid:MiniGrid-Empty-5x5-v0", "MiniGrid-Empty-5x5-v0"),
        ("gymnasium.envs:CartPole-v1", "CartPole-v1"),
        ("ale_py:PongNoFrameskip-v4", "Pong"),
    ],
)
def test_an_id_may_name_the_package_that_registers_it(name: str, plain: str) -> None:
    env, same = make_env(name), make_env(plain)
    assert type(env) is type(same)
    assert (env.reset(seed=1)[0] == same.reset(seed=1)[0]).all()


def test_an_id_with_a_namespace_needs_no_version(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = EnvSpec("Walls/Plain", entry_point=f"{USER}Good")
    monkeypatch.setitem(gymnasium.registry, spec.id, spec)
    assert isinstance(make_env("tests.unit.envs.user_envs:Walls/Plain").unwrapped, Good)  # type: ignore[attr-defined]


def test_an_id_of_a_package_that_does_not_exist_is_refused() -> None:
    with pytest.raises(UnusableEnvironment, match="No module named 'no_such_package'"):
        make_env("no_such_package:Some-v0")


@pytest.mark.parametrize("name", ["ALE/Pong-v5", "ale_py:ALE/Pong-v5"])
def test_version_5_of_an_ale_game_has_sticky_actions_unless_they_are_set(name: str) -> None:
    def fingerprint(name: str, **arguments: float) -> str:
        return make_env(name, arguments).fingerprint  # type: ignore[attr-defined, no-any-return]

    assert fingerprint(name) == fingerprint("Pong", repeat_action_probability=0.25) != fingerprint("Pong")
    assert fingerprint(name, repeat_action_probability=0.0) == fingerprint("Pong")


def test_arguments_reach_the_constructor() -> None:
    assert make_env(USER + "Good", {"length": 7}).length == 7  # type: ignore[attr-defined]


def test_any_registered_environment_can_be_used() -> None:
    assert not isinstance(make_env("MountainCarContinuous-v0"), Restorable)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("Brekout", "Did you mean Breakout"),
        ("Xyzzy", "no environment of this name"),
        ("Combat", "no single-player mode"),
        ("Nothing-v7", "cannot be created"),
        ("no_such_module:Env", "No module named"),
        (USER + "Missing", "has no class Missing"),
        ("os:getcwd", "os has no class getcwd"),
    ],
)
def test_an_environment_that_cannot_be_created_is_refused_with_a_reason(name: str, reason: str) -> None:
    with pytest.raises(UnusableEnvironment, match=f"^{name}: .*{reason}"):
        make_env(name)


@pytest.mark.parametrize(
    ("name", "arguments", "unknown"),
    [
        ("Corridor", {"depth": 5, "width": 1}, "width"),
        ("Breakout", {"max_episode_steps": 50}, "max_episode_steps"),
        ("Breakout", {"training": True}, "training"),
        ("Breakout", {"game": "Pong"}, "game"),
        ("MinAtar/Breakout", {"max_frames": 300}, "max_frames"),
        ("CartPole-v1", {"max_steps": 50}, "max_steps"),
        ("CartPole-v1", {"disable_env_checker": False}, "disable_env_checker"),
        ("MountainCarContinuous-v0", {"gravity": 1}, "gravity"),
        (USER + "Good", {"lenght": 7}, "lenght"),
    ],
)
def test_an_unknown_argument_is_refused_by_name(name: str, arguments: dict[str, Any], unknown: str) -> None:
    with pytest.raises(UnusableEnvironment) as refusal:
        make_env(name, arguments)
    message = str(refusal.value)
    assert message.startswith(f"{name}: ")
    assert "\n" not in message
    assert re.findall(r"env\.arguments\.(\w+)", message) == [unknown]


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("CartPole-v1", {"max_episode_steps": 0}),
        ("CartPole-v1", {"max_episode_steps": "50"}),
        ("MountainCarContinuous-v0", {"max_episode_steps": 2.5}),
        ("Breakout", {"max_frames": 1000.5}),
        ("MinAtar/Breakout", {"max_steps": 2.5}),
        ("MinAtar/Breakout", {"sticky_action_prob": "often"}),
        ("MinAtar/Breakout", {"difficulty_ramping": 1}),
        ("Corridor", {"depth": 2.5}),
    ],
)
def test_a_value_that_cannot_be_applied_is_refused_by_name(name: str, arguments: dict[str, Any]) -> None:
    with pytest.raises(UnusableEnvironment, match=f"{next(iter(arguments))} must be [^\n]*$"):
        make_env(name, arguments)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("CartPole-v1", {}),
        ("MountainCar-v0", {}),
        ("MountainCarContinuous-v0", {}),
        ("dpsr_apex.envs.classic:ByHistory", {"env": "CartPole-v1"}),
    ],
)
def test_max_episode_steps_is_the_time_limit(name: str, arguments: dict[str, Any]) -> None:
    env = make_env(name, {**arguments, "max_episode_steps": 5})
    env.reset(seed=0)
    truncated = [env.step(env.action_space.sample())[3] for _ in range(5)]
    assert truncated == [False] * 4 + [True]


def test_a_longer_time_limit_than_gymnasiums_is_applied() -> None:
    env = make_env("MountainCar-v0", {"max_episode_steps": 250})
    env.reset(seed=0)
    assert [env.step(1)[3] for _ in range(250)].index(True) == 249


def test_heavy_packages_are_imported_only_for_environments_that_need_them() -> None:
    heavy = "{'ale_py', 'cv2', 'minatar', 'minigrid', 'torch', 'zmq'}"
    code = f"import sys, dpsr_apex.envs.make, dpsr_apex.envs.check; sys.exit(bool({heavy} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
