"""Environments made by a user's function, and environments inside a user's wrappers."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest

from dpsr_apex.envs.atari import Atari
from dpsr_apex.envs.check import check_restore
from dpsr_apex.envs.classic import ByHistory
from dpsr_apex.envs.make import make_env, make_stacked
from dpsr_apex.envs.snapshot import UnusableEnvironment, is_restorable
from tests.unit.envs import user_envs

USER = "tests.unit.envs.user_envs:"


def test_a_function_that_promises_an_environment_is_called_with_the_arguments() -> None:
    env = make_env(USER + "make_good", {"length": 7})
    assert isinstance(env, user_envs.Good)
    assert env.length == 7
    assert isinstance(make_env(USER + "make_wrapped"), user_envs.Doubled)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("make_secretly", "annotate it, def make_secretly"),
        ("make_text", "annotate it, def make_text"),
        ("make_nothing", "returned NoneType, which is not a gymnasium.Env"),
    ],
)
def test_any_other_function_is_refused_and_without_a_promise_not_even_called(name: str, reason: str) -> None:
    user_envs.calls.clear()
    with pytest.raises(UnusableEnvironment, match=f"^{USER}{name}: [^\n]*{reason}[^\n]*$"):
        make_env(USER + name)
    assert user_envs.calls == []


def test_an_argument_that_a_function_does_not_take_is_refused_by_name() -> None:
    with pytest.raises(UnusableEnvironment, match=r"env\.arguments\.lenght.*Its arguments are length"):
        make_env(USER + "make_good", {"lenght": 7})


def test_wrappers_are_applied_in_order() -> None:
    env = make_env(USER + "Good", wrappers=(USER + "Doubled", USER + "Tired"))
    assert isinstance(env, user_envs.Tired)
    assert isinstance(env.env, user_envs.Doubled)
    assert isinstance(env.env.env, user_envs.Good)


@pytest.mark.parametrize(
    ("wrapper", "reason"),
    [
        (USER + "Good", "is not a gymnasium.Wrapper"),
        (USER + "Missing", "has no class Missing"),
        (USER + "make_good", "has no class make_good"),
        ("no_such_module:Wrapper", "No module named"),
        (USER + "Greedy", "cannot be applied: TypeError: .*amount"),
    ],
)
def test_a_wrapper_that_cannot_be_applied_is_refused_with_a_reason(wrapper: str, reason: str) -> None:
    with pytest.raises(UnusableEnvironment, match=f"^{USER}Good: [^\n]*{reason}[^\n]*$"):
        make_env(USER + "Good", wrappers=(wrapper,))


def test_a_wrapped_id_is_gymnasiums_own_environment() -> None:
    env = make_stacked("MiniGrid-Empty-5x5-v0", wrappers=("minigrid.wrappers:ImgObsWrapper",), seed=4)
    theirs = gymnasium.make("MiniGrid-Empty-5x5-v0")
    expected = theirs.reset(seed=4)[0]["image"]
    np.testing.assert_array_equal(env.frames[0], np.moveaxis(expected, -1, 0))
    assert env.conversion == "images of 7 x 7 x 3 -> 3 planes of 7 x 7"


def test_a_wrapped_atari_game_has_its_preprocessing_names_and_fingerprint() -> None:
    env, plain = make_stacked("Breakout", wrappers=(USER + "Doubled",)), make_stacked("Breakout")
    assert isinstance(env.env.unwrapped, Atari)  # type: ignore[attr-defined]
    assert env.description == plain.description


def test_a_score_in_the_info_of_another_package_is_not_ours() -> None:
    gymnasium.register("RunningScore-v0", entry_point=USER + "RunningScore")
    try:
        env = make_stacked("RunningScore-v0", {"length": 5}, seed=0)
        steps = [env.step(1) for _ in range(5)]
        assert env.env.step(0)[4] == {"kept": 7}
    finally:
        del gymnasium.registry["RunningScore-v0"]
    assert [step.score for step in steps] == [1.0] * 5
    assert (env.game_score, steps[-1].terminal, steps[-1].game_over) == (5.0, True, True)


@pytest.mark.parametrize("wrapper", ["Tired", "Forwarding"])
def test_the_state_of_a_wrapper_is_restored_too(wrapper: str) -> None:
    env = make_env(USER + "Good", wrappers=(USER + wrapper,), by_history=True)
    assert not is_restorable(env.env)  # type: ignore[attr-defined]
    assert isinstance(env, ByHistory)
    result = check_restore(USER + "Good", moments=60, wrappers=(USER + wrapper,))
    assert result.passed, result.problem
    assert result.by_history


def test_a_wrapped_atari_game_is_restored_across_lost_lives() -> None:
    result = check_restore("Breakout", moments=20, wrappers=(USER + "Tired",))
    assert result.passed, result.problem
    assert result.by_history
    assert min(result.lost_lives, result.game_ends) > 0
