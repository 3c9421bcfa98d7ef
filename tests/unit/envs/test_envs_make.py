from __future__ import annotations

import subprocess
import sys

import pytest

from dpsr_apex.envs.make import make_env
from dpsr_apex.envs.snapshot import Reentrant, UnusableEnvironment

USER = "tests.unit.envs.user_envs:"


@pytest.mark.parametrize("name", ["Breakout", "breakout", "MsPacman", "ms_pacman", "PongNoFrameskip-v4"])
def test_a_game_is_found_however_it_is_spelt(name: str) -> None:
    assert isinstance(make_env(name), Reentrant)


def test_arguments_reach_the_constructor() -> None:
    assert make_env(USER + "Good", {"length": 7}).length == 7  # type: ignore[attr-defined]


def test_any_registered_environment_can_be_used() -> None:
    assert not isinstance(make_env("MountainCarContinuous-v0"), Reentrant)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("Brekout", "Did you mean Breakout"),
        ("Xyzzy", "no environment of this name"),
        ("Combat", "no single-player form"),
        ("Nothing-v7", "cannot be made"),
        ("no_such_module:Env", "No module named"),
        (USER + "Missing", "has no Missing"),
        ("os:getcwd", "getcwd is not a Gymnasium environment"),
        ("Corridor", "unexpected keyword argument 'wrong'"),
    ],
)
def test_what_cannot_be_made_is_refused_with_a_reason(name: str, reason: str) -> None:
    with pytest.raises(UnusableEnvironment, match=f"^{name}: .*{reason}"):
        make_env(name, {"wrong": 1} if name == "Corridor" else {})


def test_nothing_heavy_is_imported_before_a_game_is_asked_for() -> None:
    heavy = "{'ale_py', 'cv2', 'minatar', 'torch', 'zmq'}"
    code = f"import sys, dpsr_apex.envs.make, dpsr_apex.envs.check; sys.exit(bool({heavy} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
