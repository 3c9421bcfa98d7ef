from __future__ import annotations

import pytest

from dpsr_apex.check import check_command
from dpsr_apex.cli import main
from dpsr_apex.envs.check import PAPER_GAMES, check_restore, ensure_restorable
from dpsr_apex.envs.snapshot import UnusableEnvironment

USER = "tests.unit.envs.user_envs:"


def test_the_paper_has_24_games() -> None:
    assert len(set(PAPER_GAMES)) == 24


@pytest.mark.parametrize("name", ["CartPole-v1", "MountainCar-v0", "Acrobot-v1", "Corridor", USER + "Good"])
def test_environments_that_restore_exactly_pass(name: str) -> None:
    result = check_restore(name, moments=100)
    assert result.passed, result.problem
    assert result.moments >= 100
    assert result.first_steps > 1
    assert result.game_ends + result.time_limits > 0
    assert result.snapshot_bytes > 0


@pytest.mark.parametrize("game", ["Breakout", "Qbert"])
def test_an_atari_game_passes_around_lost_lives_and_game_over(game: str) -> None:
    reported: list[int] = []
    result = check_restore(game, moments=30, progress=reported.append)
    assert result.passed, result.problem
    assert min(result.first_steps, result.lost_lives, result.game_ends) > 0
    assert reported[-1] >= 30


def test_a_counter_missing_from_the_snapshot_is_found_at_the_end_of_the_episode() -> None:
    result = check_restore(USER + "MissingCounter", moments=50)
    assert not result.passed
    assert result.mismatches > 0
    assert "terminal=True" in result.problem


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("MissingCounter", "after a restore"),
        ("NoBytes", "returned str"),
        ("Raising", "RuntimeError: state is not available"),
        ("RaisingRestore", "a restore at step 0 of an episode failed: KeyError: 'no such state'"),
        ("BadReward", "nan"),
        ("Unrepeatable", "replaying its history led to another state"),
        ("Duck", "no snapshot"),
    ],
)
def test_ensure_restorable_raises_with_the_reason(name: str, reason: str) -> None:
    with pytest.raises(UnusableEnvironment, match=reason) as refusal:
        ensure_restorable(USER + name)
    assert ("Traceback" in refusal.value.trace) == name.startswith("Raising")


@pytest.mark.parametrize("name", ["Breakout", "CartPole-v1", USER + "Good"])
def test_ensure_restorable_accepts_exact_environments(name: str) -> None:
    ensure_restorable(name)


def test_the_command_exits_1_if_an_environment_fails(capsys: pytest.CaptureFixture[str]) -> None:
    assert check_command(["Corridor"], moments=20) == 0
    assert check_command(["Corridor", USER + "Raising"], moments=20) == 1
    output = capsys.readouterr().out
    assert "1 of 1" in output
    assert "1 of 2" in output
    assert "state is not available" in output


def test_the_command_checks_an_environment_with_its_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "Corridor", "--moments=20", "--set", "env.arguments.depth=7"]) == 0
    assert main(["check", "Corridor", "--moments=20", "--set", "env.arguments.deep=7"]) == 1
    assert "deep" in capsys.readouterr().out
    assert main(["check", "Corridor", "--set", "replay.capacity=7"]) == 2


@pytest.mark.parametrize(
    ("setting", "code"),
    [
        *(("env.arguments.depth=7", 0), ("env.arguments = { depth = 7 }", 0), ("env.stack = 1", 0)),
        *(("env.wrappers=[]", 0), ("replay.capacity=9", 2), ("env.argument.depth=7", 2), ("env.name=Corridor", 2)),
    ],
)
def test_the_command_accepts_settings_of_the_environment_however_they_are_written(setting: str, code: int) -> None:
    assert main(["check", "Corridor", "--moments", "5", "--set", setting]) == code
