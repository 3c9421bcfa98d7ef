"""Finished runs of an experiment survive in an archive, and are not made twice."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from docs import archive
from dpsr_apex.config_files import load_config
from dpsr_apex.experiment.folder import Folder
from dpsr_apex.experiment.grid import Plan
from dpsr_apex.files import read_rows
from dpsr_apex.record.run_directory import RunDirectory
from tests.unit.report.made_runs import TOTAL, make_run


def test_an_unpacked_run_is_finished_and_an_unfinished_one_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive, "ARCHIVES", tmp_path / "archives")
    folder = tmp_path / "mine"
    made = RunDirectory(make_run(folder / "done", row_count=25))
    make_run(folder / "half", until=TOTAL // 2)
    for run in folder.iterdir():
        (run / "provenance.jsonl").write_text('{"command": "train"}\n', encoding="utf-8")
    evaluations, last_row = read_rows(made.evaluations), read_rows(made.metrics)[-1]
    assert archive.pack(folder) == 1

    shutil.rmtree(folder / "done")
    assert archive.unpack(folder) == 1
    plan = Plan("done", load_config(str(made.config)))
    assert Folder(folder).state(plan) == "finished"
    assert read_rows(made.evaluations) == evaluations
    assert read_rows(made.metrics)[-1] == last_row
    assert len(read_rows(made.metrics)) == 3, "rows 10, 20 and 25"
    assert archive.unpack(folder) == 0
