"""What is printed is what was given, wherever it goes."""

from __future__ import annotations

import io
import sys

import pytest
from rich.console import Console
from rich.table import Table

from dpsr_apex.check import check_command
from dpsr_apex.live.console import make_console, make_progress


def test_names_are_printed_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    table = Table("name", title="[red]title[/] :x:")
    table.add_row("[b]cell[/b] :star:")
    make_console().print("runs/:star:/[red]1[/red]")
    make_console().print(table)
    shown = capsys.readouterr().out
    for name in ("runs/:star:/[red]1[/red]", "[red]title[/] :x:", "[b]cell[/b] :star:"):
        assert name in shown


def test_check_names_an_environment_as_it_was_typed(capsys: pytest.CaptureFixture[str]) -> None:
    assert check_command(["no_such_module:X"]) == 1
    assert "no_such_module:X: it cannot be created" in capsys.readouterr().out


def test_a_bar_is_called_as_it_is() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=80, _environ={"TERM": "xterm"})
    with make_progress(console) as progress:
        progress.add_task("module:x:[red]", total=1)
    assert isinstance(console.file, io.StringIO)
    assert "module:x:[red]" in console.file.getvalue()


def test_a_terminal_that_lacks_a_character_shows_a_question_mark(monkeypatch: pytest.MonkeyPatch) -> None:
    output = io.TextIOWrapper(io.BytesIO(), encoding="latin-1")
    monkeypatch.setattr(sys, "stdout", output)
    make_console().print("t · ε …")
    output.flush()
    assert isinstance(output.buffer, io.BytesIO)
    assert output.buffer.getvalue().decode("latin-1") == "t · ? ?\n"
