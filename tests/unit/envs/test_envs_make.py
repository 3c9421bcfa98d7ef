from __future__ import annotations

import re
import subprocess
import sys
from typing import Any

import pytest

from dpsr_apex.envs.make import make_env
from dpsr_apex.envs.snapshot import Restorable, UnusableEnvironment

USER = "tests.unit.envs.user_envs:"


@pytest.mark.parametrize("name", ["Breakout", "breakout", "MsPacman", "ms_pacman", "PongNoFrameskip-v4"])
def test_atari_names_are_accepted_in_any_spelling(name: str) -> None:
    assert isinstance(make_env(name), Restorable)


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
