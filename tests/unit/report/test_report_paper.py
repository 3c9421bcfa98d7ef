from __future__ import annotations

import tomllib
from pathlib import Path

import numpy as np
import pytest

from dpsr_apex.config_files import load_config, shipped_configs
from dpsr_apex.report.paper import COLUMNS, PAPER_SCORES, PARAMETER_SETS, PaperScores
from dpsr_apex.report.reference import REFERENCES, game_of, human_normalised

ROOT = Path(__file__).parents[3]


def test_every_game_of_the_paper_has_its_scores() -> None:
    games = {load_config(name).env.name for name in shipped_configs() if name.startswith("atari/")}
    assert set(PAPER_SCORES) == games
    assert len(games) == 24
    assert len(COLUMNS) == len(PaperScores._fields) == 8


@pytest.mark.parametrize(
    ("game", "column", "score"),
    [
        ("AirRaid", "original", 545.0),
        ("Breakout", "dpsr_best", 281.4),
        ("Breakout", "dpsr4", 145.8),
        ("JourneyEscape", "dpsr0", -6520.0),
        ("SpaceInvaders", "prioritized", 316.5),
        ("Zaxxon", "dpsr2", 1270.0),
    ],
)
def test_scores_are_as_printed(game: str, column: str, score: float) -> None:
    assert getattr(PAPER_SCORES[game], column) == score


def test_the_best_parameter_set_wins_in_all_games_but_one_as_in_the_paper() -> None:
    lost = [game for game, scores in PAPER_SCORES.items() if scores.dpsr_best < max(scores[:2])]
    assert lost == ["SpaceInvaders"]


def test_the_average_improvement_matches_the_paper() -> None:
    """161.1% over the original and 137.1% over the prioritized replay, without two games whose baselines are <= 0."""
    rows = [scores for game, scores in PAPER_SCORES.items() if game not in ("JourneyEscape", "Zaxxon")]
    over_original = [scores.dpsr_best / scores.original - 1 for scores in rows]
    over_prioritized = [scores.dpsr_best / scores.prioritized - 1 for scores in rows]
    assert 100 * np.mean(over_original) == pytest.approx(161.1, abs=0.06)
    assert 100 * np.mean(over_prioritized) == pytest.approx(137.1, abs=0.06)
    assert 100 * np.median(over_original) == pytest.approx(87.0, abs=0.06)
    assert 100 * np.median(over_prioritized) == pytest.approx(92.1, abs=0.06)


def test_parameter_sets_match_the_configs() -> None:
    sets = tomllib.loads((ROOT / "configs" / "sets.toml").read_text(encoding="utf-8"))["sets"]
    keys = ("replacing_exponent", "replace_candidates", "recycle_period", "recycle_candidates")
    assert {name.upper(): tuple(body["replay"][key] for key in keys) for name, body in sets.items()} == PARAMETER_SETS


def test_all_games_of_the_paper_but_three_have_a_reference() -> None:
    assert set(PAPER_SCORES) - set(REFERENCES) == {"AirRaid", "Carnival", "JourneyEscape"}
    assert len(REFERENCES) == 57
    assert all(reference.human > reference.random for reference in REFERENCES.values())


def test_normalised_scores_are_1_for_the_human_and_0_for_the_random_player() -> None:
    breakout = REFERENCES[game_of("BreakoutNoFrameskip-v4")]
    assert human_normalised(np.array([1.7, 30.5, 59.3]), breakout) == pytest.approx([0, 1, 2])
