"""All 24 games of the paper can be left and re-entered exactly."""

from __future__ import annotations

import pytest

from dpsr_apex.envs.check import PAPER_GAMES, check_reentry


@pytest.mark.slow
@pytest.mark.parametrize("game", PAPER_GAMES)
def test_the_game_can_be_left_and_re_entered(game: str) -> None:
    result = check_reentry(game, moments=100)
    assert result.passed, result.problem
    assert result.game_ends > 0
    assert result.first_steps > 0
