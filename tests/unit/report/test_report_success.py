from __future__ import annotations

import csv
import json
import re
from pathlib import Path

import pytest
from scipy.stats import binomtest

from dpsr_apex.report.command import report_runs
from dpsr_apex.report.files import remove_former
from dpsr_apex.report.groups import group_runs
from dpsr_apex.report.records import RunRecord, read_run
from dpsr_apex.report.statistics import share_of
from dpsr_apex.report.success import outcomes_of, success_of
from tests.unit.report.made_runs import make_run


@pytest.mark.parametrize(("count", "whole"), [(0, 10), (3, 10), (10, 10), (1, 1), (70, 100)])
def test_the_interval_of_a_share_matches_scipys_wilson_interval(count: int, whole: int) -> None:
    expected = binomtest(count, whole).proportion_ci(0.95, method="wilson")
    assert share_of(count, whole) == pytest.approx((count / whole, expected.low, expected.high))


def corridor(
    folder: Path, depth: int, method: str, seed: int, *, best: float | None, final: float, **figures: float
) -> None:
    run = make_run(
        folder / f"{method}-{depth}-{seed}",
        "env.name=Corridor",
        f"env.arguments.depth={depth}",
        method=method,
        seed=seed,
        level=final,
    )
    *rows, last = (run / "metrics.jsonl").read_text().splitlines()
    rows.append(json.dumps(json.loads(last) | {"return_best": best} | figures))
    (run / "metrics.jsonl").write_text("\n".join(rows) + "\n")


@pytest.mark.usefixtures("blank_pictures")
def test_the_shares_of_runs_that_found_and_kept_the_solution_are_reported_by_difficulty(tmp_path: Path) -> None:
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
    with (tmp_path / "out" / "success.csv").open(newline="") as file:
        rows = {(row.pop("environment"), row.pop("group")): row for row in csv.DictReader(file)}
    all_runs, no_run = share_of(3, 3), share_of(0, 3)
    for depth, method, found, kept in (
        (3, "dpsr", all_runs, all_runs),
        (7, "dpsr", all_runs, no_run),
        (7, "per", no_run, no_run),
    ):
        row = rows[f"Corridor (depth = {depth})", method]
        assert list(row) == ["seeds", "found", "found_low", "found_high", "kept", "kept_low", "kept_high"]
        assert [float(cell) for cell in row.values()] == [3, *found, *kept]
    page = (tmp_path / "out" / "index.html").read_text()
    assert "Runs that reached 501 points" in page
    assert not re.search(r"<h\d></h\d>", page)
    assert {"success.png", "all_improvement.png"} <= {path.name for path in (tmp_path / "out").iterdir()}
    remove_former(tmp_path / "out")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["index.html"]


@pytest.mark.parametrize(("best", "found"), [(0.0, 1.0), (-1.0, 0.0), (None, 0.0)])
def test_a_best_return_of_zero_counts(tmp_path: Path, best: float | None, found: float) -> None:
    corridor(tmp_path, 3, "dpsr", 0, best=best, final=100.0)
    record = read_run(tmp_path / "dpsr-3-0")
    assert isinstance(record, RunRecord)
    (outcome,) = outcomes_of(0.0, group_runs([record]))
    assert outcome.found.value == found


def test_a_solution_found_in_a_chain_of_recycled_steps_counts(tmp_path: Path) -> None:
    corridor(tmp_path, 20, "dpsr", 0, best=480.0, final=100.0, chains=4, chain_reward_best=996.0)
    record = read_run(tmp_path / "dpsr-20-0")
    assert isinstance(record, RunRecord)
    (outcome,) = outcomes_of(501.0, group_runs([record]))
    assert (outcome.found.value, outcome.kept.value) == (1.0, 0.0)


def test_the_success_score_must_be_unique(tmp_path: Path) -> None:
    for name, text in (("a", "success = 1\n"), ("b", "success = 2\n"), ("c", "at_once = 1\n"), ("d", "success = [")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "experiment.toml").write_text(text)
    assert success_of([tmp_path / "a", tmp_path / "c"]) == 1.0
    assert success_of([tmp_path / "a", tmp_path / "b"]) is None
    assert success_of([tmp_path / "d", tmp_path / "nowhere"]) is None
