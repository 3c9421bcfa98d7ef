from __future__ import annotations

import io
import subprocess
import sys
from typing import Any

import pytest
from rich.console import Console

from dpsr_apex.live.view import LiveView

ROW: dict[str, Any] = {
    "t": 240_000,
    "episodes": 720,
    "return_mean": 19.94,
    "return_best": 34.0,
    "epsilon": 0.02,
    "fill": 1.0,
    "stored": 50_000,
    "rounds_opened": 20,
    "rounds_closed": 19,
    "rounds_expired": 1,
    "recycled": 300,
    "loss": 0.01234,
    "mean_q": 1.5,
    "evaluation_mean": 21.25,
    "steps_per_second": 1234.5,
    "updates_per_second": 308.2,
}


def terminal(width: int = 80) -> Console:
    return Console(file=io.StringIO(), force_terminal=True, width=width, height=24, _environ={"TERM": "xterm"})


def plain() -> Console:
    return Console(file=io.StringIO(), force_terminal=False, width=80, _environ={})


def shown(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def last_panel(console: Console) -> str:
    text = shown(console)
    return text[text.rindex("╭") : text.rindex("╯")]


def test_the_panel_shows_every_figure_at_80_columns() -> None:
    console = terminal()
    with LiveView(1_000_000, console, "breakout · dpsr") as view:
        view.update(ROW)
    panel = last_panel(console)
    for figure in ("240,000 / 1,000,000", "24.0%", "0:10:16 left", "19.9 mean", "34 best", "0.02", "100% full"):
        assert figure in panel
    for figure in ("20 opened · 19 closed · 1 expired", "0.0123", "21.2", "1,234", "308", "300", "breakout · dpsr"):
        assert figure in panel
    assert "…" not in panel


@pytest.mark.parametrize("width", [40, 80, 200])
def test_a_run_that_has_nothing_to_show_yet(width: int) -> None:
    console = terminal(width)
    with LiveView(1_000, console) as view:
        view.update({"t": 0, "return_mean": None, "loss": None})
    assert "return" in last_panel(console)


def test_the_sparkline_rises_with_the_returns() -> None:
    console = terminal()
    with LiveView(1_000, console) as view:
        for t in range(1, 9):
            view.update({"t": t, "return_mean": float(t)})
        view.update({"t": 9, "return_mean": None})
    assert "▁▂▃▄▅▆▇█" in last_panel(console)


def test_equal_returns_make_a_flat_sparkline() -> None:
    console = terminal()
    with LiveView(1_000, console) as view:
        for t in range(3):
            view.update({"t": t, "return_mean": 5.0})
    assert "▁▁▁" in last_panel(console)


def test_the_clock_moves_between_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("dpsr_apex.live.view.time.monotonic", lambda: now)
    console = terminal()
    with LiveView(1_000, console) as view:
        now = 0.1
        view.advance(50)
        assert "50 / 1,000" not in shown(console)
        now = 1.0
        view.advance(60)
        assert "60 / 1,000" in shown(console)


def test_without_a_terminal_a_row_is_one_line() -> None:
    console = plain()
    with LiveView(1_000_000, console) as view:
        view.update({"t": 1_000, "epsilon": 0.99})
        view.advance(1_500)
        view.update(ROW)
    first, second = shown(console).splitlines()
    assert first.startswith("t 1,000/1,000,000 | return - best - | epsilon 0.99")
    assert "return 19.9 best 34 | evaluation 21.2" in second
    assert "rounds 20 opened, 19 closed, 1 expired" in second
    assert second.isascii()


@pytest.mark.parametrize("make", [terminal, plain])
def test_a_note_is_shown_as_it_is(make: Any) -> None:
    console = make()
    with LiveView(1_000, console) as view:
        view.note("disk full: [red]kept[/red] step_000000000010")
    assert "disk full: [red]kept[/red] step_000000000010" in shown(console)


def test_an_output_that_knows_only_ascii_gets_plain_lines() -> None:
    output = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    with LiveView(1_000, Console(file=output, force_terminal=True, width=80, _environ={"TERM": "xterm"})) as view:
        view.update(ROW)
        view.note("t · ε")
    assert isinstance(output.buffer, io.BytesIO)
    assert output.buffer.getvalue().splitlines()[1] == b"t ? ?"


def test_a_reader_that_goes_away_does_not_end_the_run() -> None:
    script = (
        "from dpsr_apex.live.view import LiveView\n"
        "view = LiveView(10)\n"
        "[view.note('x' * 10_000) for _ in range(100)]\n"
        "import sys; sys.stderr.write('went on')\n"
    )
    child = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert child.stdout is not None
    assert child.stderr is not None
    child.stdout.read(1)
    child.stdout.close()
    with child:
        assert child.stderr.read() == b"went on"
    assert child.returncode == 0
