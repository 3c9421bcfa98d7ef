"""Times in the live view, with a fake clock: the time left settles, and the duration of a run never stops."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path
from typing import Any

import pytest

from dpsr_apex.files import append_row
from dpsr_apex.live.pace import Pace
from dpsr_apex.live.view import LiveView
from dpsr_apex.live.words import time_left
from dpsr_apex.record.lock import running_alone
from dpsr_apex.record.progress import Goal
from dpsr_apex.record.run_directory import RunDirectory
from dpsr_apex.watch import Watcher
from tests.unit.live.examples import STATS
from tests.unit.live.test_live_view import last_screen, terminal

GOAL = Goal(100_000)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Its only item is the time; drawing costs nothing, so that it never delays the next one."""
    now = [5_000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(time, "thread_time", lambda: 0.0)
    return now


def row(t: int, elapsed: float, updates: int, speed: float) -> dict[str, Any]:
    return {"t": t, "elapsed_seconds": elapsed, "updates": updates, "steps_per_second": speed}


def seconds_left(text: str) -> int:
    hours, minutes, seconds = map(int, text.split(":"))
    return 3600 * hours + 60 * minutes + seconds


def test_the_fast_steps_before_the_first_update_do_not_count() -> None:
    pace = Pace(GOAL)
    pace.add(row(1_000, 1.0, 0, 1_000.0))
    assert pace.steps_per_second is None
    assert time_left(row(1_000, 1.0, 0, 1_000.0), GOAL, pace.steps_per_second) == "–"
    pace.add(row(2_000, 2.0, 5, 1_000.0))
    assert time_left(row(2_000, 2.0, 5, 1_000.0), GOAL, pace.steps_per_second) == "–", "most of them were fast"
    pace.add(row(3_000, 12.0, 1_005, 100.0))
    assert time_left(row(3_000, 12.0, 1_005, 100.0), GOAL, pace.steps_per_second) == "0:16:10"


def test_the_time_left_settles_although_the_speed_of_rows_alternates() -> None:
    """Rows alternate between 50 and 200 steps/s, as when a checkpoint or an evaluation is in every second one."""
    pace, elapsed, naive, smoothed = Pace(GOAL), 10.0, [], []
    for number in range(2, 60):
        speed = 50.0 if number % 2 else 200.0
        elapsed += 1_000 / speed
        newest = row(1_000 * number, elapsed, number, speed)
        pace.add(newest)
        if rate := pace.steps_per_second:
            naive.append(elapsed + seconds_left(time_left(newest, GOAL, speed)))
            smoothed.append(elapsed + seconds_left(time_left(newest, GOAL, rate)))
    true = 10.0 + 99 * 12.5
    assert max(abs(end - true) for end in smoothed[20:]) < 0.05 * true
    assert max(abs(end - true) for end in naive[20:40]) > 0.3 * true, "what the last interval alone would give"


def test_the_pace_follows_a_lasting_change() -> None:
    pace, elapsed = Pace(GOAL), 0.0
    for number, speed in enumerate([100.0] * 50 + [20.0] * 20, start=1):
        elapsed += 1_000 / speed
        pace.add(row(1_000 * number, elapsed, number, speed))
    assert pace.steps_per_second == pytest.approx(20.0)


def test_a_run_that_goes_back_has_the_pace_of_its_new_rows() -> None:
    pace = Pace(GOAL)
    for t, elapsed in ((1_000, 10.0), (2_000, 20.0), (3_000, 30.0), (1_500, 40.0), (2_500, 50.0)):
        pace.add(row(t, elapsed, t, 100.0))
    assert pace.steps_per_second == pytest.approx(1_500 / 40.0)


def test_the_pace_counts_the_steps_of_the_goal() -> None:
    pace = Pace(Goal(10_000, "environment_steps"))
    for t in (100, 200):
        pace.add(row(t, t / 10, t, 10.0) | {"environment_steps": 3 * t})
    assert pace.steps_per_second == pytest.approx(30.0)


def durations(console: Any) -> str:
    found: list[str] = re.findall(r"(\d+:\d\d:\d\d) so far", last_screen(console))
    return found[-1]


def test_the_duration_advances_before_the_first_row_and_between_rows(clock: list[float]) -> None:
    console = terminal()
    with LiveView(GOAL, console, "title") as view:
        view.start_clock()
        clock[0] += 7
        view.refresh()
        assert durations(console) == "0:00:07"
        view.update(row(1_000, 10.0, 1, 100.0))
        clock[0] += 65
        view.refresh()
        assert durations(console) == "0:01:15"


def test_the_duration_is_not_turned_back_by_a_row_of_a_process_that_started_later(clock: list[float]) -> None:
    console = terminal()
    with LiveView(GOAL, console, "title") as view:
        view.start_clock()
        clock[0] += 20
        view.update(row(1_000, 15.0, 1, 100.0))
        clock[0] += 5
        view.refresh()
        assert durations(console) == "0:00:25"


def test_a_run_that_continues_has_the_duration_of_all_its_parts(clock: list[float]) -> None:
    console = terminal()
    with LiveView(GOAL, console, "title") as view:
        view.recall([row(1_000, 600.0, 1, 100.0)], [])
        view.start_clock()
        clock[0] += 30
        view.refresh()
        assert durations(console) == "0:10:30"


def test_a_view_that_is_opened_between_two_rows_includes_the_time_since_the_last(
    tmp_path: Path, clock: list[float]
) -> None:
    run, console = RunDirectory.create(tmp_path / "run"), terminal()
    append_row(run.metrics, row(1_000, 100.0, 1, 10.0))
    written = time.time() - 50
    os.utime(run.metrics, (written, written))
    with running_alone(run), LiveView(GOAL, console, "title") as view:
        Watcher(run, view, has_head=False).begin()
        clock[0] += 1
        view.refresh()
        assert durations(console) in ("0:02:31", "0:02:32"), "150 s, and 1 s on the fake clock"


def test_a_run_of_several_processes_is_never_shown_as_one(clock: list[float]) -> None:
    console = terminal()
    with LiveView(GOAL, console, "title", is_alone=False) as view:
        assert "0 alive" in last_screen(console)
        clock[0] += 10
        view.show(STATS)
        assert "2 alive" in last_screen(console)
    assert isinstance(console.file.getvalue(), str)  # type: ignore[attr-defined]
    assert "Single process" not in console.file.getvalue()  # type: ignore[attr-defined]
    assert "this process" not in console.file.getvalue()  # type: ignore[attr-defined]
    with LiveView(GOAL, console, "title"):
        assert "Single process" in last_screen(console)
