"""Recompute what the paper's tables say, and write it into docs/paper.md: `python -m docs.paper`.

The scores are those of `dpsr_apex/report/paper.py`, the parameter sets those of the shipped configs. The question is
how much of the gain in Table 1 remains when nothing is selected per game, and how much gain selection alone would show
if every setting were as good as the baseline. A test compares the page.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from textwrap import fill
from typing import Final

import numpy as np
from numpy.typing import NDArray

from dpsr_apex.config_files import load_config, shipped_configs
from dpsr_apex.formatting import interval, percent
from dpsr_apex.report.paper import COLUMNS, PAPER_SCORES, PARAMETER_SETS

PAGE: Final = Path(__file__).with_name("paper.md")
SEED: Final = 0
SIMULATIONS: Final = 10_000  # simulated papers per number of settings
LEVEL: Final = 0.95  # of the intervals

_MARKED = re.compile(r"(<!-- paper: (\w+) -->\n).*?(<!-- end of paper -->)", re.DOTALL)
_BASELINES: Final = COLUMNS[:2]
_GRID: Final = {"gamma": 6, "C_c": 2, "F_r": 2, "C_r": 4}  # values tried of each parameter, in the paper's Table 2

Scores = NDArray[np.float64]
Simulation = Callable[[int, np.random.Generator], Scores]
"""Number of settings and a generator to the median gain of every simulated paper."""


def comparable_games() -> list[str]:
    """Return the games with a positive baseline: a gain in percent of a score <= 0 means nothing."""
    return [game for game, scores in PAPER_SCORES.items() if max(scores.original, scores.prioritized) > 0]


def scores(*columns: str) -> Scores:
    """Return the scores in these columns of the tables, shape (comparable games, columns)."""
    indices = [COLUMNS.index(column) for column in columns]
    return np.array([[PAPER_SCORES[game][index] for index in indices] for game in comparable_games()])


def fixed_sets() -> Scores:
    """Return the scores of the five parameter sets of Table 4, shape (comparable games, 5)."""
    return scores(*PARAMETER_SETS)


def gains(achieved: Scores, baseline: Scores) -> Scores:
    """Return the relative improvement over a baseline: 0.5 is 50 % more."""
    return achieved / baseline - 1


def printed_settings() -> set[tuple[float, int, int, int]]:
    """Return the distinct settings (gamma, C_c, F_r, C_r) in Tables 3 and 4."""
    games = [name for name in shipped_configs() if name.startswith("atari/")]
    replays = [load_config(name, params=params).replay for name in games for params in ("best", "second", "third")]
    best = {
        (
            replay.replacing_exponent.start,
            replay.replace_candidates,
            replay.recycle_period,
            replay.recycle_candidates,
        )
        for replay in replays
    }
    return best | set(PARAMETER_SETS.values())


def grid_size() -> int:
    """Return the number of settings in the paper's grid: every combination, and those without recycling."""
    return _GRID["gamma"] * _GRID["C_c"] * (_GRID["F_r"] * _GRID["C_r"] + 1)


def log_spread() -> Scores:
    """Return the sample standard deviation of the logarithms of the five fixed sets' scores, of each game."""
    spread: Scores = np.log(fixed_sets()).std(axis=1, ddof=1)
    return spread


def relative_spread() -> Scores:
    """Return the coefficient of variation of the five fixed sets' scores, of each game."""
    fixed = fixed_sets()
    spread: Scores = fixed.std(axis=1, ddof=1) / fixed.mean(axis=1)
    return spread


def log_normal(settings: int, random: np.random.Generator) -> Scores:
    """Simulate settings and baseline with one log-normal distribution per game: exp(s Z), Z normal."""
    best = np.exp(_greatest(settings, random) * log_spread())
    baseline = np.exp(random.standard_normal(best.shape) * log_spread())
    return np.median(gains(best, baseline), axis=1)


def log_normal_exact_baseline(settings: int, random: np.random.Generator) -> Scores:
    """Simulate settings as exp(s Z), Z normal, and a baseline that is exactly at their median, 1."""
    best = np.exp(_greatest(settings, random) * log_spread())
    return np.median(gains(best, np.ones_like(best)), axis=1)


def normal_exact_baseline(settings: int, random: np.random.Generator) -> Scores:
    """Simulate settings as 1 + c Z, Z normal, and a baseline that is exactly at their mean, 1."""
    return np.median(_greatest(settings, random) * relative_spread(), axis=1)


MODELS: Final[dict[str, Simulation]] = {
    "log-normal scores": log_normal,
    "log-normal scores, baseline without noise": log_normal_exact_baseline,
    "normal scores, baseline without noise": normal_exact_baseline,
}


@cache
def simulate(model: Simulation, settings: int) -> tuple[float, float, float, Scores]:
    """Return the median and the interval of the median gain over simulated papers, and all of them."""
    simulated = model(settings, np.random.default_rng(SEED))
    low, middle, high = np.quantile(simulated, [(1 - LEVEL) / 2, 0.5, (1 + LEVEL) / 2])
    return float(middle), float(low), float(high), simulated


def _greatest(settings: int, random: np.random.Generator) -> Scores:
    """Return the greatest of `settings` standard normal numbers, shape (simulations, comparable games)."""
    greatest = random.standard_normal((SIMULATIONS, len(comparable_games())))
    for _ in range(settings - 1):
        np.maximum(greatest, random.standard_normal(greatest.shape), out=greatest)
    return greatest


def fill_in(page: str) -> str:
    """Return the page with every marked part rewritten."""
    parts = {"fixed": _fixed, "noise": _noise, "summary": _summary}
    return _MARKED.sub(lambda marked: f"{marked[1]}{parts[marked[2]]()}{marked[3]}", page)


def _fixed() -> str:
    """Return median gain and games won against each baseline: of each fixed set, of their mean, of selections."""
    fixed = fixed_sets()
    rows = {name: fixed[:, index] for index, name in enumerate(PARAMETER_SETS)}
    rows["mean of the five"] = fixed.mean(axis=1)
    rows["best of the five in each game"] = fixed.max(axis=1)
    rows["best of all settings in each game (Table 1)"] = scores("DPSR best")[:, 0]
    columns = ["scores of", *(f"{text} {name}" for name in _BASELINES for text in ("median gain over", "wins against"))]
    return _markdown(columns, [[name, *_against_baselines(row)] for name, row in rows.items()])


def _against_baselines(achieved: Scores) -> list[str]:
    cells = []
    for name in _BASELINES:
        baseline = scores(name)[:, 0]
        median = float(np.median(gains(achieved, baseline)))
        cells += [_signed_percent(median, 1), f"{int((achieved > baseline).sum())} of {len(baseline)}"]
    return cells


def _noise() -> str:
    """Return the gain that selecting the best of several equal settings shows, by model and number of settings."""
    numbers = (len(PARAMETER_SETS), len(printed_settings()), grid_size())
    rows = [[name, *(_cell(*simulate(model, number)[:3]) for number in numbers)] for name, model in MODELS.items()]
    return _markdown(["model", *(f"best of {number}" for number in numbers)], rows)


def _cell(middle: float, low: float, high: float) -> str:
    return f"{_signed_percent(middle)} ({interval(low, high, percent)})"


def _summary() -> str:
    """Return the conclusion, with the numbers in it."""
    original, fixed = scores("Original"), fixed_sets()
    claimed = float(np.median(gains(scores("DPSR best"), original)))
    wins = (fixed > original).sum(axis=0)
    wins_of_mean = int((fixed.mean(axis=1) > original[:, 0]).sum())
    settings = len(printed_settings())
    simulations = [simulate(model, settings) for model in MODELS.values()]
    middles = [middle for middle, *_ in simulations]
    reached = [float((simulated >= claimed).mean()) for *_, simulated in simulations]
    points = [
        f"**Without selection per game there is hardly a gain over Original.** A single set wins {min(wins)} to "
        f"{max(wins)} of {len(original)} games, and the mean of the five sets wins {wins_of_mean}.",
        f"**The printed gain needs selection.** The median gain of {_signed_percent(claimed)} is that of the best "
        f"setting in each game; the tables name {settings} distinct ones.",
        f"**Selection explains most of it.** If all settings were as good as Original, the best of {settings} would "
        f"show {_signed_percent(min(middles))} to {_signed_percent(max(middles))}, depending on the model: "
        f"{percent(min(middles) / claimed)} to {percent(max(middles) / claimed)} of the printed gain.",
        f"**Whether anything remains depends on the model.** Noise reaches the printed gain in {_list(reached)} of the "
        "simulated papers, in the order of the last table.",
    ]
    return "".join(f"{fill(f'- {point}', 120, subsequent_indent='  ')}\n" for point in points)


def _list(shares: Sequence[float]) -> str:
    *others, last = (percent(share, 1) for share in shares)
    return f"{', '.join(others)} and {last}"


def _signed_percent(share: float, decimals: int = 0) -> str:
    return f"{'+' if share >= 0 else ''}{percent(share, decimals)}"


def _markdown(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "".join(f"| {' | '.join(line)} |\n" for line in [columns, ["---"] * len(columns), *rows])


if __name__ == "__main__":
    PAGE.write_text(fill_in(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    sys.stdout.write("\n".join((_fixed(), _noise(), _summary())))
