from __future__ import annotations

import pytest

from dpsr_apex.envs.check import PAPER_GAMES, check_command, check_reentry, ensure_reentrant
from dpsr_apex.envs.snapshot import UnusableEnvironment

USER = "tests.unit.envs.user_envs:"


def test_the_paper_has_24_games() -> None:
    assert len(set(PAPER_GAMES)) == 24


@pytest.mark.parametrize("name", ["CartPole-v1", "MountainCar-v0", "Acrobot-v1", "Corridor", USER + "Good"])
def test_what_restores_passes(name: str) -> None:
    result = check_reentry(name, moments=100)
    assert result.passed, result.problem
    assert result.moments >= 100
    assert result.first_steps > 1
    assert result.game_ends + result.time_limits > 0
    assert result.snapshot_bytes > 0


@pytest.mark.parametrize("game", ["Breakout", "Qbert"])
def test_a_game_passes_around_lost_lives_and_its_end(game: str) -> None:
    told: list[int] = []
    result = check_reentry(game, moments=30, progress=told.append)
    assert result.passed, result.problem
    assert min(result.first_steps, result.lost_lives, result.game_ends) > 0
    assert told[-1] >= 30


def test_a_forgotten_counter_is_found_where_the_episode_ends() -> None:
    result = check_reentry(USER + "Forgetful", moments=50)
    assert not result.passed
    assert result.mismatches > 0
    assert "terminal=True" in result.problem


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("Forgetful", "after a restore"),
        ("NoBytes", "returned str"),
        ("Raising", "RuntimeError: no state to be had"),
        ("BadReward", "nan"),
        ("NoWayBack", "no snapshot"),
    ],
)
def test_the_start_of_a_run_is_refused_with_the_reason(name: str, reason: str) -> None:
    with pytest.raises(UnusableEnvironment, match=reason):
        ensure_reentrant(USER + name)


@pytest.mark.parametrize("name", ["Breakout", "CartPole-v1", USER + "Good"])
def test_the_start_of_a_run_is_allowed(name: str) -> None:
    ensure_reentrant(name)


def test_the_command_tells_the_failed_from_the_passed(capsys: pytest.CaptureFixture[str]) -> None:
    assert check_command(["Corridor"], moments=20) == 0
    assert check_command(["Corridor", USER + "Raising"], moments=20) == 1
    output = capsys.readouterr().out
    assert "1 of 1" in output
    assert "1 of 2" in output
    assert "no state to be had" in output
