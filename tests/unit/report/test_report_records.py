from __future__ import annotations

import json
from pathlib import Path

import pytest

from dpsr_apex.record.ending import Ending, Outcome, write_ending
from dpsr_apex.record.lock import running_alone
from dpsr_apex.record.run_directory import RunDirectory
from dpsr_apex.report import ReportError
from dpsr_apex.report.records import RunRecord, Unreadable, find_runs, read_run
from tests.unit.report.made_runs import TOTAL, fail, make_run, write_rows


def record_of(path: Path) -> RunRecord:
    record = read_run(path)
    assert isinstance(record, RunRecord)
    return record


def test_each_run_below_the_folders_is_found_once(tmp_path: Path) -> None:
    first, second = make_run(tmp_path / "a" / "x"), make_run(tmp_path / "b" / "deep" / "y")
    (tmp_path / "experiment.toml").write_text("")
    make_run(first / "inner")  # folders inside a run are not searched
    assert find_runs([tmp_path]) == [first, second]
    assert find_runs([second, tmp_path / "b", first]) == [second, first]


def test_a_folder_without_runs_and_a_folder_that_is_not_there_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ReportError, match=f"{tmp_path}: contains no run"):
        find_runs([tmp_path])
    with pytest.raises(ReportError, match="nowhere: no such folder"):
        find_runs([tmp_path / "nowhere"])


def test_a_finished_run_has_a_final_score(tmp_path: Path) -> None:
    record = record_of(make_run(tmp_path / "run"))
    assert record.state.ending == "finished"
    assert record.final_score == record.scores[-1].mean
    assert record.t == TOTAL


def test_an_unfinished_run_says_how_far_it_came_and_has_no_final_score(tmp_path: Path) -> None:
    record = record_of(make_run(tmp_path / "run", until=6_000))
    assert record.state == ("unfinished", "at t = 6,000 of 10,000")
    assert record.final_score is None
    assert record.scores[-1].t == 6_000


def test_a_run_without_its_last_evaluation_is_not_finished(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    lines = (run / "evaluations.jsonl").read_text().splitlines(keepends=True)
    (run / "evaluations.jsonl").write_text("".join(lines[:-1]))
    assert record_of(run).state == ("unfinished", "at t = 10,000 of 10,000: the last evaluation is missing")


def test_the_note_of_a_failed_run_is_the_process_and_the_cause(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", until=3_000)
    fail(run, "learner", "RuntimeError: out of luck")
    assert record_of(run).state == ("failed", "at t = 3,000 of 10,000: learner: RuntimeError: out of luck")


@pytest.mark.parametrize(("outcome", "code"), [("stopped", 130), ("finished", 0)])
def test_a_run_that_ended_without_a_failure_is_unfinished_until_its_last_evaluation(
    tmp_path: Path, outcome: Outcome, code: int
) -> None:
    run = make_run(tmp_path / "run", until=3_000)
    write_ending(RunDirectory(run), Ending(outcome, code, 3_000))
    assert record_of(run).state == ("unfinished", "at t = 3,000 of 10,000")


@pytest.mark.parametrize("until", [3_000, TOTAL])
def test_log_text_does_not_decide_whether_a_run_has_failed(tmp_path: Path, until: int) -> None:
    run = make_run(tmp_path / "run", until=until)
    (run / "logs" / "solo.log").write_text("Traceback (most recent call last):\n  ...\nRuntimeError: out of luck\n")
    assert record_of(run).state.ending == ("finished" if until == TOTAL else "unfinished")


def test_a_run_with_its_last_evaluation_is_finished_whatever_failed_afterwards(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    fail(run, "supervisor", "OSError: the curve could not be drawn")
    assert record_of(run).state.ending == "finished"


def test_a_run_that_is_served_now_is_running_whatever_ended_it_before(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", until=3_000)
    fail(run, "solo", "RuntimeError: out of luck")
    with running_alone(RunDirectory(run)):
        assert record_of(run).state == ("unfinished", "running, at t = 3,000 of 10,000")
    assert record_of(run).state.ending == "failed"


def test_an_ending_that_cannot_be_read_is_ignored(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", until=3_000)
    (run / "ending.json").write_text('{"outcome": "fai')
    assert record_of(run).state.ending == "unfinished"


def test_an_empty_run_is_empty(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", until=0)
    assert record_of(run).state == ("empty", "nothing was logged yet")
    (run / "metrics.jsonl").unlink()
    (run / "evaluations.jsonl").unlink()
    assert record_of(run).state.ending == "empty"


def test_torn_and_foreign_lines_are_left_out_and_counted(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    whole = (run / "metrics.jsonl").read_bytes()
    foreign = b'{"t": 3, "retu\n\xff\xfe\n[1]\n{"t": "soon"}\n{"no": 1}\n'
    (run / "metrics.jsonl").write_bytes(foreign + whole + b'{"t": 99')  # the last one may be in the making
    record = record_of(run)
    assert record.torn == 5
    assert len(record.rows) == whole.count(b"\n")


def test_a_value_that_is_not_a_number_is_ignored(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    odd = {"t": 1, "loss": "much", "age_mean": None, "fill": True, "age_deciles": [1, "2"], "return_mean": 7}
    text = json.dumps(odd)[:-1] + ', "mean_q": NaN}\n'
    (run / "metrics.jsonl").write_text(text)
    assert record_of(run).rows == [{"t": 1, "return_mean": 7}]
    (run / "evaluations.jsonl").write_text(
        '{"t": 5, "scores": ["a"]}\n{"t": 6, "scores": []}\n{"t": 7, "scores": [2]}\n'
    )
    assert record_of(run).scores == [(7, 2.0)]


@pytest.mark.parametrize(
    "odd",
    [{"x": 10**400}, {"recycled": -(10**30)}, {"age_mean": 1e300}, {"age_deciles": 5}, {"return_mean": [1, 2]}],
)
def test_a_value_of_the_wrong_kind_or_beyond_measure_is_no_value(tmp_path: Path, odd: dict[str, object]) -> None:
    run = make_run(tmp_path / "run")
    write_rows(run / "metrics.jsonl", [{"t": 1, "loss": 0.5} | odd])
    assert record_of(run).rows == [{"t": 1, "loss": 0.5}]


def test_a_row_with_a_huge_clock_is_invalid_and_scores_must_be_a_list(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    write_rows(run / "metrics.jsonl", [{"t": 10**400}, {"t": 2}])
    write_rows(run / "evaluations.jsonl", [{"t": 1, "scores": 5}, {"t": 2, "scores": [10**400]}])
    record = record_of(run)
    assert (record.rows, record.scores, record.torn) == ([{"t": 2}], [], 1)


def test_a_run_whose_config_cannot_be_read_is_named_with_the_reason(tmp_path: Path) -> None:
    broken = make_run(tmp_path / "broken")
    (broken / "config.toml").write_text("[replay]\nmethd = 1\n")
    missing = make_run(tmp_path / "missing")
    (missing / "config.toml").unlink()
    assert find_runs([tmp_path]) == [broken, missing]
    unreadable = read_run(broken)
    assert isinstance(unreadable, Unreadable)
    assert "replay.methd is not a setting" in unreadable.reason
    assert read_run(missing) == Unreadable(missing, "config.toml is missing")
