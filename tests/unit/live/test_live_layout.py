from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from rich.cells import cell_len

from dpsr_apex.live.layout import body, head
from dpsr_apex.live.panels import Known, rate_limiter
from dpsr_apex.live.plots import QUIET
from dpsr_apex.record.progress import Goal
from dpsr_apex.wire.messages import LearnerStats
from dpsr_apex.wire.statistics import RateStats
from tests.unit.live.examples import ROW, stats_of

SIZES = [(width, height) for width in (1, 10, 30, 40, 79, 80, 110, 250) for height in (1, 2, 3, 5, 10, 22, 35, 70)]


def known(actors: int = 0) -> Known:
    """A run of one process, or with a number of actors."""
    found = Known("Breakout · dpsr · seed 0", Goal(1_000_000), dict(ROW), stats_of(actors) if actors else None)
    found.returns = [(1_000.0 * i, i % 17 + i / 10) for i in range(1, 241)]
    found.evaluations = [(50_000.0 * i, 5.0 * i) for i in range(1, 5)]
    found.pace = ROW["steps_per_second"]
    found.speeds = {f"actor-{index}": 100.0 for index in range(actors)}
    return found


def with_an_empty_replay() -> Known:
    """A run of which everything was quarantined."""
    found = known(2)
    found.row |= {"stored": 0, "fill": 0.0} | {name: None for name in ROW if name.startswith(("age_", "priority_"))}
    return found


def lines_of(run: Known, width: int, height: int) -> list[str]:
    return [line.plain for line in [*head(run, width, height), *body(run, width, height)]]


def text_of(run: Known, width: int, height: int) -> str:
    return "\n".join(lines_of(run, width, height))


@pytest.mark.parametrize(("width", "height"), SIZES)
@pytest.mark.parametrize(
    "run",
    [known(), known(2), known(90), with_an_empty_replay(), Known("", Goal(1_000))],
    ids=["solo", "two", "many", "empty", "nothing"],
)
def test_nothing_is_broader_or_higher_than_the_screen(run: Known, width: int, height: int) -> None:
    lines = lines_of(run, width, height)
    assert 1 <= len(lines) <= height
    assert len({cell_len(line) for line in lines}) == 1
    assert cell_len(lines[0]) <= width


def test_every_figure_is_there_at_110_columns() -> None:
    text = text_of(known(2), 110, 34)
    for figure in (
        *("Breakout · dpsr · seed 0", "240,000 / 1,000,000 transitions", "24.0%", "0:10:16 left", "0:07:11 so far"),
        *("mean 19.9", "best 34", "evaluation 21.2", "episodes 720", "t = 240,000"),
        *("2 alive · 1,234 steps/s", "actor-0", "at far", "0.16–0.4", "now"),
        *("308 /s · 59,000 total", "43% of the time", "0.0123", "1.5"),
        *("43,500 transitions", "87%", "mean 21.2k", "50k", "mean 0.343", "0.0001", "age 31k", "priority 0.0123"),
        *("20 rounds opened", "19 closed · 1 expired", "304 candidates · 4 stale · 16 lost"),
        *(
            "+0.031 |δ| mean of 300 recycled",
            "4 wanted · 4.01 achieved",
            "Actors paused: the learner is 13 updates behind",
        ),
    ):
        assert figure in text


def test_at_80_by_24_no_figure_is_cut() -> None:
    text = text_of(known(), 80, 22)
    assert "…" not in text
    for title in ("return", "actors", "learner", "replay", "recycling", "rate limiter"):
        assert f"╭─ {title} " in text
    for figure in ("19 closed · 1 expired", "304 · 4 stale", "+0.031 |δ| mean of 300", "age 31k  priority 0.0123"):
        assert figure in text


def test_one_process_is_shown_with_the_same_panels() -> None:
    text = text_of(known(), 110, 34)
    for figure in ("1 alive", "this process", "1,234", "0.02", "Single process: no waiting", "4.01 achieved"):
        assert figure in text
    assert "of the time" not in text


def test_narrow_screens_have_one_column() -> None:
    assert not any(line.count("╭") > 1 for line in lines_of(known(2), 79, 60))
    assert any(line.count("╭") > 1 for line in lines_of(known(2), 80, 60))


@pytest.mark.parametrize("width", [60, 110])
def test_the_least_important_parts_are_dropped_first(width: int) -> None:
    def titles(height: int) -> set[str]:
        text = text_of(known(2), width, height)
        return {title for title in ("return", "learner", "actors", "replay", "recycling") if f"╭─ {title} " in text}

    shown = [titles(height) for height in range(3, 60)]
    assert shown[0] == set()
    assert all(less <= more for less, more in pairwise(shown))
    assert next(more for more in shown if more) <= {"return", "actors"}
    assert len(shown[-1]) == 5


def test_more_actors_than_lines_are_summed_up() -> None:
    lines = lines_of(known(90), 110, 34)
    (summed,) = (line for line in lines if "more," in line)
    shown = sum("● actor-" in line for line in lines)
    assert f"… and {90 - shown} more, {(90 - shown) * 100:,} steps/s together" in summed


def test_a_silent_actor_is_the_first_one() -> None:
    first = next(line for line in lines_of(known(90), 110, 34) if "● actor-" in line)
    assert "actor-3" in first
    assert "7 s ago" in first


def test_free_running_has_no_target() -> None:
    run = known(2)
    run.stats = stats_of(2)._replace(rate=RateStats(0, 2.5, 10, None), waiting=[])
    text = text_of(run, 110, 34)
    assert "free running · 2.5 achieved" in text
    assert "No process is waiting" in text


@pytest.mark.parametrize("name", sorted(set(ROW) - {"t"}))
def test_any_key_may_be_missing(name: str) -> None:
    run = known(2)
    del run.row[name]
    assert "240,000 / 1,000,000" in text_of(run, 110, 34)


@pytest.mark.parametrize(
    "missing",
    [
        {"learner": None},
        {"learner": LearnerStats(9.0, None)},
        {"rate": RateStats(4, None, 0, 0)},
        {"waiting": []},
        {"actors": []},
    ],
    ids=str,
)
def test_what_is_not_known_yet_is_left_out(missing: dict[str, Any]) -> None:
    run = known(2)
    run.stats = stats_of(2)._replace(**missing)
    assert "240,000 / 1,000,000" in text_of(run, 110, 34)


def test_a_silent_learner_is_marked() -> None:
    run = known(2)
    run.stats = stats_of(2)._replace(learner=LearnerStats(9.4, None))
    assert "silent for 9 s" in text_of(run, 110, 34)


def test_nobody_waits_is_quiet_and_a_wait_is_not() -> None:
    run = known(2)
    (_, loud) = rate_limiter(run).draw(60, 2)
    run.stats = stats_of(2)._replace(waiting=[])
    (_, quiet) = rate_limiter(run).draw(60, 2)
    assert (loud.style, quiet.style) == ("", QUIET)


def test_nulls_are_dashes() -> None:
    run = known()
    run.row |= dict.fromkeys(("replaced_age_mean", "replaced_priority_mean", "loss", "recycled_gain"))
    text = text_of(run, 110, 34)
    assert "age –" in text
    assert "loss      –" in text


def test_chains_are_shown_once_recycling_takes_several_steps() -> None:
    run = known(2)
    assert "chains" not in text_of(run, 110, 35)
    run.row |= {"chain_steps_stored": 40, "depth_mean": 3.5, "chain_reward_mean": -1.25, "sampled_recycled_share": 0.12}
    (line,) = [line for line in lines_of(run, 110, 50) if "chains" in line]
    assert "3.5 deep · -1.25 reward · 12% of batches" in line
