"""The table of runs: states, damaged runs, many runs, and lines that are only read again when something has changed."""

from __future__ import annotations

import json
import shutil
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from dpsr_apex.files import append_row, read_rows
from dpsr_apex.record.ending import Ending, write_ending
from dpsr_apex.record.lock import running_alone
from dpsr_apex.record.run_directory import RunDirectory
from dpsr_apex.web import Refusal, WebError
from dpsr_apex.web import runs as module
from dpsr_apex.web.runs import SPARK_POINTS, Runs, describe_run, sample_rows, spark


def state_of(path: Path) -> str:
    return str(describe_run("a run", RunDirectory(path))["state"])


def test_a_line_describes_a_finished_run(run_dir: Path) -> None:
    (line,) = Runs(run_dir.parent).lines()
    rows = read_rows(run_dir / "evaluations.jsonl")
    assert (line["run"], line["state"], line["environment"], line["method"]) == (
        "cart pole",
        "finished",
        "CartPole-v1",
        "dpsr",
    )
    assert (line["done"], line["goal"], line["score"]) == (600, 600, rows[-1]["mean"])
    assert line["spark"][-1][0] == 600


def test_the_state_is_that_of_the_files(run_dir: Path) -> None:
    run = RunDirectory(run_dir)
    with running_alone(run):
        assert state_of(run_dir) == "running"
    run.evaluations.unlink()
    assert state_of(run_dir) == "stopped" if run.ending.exists() else "killed"
    write_ending(run, Ending("failed", 1, 200, "learner", "out of memory"))
    assert state_of(run_dir) == "failed"
    assert "out of memory" in describe_run("x", run)["note"]
    run.ending.unlink()
    assert state_of(run_dir) == "killed"
    run.metrics.write_text("garbage\n")
    assert state_of(run_dir) in ("killed", "damaged")
    run.config.write_text("nonsense = [")
    assert state_of(run_dir) == "damaged"
    run.config.unlink()
    assert state_of(run_dir) == "damaged"


def test_a_run_alone_has_its_own_name_and_no_other(run_dir: Path) -> None:
    runs = Runs(run_dir)
    assert runs.names() == ["cart pole"]
    assert runs.open("cart pole").path == run_dir.resolve()
    with pytest.raises(Refusal):
        runs.open("..")
    with pytest.raises(WebError, match="no such folder"):
        Runs(run_dir / "missing")


def test_five_hundred_runs_are_listed_and_only_changed_ones_are_read_again(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = run_dir.parent
    for number in range(499):
        folder = root / f"group {number % 7}" / f"run {number}"
        folder.mkdir(parents=True)
        (folder / "logs").mkdir()
        shutil.copy(run_dir / "config.toml", folder)
        append_row(folder / "metrics.jsonl", {"t": number, "return_mean": 1.0})
    runs, read = Runs(root), []

    def described(name: str, run: RunDirectory) -> dict[str, Any]:
        read.append(name)
        return describe_run(name, run)

    monkeypatch.setattr(module, "describe_run", described)
    assert len(list(runs.lines())) == len(read) == 500
    list(runs.lines())
    assert len(read) == 500
    append_row(root / "group 3" / "run 3" / "metrics.jsonl", {"t": 9_000, "return_mean": 2.0})
    assert {line["t"] for line in runs.lines() if line["run"] == "group 3/run 3"} == {9_000}
    assert read[500:] == ["group 3/run 3"]
    shutil.rmtree(root / "group 3")
    assert len(list(runs.lines())) == 500 - 71


def test_rows_of_a_large_file_are_sampled_evenly_without_reading_it_all(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    with file.open("w") as rows:
        for t in range(5_000):
            rows.write(json.dumps({"t": t, "return_mean": t / 10, "more": "x" * 200}) + "\n")
        rows.write('{"t": 5000, "return')
    found = [row["t"] for row in sample_rows(file, SPARK_POINTS)]
    assert found == sorted(set(found))
    assert len(found) == SPARK_POINTS
    gaps = [after - before for before, after in pairwise(found)]
    assert max(gaps) < 1.05 * min(gaps)
    assert sample_rows(tmp_path / "missing.jsonl", 10) == []


def test_a_spark_has_a_limited_number_of_points(run_dir: Path) -> None:
    run = RunDirectory(run_dir)
    run.evaluations.unlink()
    for t in range(1_000):
        append_row(run.evaluations, {"t": t, "mean": float(t), "scores": [float(t)]})
    found = spark(run)
    assert 20 < len(found) <= SPARK_POINTS
    assert all(t == mean for t, mean in found)
