"""All 24 games of the paper can be saved and restored exactly."""

from __future__ import annotations

import pytest

from dpsr_apex.envs.check import PAPER_GAMES, check_restore


@pytest.mark.slow
@pytest.mark.parametrize("game", PAPER_GAMES)
def test_the_game_is_restored_exactly(game: str) -> None:
    result = check_restore(game, moments=100)
    assert result.passed, result.problem
    assert result.game_ends > 0
    assert result.first_steps > 0
