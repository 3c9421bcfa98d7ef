"""Who waits for whom, in words: one sentence for each kind of wait."""

from __future__ import annotations

from typing import get_args

import pytest

from dpsr_apex.live.words import describe_waits, plain_line, time_left
from dpsr_apex.record.progress import Goal
from dpsr_apex.wire.statistics import (
    ActorsMissing,
    ActorsPaused,
    JournalBlocked,
    LearnerMissing,
    LearnerPaused,
    RoundsOpen,
    UpdatesOwed,
    Wait,
)

WORDS: list[tuple[Wait, str]] = [
    (LearnerMissing(None), "No learner has joined yet"),
    (LearnerMissing(12.3), "Learner silent for 12 s"),
    (ActorsMissing(None), "No actor has joined yet"),
    (ActorsMissing(5.0), "Actors silent for 5 s"),
    (ActorsPaused(59, 50), "Actors paused: the learner is 59 updates behind (limit 50)"),
    (ActorsPaused(1, 0), "Actors paused: the learner is 1 update behind (limit 0)"),
    (LearnerPaused(3_000), "Learner paused: the next update needs 3,000 more transitions"),
    (UpdatesOwed(10), "10 updates left"),
    (RoundsOpen(1), "1 recycling round still open"),
    (JournalBlocked("The disk is full"), "The disk is full"),
]


@pytest.mark.parametrize(("wait", "words"), WORDS)
def test_every_wait_has_its_words(wait: Wait, words: str) -> None:
    assert describe_waits([wait]) == words


def test_no_kind_of_wait_is_left_out() -> None:
    assert {type(wait) for wait, _ in WORDS} == set(get_args(Wait))


def test_several_waits_are_several_sentences() -> None:
    assert describe_waits([UpdatesOwed(2), RoundsOpen(3)]) == "2 updates left. 3 recycling rounds still open"
    assert describe_waits([]) == ""


def test_the_time_left_follows_from_the_speed() -> None:
    assert time_left({"t": 400}, Goal(1_000), 10.0) == "0:01:00"
    assert time_left({"t": 1_200}, Goal(1_000), 10.0) == "0:00:00"
    assert time_left({"t": 400}, Goal(1_000), None) == "–"


def test_progress_and_the_time_left_are_those_of_what_ends_the_run() -> None:
    row = {"t": 250, "environment_steps": 500, "steps_per_second": 10.0}
    goal = Goal(1_000, "environment_steps")
    line = plain_line(row, goal, 20.0)
    assert line.startswith("t 250 | environment steps 500/1,000 |")
    assert line.endswith("0:00:25 left")
