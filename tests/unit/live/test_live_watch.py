from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from dpsr_apex.live.view import LiveView
from dpsr_apex.live.watch import Tail, Watcher
from dpsr_apex.run.metrics import append_row, truncate_after
from dpsr_apex.run.run_directory import RunDirectory


def test_the_tail_of_a_file_is_what_is_new_in_it(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    tail = Tail(path)
    assert tail.read() == []
    append_row(path, {"t": 1})
    append_row(path, {"t": 2})
    assert tail.read() == [{"t": 1}, {"t": 2}]
    assert not tail.was_replaced
    assert tail.read() == []
    append_row(path, {"t": 3})
    assert tail.read() == [{"t": 3}]


def test_a_line_is_read_when_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"t": 1}\n{"t":')
    tail = Tail(path)
    assert tail.read() == [{"t": 1}]
    assert tail.read() == []
    with path.open("ab") as file:
        file.write(b" 2}\n")
    assert tail.read() == [{"t": 2}]


def test_a_file_that_was_written_anew_is_read_anew(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    tail = Tail(path)
    for t in (1, 2, 3):
        append_row(path, {"t": t})
    assert len(tail.read()) == 3
    truncate_after(path, 1)
    append_row(path, {"t": 2})
    assert tail.read() == [{"t": 1}, {"t": 2}]
    assert tail.was_replaced
    append_row(path, {"t": 3})
    assert tail.read() == [{"t": 3}]
    assert not tail.was_replaced


def test_a_file_that_is_replaced_while_it_is_opened_is_read_as_one_of_the_two(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, newer = tmp_path / "metrics.jsonl", tmp_path / "newer.jsonl"
    tail = Tail(path)
    append_row(path, {"t": 1})
    assert tail.read() == [{"t": 1}]
    append_row(path, {"t": 2})
    for t in (1, 20_000, 30_000):
        append_row(newer, {"t": t})

    def replaced_after(do: Any) -> Any:
        def doing(*given: Any, **named: Any) -> Any:
            done = do(*given, **named)
            newer.replace(path)
            monkeypatch.undo()
            return done

        return doing

    monkeypatch.setattr(Path, "stat", replaced_after(Path.stat))
    monkeypatch.setattr(Path, "open", replaced_after(Path.open))
    assert tail.read() == [{"t": 2}]
    assert tail.read() == [{"t": 1}, {"t": 20_000}, {"t": 30_000}]
    assert tail.was_replaced


def test_every_row_is_a_line_also_when_several_come_between_two_looks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = RunDirectory.create(tmp_path / "run")
    append_row(run.metrics, {"t": 1})
    append_row(run.metrics, {"t": 2})
    watcher = Watcher(run, LiveView(10, Console(width=80, force_terminal=False)), asks=False)
    watcher.begin()
    for t in (3, 4, 5):
        append_row(run.metrics, {"t": t})
    watcher.look()
    truncate_after(run.metrics, 3)  # the run has gone back
    append_row(run.metrics, {"t": 4})
    watcher.look()
    append_row(run.metrics, {"t": 5})
    watcher.look()
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("/")[0] for line in lines] == ["t 2", "t 3", "t 4", "t 5", "t 4", "t 5"]
