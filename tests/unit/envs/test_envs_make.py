from __future__ import annotations

import subprocess
import sys

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
        ("Corridor", "unexpected keyword argument 'wrong'"),
    ],
)
def test_an_environment_that_cannot_be_created_is_refused_with_a_reason(name: str, reason: str) -> None:
    with pytest.raises(UnusableEnvironment, match=f"^{name}: .*{reason}"):
        make_env(name, {"wrong": 1} if name == "Corridor" else {})


def test_heavy_packages_are_imported_only_for_environments_that_need_them() -> None:
    heavy = "{'ale_py', 'cv2', 'minatar', 'torch', 'zmq'}"
    code = f"import sys, dpsr_apex.envs.make, dpsr_apex.envs.check; sys.exit(bool({heavy} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
