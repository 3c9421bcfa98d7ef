"""The page about the paper's numbers is what the script computes, and the script computes it from the tables."""

from __future__ import annotations

from math import exp, log
from statistics import NormalDist, mean, median, stdev

import numpy as np
import pytest

from docs import paper
from dpsr_apex.report.paper import PAPER_SCORES, PaperScores
from tests.unit.test_configs_shipped import TABLE_3, TABLE_4, parse

WITH_BASELINE = {game: row for game, row in PAPER_SCORES.items() if game not in ("JourneyEscape", "Zaxxon")}


def row_of(name: str) -> list[str]:
    """The cells of one row of the table of gains."""
    lines = [line.strip("| ").split(" | ") for line in paper._fixed().splitlines()]
    return next(cells for first, *cells in lines if first == name)


def test_the_page_is_what_the_script_writes() -> None:
    text = paper.PAGE.read_text(encoding="utf-8")
    assert paper.fill_in(text) == text
    assert text.count("<!-- paper: ") == 3


def test_two_games_have_no_positive_baseline() -> None:
    assert paper.comparable_games() == list(WITH_BASELINE)


def test_the_mean_of_the_five_sets_wins_half_of_the_games_against_original() -> None:
    won = [game for game, row in WITH_BASELINE.items() if mean(row[3:]) > row.original]
    assert len(won) == 11
    assert row_of("mean of the five")[1] == f"{len(won)} of {len(WITH_BASELINE)}"


@pytest.mark.parametrize("number", range(5))
def test_gain_and_wins_of_a_fixed_set(number: int) -> None:
    gains = [row[3 + number] / row.original - 1 for row in WITH_BASELINE.values()]
    expected = [f"{100 * median(gains):+.1f}%", f"{sum(gain > 0 for gain in gains)} of 22"]
    assert row_of(f"DPSR{number}")[:2] == expected


def test_the_gains_with_selection_are_those_that_the_paper_prints() -> None:
    assert row_of("best of all settings in each game (Table 1)")[::2] == ["+87.0%", "+92.1%"]


def test_other_scores_lead_to_other_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    for game, row in PAPER_SCORES.items():
        monkeypatch.setitem(PAPER_SCORES, game, PaperScores(*row[:3], *(3 * abs(row[0]) + 1,) * 5))
    assert row_of("mean of the five")[1] == "22 of 22"
    assert paper.log_spread() == pytest.approx(0)


def test_the_settings_are_those_of_both_tables() -> None:
    assert paper.printed_settings() == {*parse(TABLE_3), *parse(TABLE_4)}


def test_the_grid_has_every_combination_of_table_2() -> None:
    recycling = [(f_r, c_r) for f_r in (10_000, 20_000) for c_r in (8, 16, 32, 64)]
    every = {(g, c_c, *pair) for g in (1, 2, 3, 4, 5, 6) for c_c in (128, 256) for pair in [*recycling, (0, 0)]}
    assert paper.grid_size() == len(every)


def test_the_spreads_are_sample_standard_deviations_per_game() -> None:
    logs = [[log(score) for score in row[3:]] for row in WITH_BASELINE.values()]
    assert paper.log_spread() == pytest.approx([stdev(row) for row in logs])
    assert paper.relative_spread() == pytest.approx([stdev(r[3:]) / mean(r[3:]) for r in WITH_BASELINE.values()])


@pytest.mark.parametrize("settings", [1, 5, 50])
def test_a_simulated_selection_has_the_median_of_a_maximum(settings: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With equal spreads, the median over all games and papers is that of the maximum of `settings` normal numbers."""
    spread = 0.3
    monkeypatch.setattr(paper, "log_spread", lambda: np.full(22, spread))
    monkeypatch.setattr(paper, "relative_spread", lambda: np.full(22, spread))
    greatest = NormalDist().inv_cdf(0.5 ** (1 / settings))
    random = np.random.default_rng(1)
    normal = np.median(paper.normal_exact_baseline(settings, random))
    log_normal = np.median(paper.log_normal_exact_baseline(settings, random))
    assert normal == pytest.approx(spread * greatest, abs=0.006)
    assert log_normal == pytest.approx(exp(spread * greatest) - 1, abs=0.012)


def test_without_selection_noise_shows_no_gain() -> None:
    assert abs(np.median(paper.log_normal(1, np.random.default_rng(1)))) < 0.01


def test_simulations_are_reproducible() -> None:
    first = paper.simulate(paper.log_normal, 5)
    paper.simulate.cache_clear()
    assert first[:3] == paper.simulate(paper.log_normal, 5)[:3]
