from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from scipy.stats import binomtest

from dpsr_apex.report.command import report_runs
from dpsr_apex.report.statistics import share_of
from dpsr_apex.report.success import success_of
from tests.unit.report.made_runs import make_run


@pytest.mark.parametrize(("count", "whole"), [(0, 10), (3, 10), (10, 10), (1, 1), (70, 100)])
def test_the_interval_of_a_share_is_wilsons(count: int, whole: int) -> None:
    expected = binomtest(count, whole).proportion_ci(0.95, method="wilson")
    assert share_of(count, whole) == pytest.approx((count / whole, expected.low, expected.high))


def corridor(folder: Path, depth: int, method: str, seed: int, *, best: float, final: float) -> None:
    run = make_run(
        folder / f"{method}-{depth}-{seed}",
        "env.name=Corridor",
        f"env.arguments.depth={depth}",
        method=method,
        seed=seed,
        level=final,
    )
    *rows, last = (run / "metrics.jsonl").read_text().splitlines()
    rows.append(json.dumps(json.loads(last) | {"return_best": best}))
    (run / "metrics.jsonl").write_text("\n".join(rows) + "\n")


def test_the_shares_of_runs_that_found_and_kept_the_way_are_reported_by_difficulty(tmp_path: Path) -> None:
    (tmp_path / "experiment.toml").write_text("success = 501\n")
    for depth, method, best, final in (
        (3, "per", 998.0, 900.0),
        (3, "dpsr", 998.0, 900.0),
        (7, "per", 500.0, 100.0),
        (7, "dpsr", 994.0, 100.0),
    ):
        for seed in range(3):
            corridor(tmp_path, depth, method, seed, best=best, final=final)
    assert report_runs([tmp_path], tmp_path / "out") == 0
    with (tmp_path / "out" / "success.csv").open() as file:
        rows = {(row[0], row[1]): (row[2], row[3], row[5]) for row in csv.reader(file)}
    assert rows["Corridor (depth = 3)", "dpsr"] == ("3", "1.00", "1.00")
    assert rows["Corridor (depth = 7)", "dpsr"] == ("3", "1.00", "0.00")
    assert rows["Corridor (depth = 7)", "per"] == ("3", "0.00", "0.00")
    assert (tmp_path / "out" / "success.png").is_file()
    assert "Runs that reached 501 points" in (tmp_path / "out" / "index.html").read_text()


def test_experiments_that_name_no_success_or_two_have_none(tmp_path: Path) -> None:
    for name, text in (("a", "success = 1\n"), ("b", "success = 2\n"), ("c", "at_once = 1\n"), ("d", "success = [")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "experiment.toml").write_text(text)
    assert success_of([tmp_path / "a", tmp_path / "c"]) == 1.0
    assert success_of([tmp_path / "a", tmp_path / "b"]) is None
    assert success_of([tmp_path / "d", tmp_path / "nowhere"]) is None
