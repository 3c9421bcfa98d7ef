from __future__ import annotations

from pathlib import Path

import pytest
from rich.console import Console

from dpsr_apex.files import append_row
from dpsr_apex.live.view import LiveView
from dpsr_apex.record.metrics import truncate_after
from dpsr_apex.record.progress import Goal
from dpsr_apex.record.run_directory import RunDirectory
from dpsr_apex.watch import Watcher


def test_every_row_is_a_line_also_when_several_come_between_two_looks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = RunDirectory.create(tmp_path / "run")
    append_row(run.metrics, {"t": 1})
    append_row(run.metrics, {"t": 2})
    watcher = Watcher(run, LiveView(Goal(10), Console(width=80, force_terminal=False)), has_head=False)
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
