from __future__ import annotations

import io
import re
import subprocess
import sys
from typing import Any

import pytest
from rich.console import Console

from dpsr_apex.live.view import LiveView, Speeds
from dpsr_apex.record.progress import Goal
from dpsr_apex.wire.statistics import ActorStats
from tests.unit.live.examples import ROW, STATS


def terminal(width: int = 110, height: int = 38) -> Console:
    return Console(file=io.StringIO(), force_terminal=True, width=width, height=height, _environ={"TERM": "xterm"})


def plain() -> Console:
    return Console(file=io.StringIO(), force_terminal=False, width=80, _environ={})


def shown(console: Console) -> str:
    """All that was printed, without colours and movements."""
    assert isinstance(console.file, io.StringIO)
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", console.file.getvalue())


def last_screen(console: Console) -> str:
    text = shown(console)
    return text[text.rindex("╭─ title") :]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Its only item is the time; drawing costs nothing, so that it never delays the next one."""
    now = [0.0]
    monkeypatch.setattr("dpsr_apex.live.view.time.monotonic", lambda: now[0])
    monkeypatch.setattr("dpsr_apex.live.view.time.thread_time", lambda: 0.0)
    return now


def test_a_row_and_stats_are_on_one_screen() -> None:
    console = terminal()
    with LiveView(Goal(1_000_000), console, "title") as view:
        view.show(STATS._replace(row=ROW))
    for figure in ("240,000 / 1,000,000", "mean 19.9", "actor-1 at far", "43% of the time", "20 rounds opened"):
        assert figure in last_screen(console)


def test_the_last_screen_of_a_run_does_not_say_that_somebody_waits(clock: list[float]) -> None:
    console = terminal()
    with LiveView(Goal(1_000_000), console, "title") as view:
        view.show(STATS._replace(row=ROW))
        clock[0] = 1_000.0
        view.refresh()
        assert "Actors paused" in last_screen(console)
    assert "Actors paused" not in last_screen(console)


def test_the_clock_moves_between_rows(clock: list[float]) -> None:
    console = terminal()
    with LiveView(Goal(1_000), console) as view:
        clock[0] = 0.1
        view.advance(50)
        assert "50 / 1,000" not in shown(console)
        clock[0] = 1_000.0
        view.advance(60)
        assert "60 / 1,000" in shown(console)


def test_progress_is_that_of_what_ends_the_run(clock: list[float]) -> None:
    console = terminal()
    with LiveView(Goal(1_000, "environment_steps"), console) as view:
        clock[0] = 1_000.0
        view.advance(60, 90)
        assert "90 / 1,000 environment steps" in shown(console)


def test_what_is_costly_to_draw_is_drawn_less_often(clock: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    console = terminal()
    seconds = iter([0.0, 0.5, *[1.0] * 100])  # when the first drawing begins and ends
    monkeypatch.setattr("dpsr_apex.live.view.time.thread_time", lambda: next(seconds))
    with LiveView(Goal(1_000), console) as view:
        clock[0] = 49.0  # 0.5 s of drawing are 1 % of 50 s
        view.advance(50)
        assert "50 / 1,000" not in shown(console)
        clock[0] = 51.0
        view.advance(60)
        assert "60 / 1,000" in shown(console)


def test_a_clock_that_is_ahead_of_the_newest_row_does_not_go_back(clock: list[float]) -> None:
    console = terminal()
    with LiveView(Goal(1_000_000), console, "title") as view:
        clock[0] = 1_000.0
        view.show(STATS._replace(row=ROW, t=240_123))
        assert "240,123 / 1,000,000" in shown(console)
        assert "240,000 / 1,000,000" not in shown(console)


def test_the_curve_of_a_run_that_continues_has_its_history() -> None:
    console = terminal()
    with LiveView(Goal(1_000), console, "title") as view:
        view.recall([{"t": t, "return_mean": -123.0 if t == 10 else 1.0} for t in (10, 20)], [{"t": 20, "mean": 456.0}])
        assert "-123" in last_screen(console)  # at once: the next step may take long to come
        view.update({"t": 30, "return_mean": 2.0})
    assert "-123" in last_screen(console)
    assert "456" in last_screen(console)


def test_the_newest_evaluation_is_shown_whatever_the_rows_contain() -> None:
    console = terminal()
    with LiveView(Goal(1_000), console, "title") as view:
        view.recall([], [{"t": 20, "mean": 456.0}])
        view.evaluated({"t": 40, "mean": 789.0})
        view.update({"t": 50, "return_mean": 2.0, "evaluation_t": 20, "evaluation_mean": 456.0})
    assert "evaluation 789" in last_screen(console)


def test_a_run_that_goes_back_takes_back_its_curve() -> None:
    console = terminal()
    with LiveView(Goal(1_000), console, "title") as view:
        for t, value in ((10, 1.0), (20, -123.0), (15, 2.0)):
            view.update({"t": t, "return_mean": value})
    assert "-123" not in last_screen(console)


def test_a_very_long_curve_stays_within_bounds() -> None:
    console = terminal()
    with LiveView(Goal(100_000), console, "title") as view:
        view.recall([{"t": t, "return_mean": float(t)} for t in range(1, 20_001)], [])
    assert "20,000" in last_screen(console) or "19,99" in last_screen(console)


def test_without_a_terminal_a_row_is_one_line() -> None:
    console = plain()
    with LiveView(Goal(1_000_000), console) as view:
        view.recall([{"t": 500, "epsilon": 1.0}], [])
        view.update({"t": 1_000, "epsilon": 0.99})
        view.update({"t": 1_000, "epsilon": 0.99})
        view.advance(1_500)
        view.recall([ROW | {"t": 140_000, "elapsed_seconds": 331.0}], [])
        view.show(STATS._replace(row=ROW))
        view.show(STATS._replace(row=ROW))
    first, second = shown(console).splitlines()
    assert first.startswith("t 1,000/1,000,000 | return - best - | epsilon 0.99")
    assert "return 19.9 best 34 | epsilon" in second
    assert "rounds 20 opened, 19 closed, 1 expired" in second
    assert "1,234 steps/s | 308 updates/s" in second
    assert second.endswith("0:12:40 left"), "100,000 steps in 100 s"
    assert second.isascii()


@pytest.mark.parametrize("make", [terminal, plain])
def test_a_note_is_shown_as_it_is(make: Any) -> None:
    console = make()
    with LiveView(Goal(1_000), console) as view:
        view.note("disk full: [red]kept[/red] :x: step_000000000010")
    assert "disk full: [red]kept[/red] :x: step_000000000010" in shown(console)


def test_an_output_that_knows_only_ascii_gets_plain_lines() -> None:
    output = io.TextIOWrapper(io.BytesIO(), encoding="ascii", errors="replace")
    with LiveView(Goal(1_000), Console(file=output, force_terminal=True, width=80, _environ={"TERM": "xterm"})) as view:
        view.update(ROW)
        view.note("t · ε")
    assert isinstance(output.buffer, io.BytesIO)
    assert output.buffer.getvalue().splitlines()[1] == b"t ? ?"


def test_a_reader_that_goes_away_does_not_end_the_run() -> None:
    script = (
        "from dpsr_apex.live.view import LiveView\n"
        "from dpsr_apex.record.progress import Goal\n"
        "view = LiveView(Goal(10))\n"
        "[view.note('x' * 10_000) for _ in range(100)]\n"
        "import sys; sys.stderr.write('continued')\n"
    )
    child = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert child.stdout is not None
    assert child.stderr is not None
    child.stdout.read(1)
    child.stdout.close()
    with child:
        assert child.stderr.read() == b"continued"
    assert child.returncode == 0


def actor(sent: int, name: str = "actor-0") -> ActorStats:
    return STATS.actors[0]._replace(name=name, sent=sent)


def test_the_speed_of_an_actor_is_what_it_sent_over_the_time_between_its_words() -> None:
    speeds = Speeds()
    assert speeds.look([actor(0)], 0.0) == {}
    assert speeds.look([actor(0)], 0.5) == {}
    assert speeds.look([actor(100)], 1.0) == {"actor-0": 100.0}
    assert speeds.look([actor(100)], 1.5) == {"actor-0": 100.0}  # it speaks once a second: nothing new yet
    assert speeds.look([actor(500)], 2.0) == {"actor-0": 250.0}


def test_the_rate_of_a_suspended_actor_falls() -> None:
    speeds = Speeds()
    speeds.look([actor(0)], 0.0)
    speeds.look([actor(100)], 1.0)
    assert speeds.look([actor(100)], 10.0) == {"actor-0": 10.0}


def test_only_the_last_seconds_count() -> None:
    speeds = Speeds()
    for second in range(100):
        found = speeds.look([actor(second**2)], float(second))
    assert found["actor-0"] == pytest.approx((99**2 - 89**2) / 10)


def test_a_restarted_actor_starts_at_zero_and_one_that_is_gone_is_forgotten() -> None:
    speeds = Speeds()
    speeds.look([actor(0), actor(0, "actor-1")], 0.0)
    assert speeds.look([actor(900), actor(10, "actor-1")], 1.0) == {"actor-0": 900.0, "actor-1": 10.0}
    assert speeds.look([actor(5)], 2.0) == {}
    assert speeds.look([actor(25)], 4.0) == {"actor-0": 10.0}
