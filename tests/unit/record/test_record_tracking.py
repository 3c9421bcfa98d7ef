"""Trackers: the rows of metrics arrive in each of them, a resumed run continues there, and a failure ends nothing."""

from __future__ import annotations

import csv
import importlib
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import dpsr_apex as da
from dpsr_apex import timeouts
from dpsr_apex.cli import main
from dpsr_apex.config import Config
from dpsr_apex.files import Row
from dpsr_apex.record.metric_table import metric_names
from dpsr_apex.record.metrics import Metrics
from dpsr_apex.record.run_directory import RunDirectory
from dpsr_apex.record.scalars import scalars_of, settings_of
from dpsr_apex.record.tracking.background import BackgroundTracker
from dpsr_apex.record.tracking.csv_file import CsvFile
from dpsr_apex.trackers import TRACKERS, TrackerEntry
from tests.unit.record.broken_trackers import FailsAtSecondRow, NeverCloses

SHORT: dict[str, Any] = {
    "replay.capacity": 150,
    "replay.recycle_period": 0,
    "actor.n_steps": 1,
    "learner.learning_starts": 50,
    "learner.batch_size": 16,
    "learner.hidden": [8],
    "learner.head": 8,
    "evaluation.period": 100,
    "evaluation.episodes": 1,
    "run.log_period": 100,
    "run.threads": 1,
}
ROWS: list[Row] = [
    {"t": 10, "loss": 0.5, "evaluation_t": None, "evaluation_mean": None, "age_deciles": [1.0, 2.0]},
    {"t": 20, "loss": 0.25, "evaluation_t": 15, "evaluation_mean": 3.0, "age_deciles": [1.0, 2.0]},
]


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    return RunDirectory.create(tmp_path / "run")


def train(path: Path, *trackers: str, steps: int = 200, **options: Any) -> da.Run:
    return da.train("cartpole", steps=steps, set=SHORT | {"run.track": list(trackers)}, run_dir=path, **options)


def table(run: RunDirectory) -> list[dict[str, str]]:
    with run.table.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def ensure_same_table(run: da.Run) -> None:
    """Compare every cell of the table with the rows of metrics."""
    rows = [{name: value for name, value in row.items() if not isinstance(value, list | dict)} for row in run.metrics]
    found = table(RunDirectory(run.path))
    assert [row.keys() for row in found] == [row.keys() for row in rows]
    for cells, row in zip(found, rows, strict=True):
        assert {name: json.loads(cell) if cell else None for name, cell in cells.items()} == row


def track(name: str, run: RunDirectory, rows: list[Row], resumed_at: int | None = None) -> list[str]:
    """Send rows to a tracker; return the notes."""
    notes: list[str] = []
    tracker = BackgroundTracker(name, Config(), run, resumed_at, notes.append)
    for row in rows:
        tracker.write(row)
    tracker.close()
    return notes


def replace_tracker(monkeypatch: pytest.MonkeyPatch, name: str, cls: str) -> None:
    monkeypatch.setitem(TRACKERS, name, TrackerEntry(f"tests.unit.record.broken_trackers:{cls}", "", ""))


def test_scalars_have_groups_and_an_evaluation_has_its_own_clock() -> None:
    assert scalars_of(ROWS[0]) == [(10, {"learner/loss": 0.5})]
    assert scalars_of(ROWS[1]) == [(15, {"eval/evaluation_mean": 3.0}), (20, {"learner/loss": 0.25})]
    assert scalars_of({"t": 1, "evaluation_t": 1, "evaluation_mean": 2.0}) == [(1, {"eval/evaluation_mean": 2.0})]
    every = scalars_of(dict.fromkeys(metric_names(), 1))
    groups = {tag.partition("/")[0] for _, scalars in every for tag in scalars}
    assert groups == {"progress", "actors", "eval", "learner", "schedules", "replay", "recycling", "processes"}


def test_settings_are_plain_values() -> None:
    plain = settings_of(Config())
    assert (plain["replay.method"], plain["replay.capacity"], plain["learner.double"]) == ("dpsr", 50_000, True)
    assert (plain["env.stack"], plain["learner.hidden"], plain["run.track"]) == ("", "[64, 64]", "[]")
    assert plain["actor.exploration"] == "{ start = 1.0, end = 0.02, over = 0.1 }"


def test_the_table_has_the_scalars_of_all_rows_across_a_resume(tmp_path: Path) -> None:
    first = train(tmp_path / "run", "csv")
    ensure_same_table(first)
    ensure_same_table(da.resume(first.path, steps=300))
    assert [row["t"] for row in table(RunDirectory(first.path))] == ["100", "200", "300"]


def test_the_table_of_several_processes_has_the_last_evaluation(tmp_path: Path) -> None:
    run = train(tmp_path / "run", "csv", solo=False, actors=1)
    assert run.evaluations[-1]["t"] == 200
    assert run.metrics[-1]["evaluation_t"] == 200
    ensure_same_table(run)


def test_the_table_drops_what_a_resumed_run_repeats(run: RunDirectory) -> None:
    assert track("csv", run, ROWS) == []
    assert track("csv", run, [ROWS[1] | {"loss": 7.0}], resumed_at=10) == []
    assert [(row["t"], row["loss"]) for row in table(run)] == [("10", "0.5"), ("20", "7.0")]


def test_the_table_accepts_new_columns_and_values_for_its_last_row(run: RunDirectory) -> None:
    file = CsvFile(Config(), run, "", None)
    file.write({"t": 1, "loss": float("nan")})
    file.write({"t": 2, "loss": 1.0, "actors": 3})
    file.write({"t": 2, "actors": 4, "fill": 0.5})
    again = CsvFile(Config(), run, "", None)
    again.write({"t": 3, "fill": 1.0})
    assert [list(row.values()) for row in table(run)] == [
        ["1", "", "", ""],
        ["2", "1.0", "4", "0.5"],
        ["3", "", "", "1.0"],
    ]


@pytest.mark.parametrize("cls", ["FailsAtOpen", "FailsAtSecondRow"])
def test_a_tracker_that_fails_is_noted_once_and_the_run_finishes(
    cls: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    replace_tracker(monkeypatch, "trackio", cls)
    run = train(tmp_path / "run", "trackio", "csv", steps=400)
    assert capsys.readouterr().out.count("Tracking with trackio failed") == 1
    assert [row["t"] for row in run.metrics] == [100, 200, 300, 400]
    ensure_same_table(run)
    assert "the server" in (run.path / "logs" / "solo.log").read_text()


def test_the_reason_of_a_failure_is_one_line(run: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    replace_tracker(monkeypatch, "trackio", "FailsAtOpen")
    [note] = track("trackio", run, ROWS)
    assert "(RuntimeError: the server is away)" in note
    assert list(run.tracking.iterdir()) == []


def test_a_tracker_that_fails_is_closed_and_gets_no_more_rows(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace_tracker(monkeypatch, "trackio", "FailsAtSecondRow")
    assert len(track("trackio", run, [*ROWS, ROWS[1]])) == 1
    assert FailsAtSecondRow.written == ROWS
    assert FailsAtSecondRow.closed == ["some"]
    assert (run.tracking / "trackio.id").read_text() == "some"


def test_a_tracker_that_fails_is_reported_before_the_first_row(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace_tracker(monkeypatch, "trackio", "FailsAtOpen")
    notes: list[str] = []
    tracker = BackgroundTracker("trackio", Config(), run, None, notes.append)
    tracker._thread.join()
    assert notes == []
    with Metrics(run, None, [tracker]) as metrics:
        metrics.report_trackers()
        assert len(notes) == 1
    assert len(notes) == 1


def test_a_tracker_that_does_not_finish_is_left_behind(run: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    replace_tracker(monkeypatch, "trackio", "NeverCloses")
    monkeypatch.setattr(timeouts, "TRACKER_LEAVE", 0.01)
    [note] = track("trackio", run, ROWS)
    assert "did not finish within 0.01 s" in note
    NeverCloses.released.set()


def test_a_missing_package_is_refused_before_the_run_directory_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(TRACKERS, "wandb", TRACKERS["wandb"]._replace(module="no_such_module"))
    path = tmp_path / "run"
    assert main(["train", "cartpole", "--solo", "--track", "csv", "--track", "wandb", "--run-dir", str(path)]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("dpsr-apex: run.track = 'wandb' needs the package no_such_module")
    assert "pip install 'wandb>=" in line
    assert not path.exists()


def history(file: Path) -> tuple[str, list[dict[str, float]]]:
    """Return the id and the logged scalars of a run that wandb has recorded offline."""
    from wandb.proto import wandb_internal_pb2
    from wandb.sdk.internal.datastore import DataStore

    messages: Any = wandb_internal_pb2  # internal modules, partly without types
    store: Any = DataStore()
    rows, found = [], ""
    store.open_for_scan(str(file))
    while (content := store.scan_data()) is not None:
        record = messages.Record.FromString(content)
        found = record.run.run_id or found
        items = {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
        if items:
            rows.append({name: value for name, value in items.items() if not name.startswith("_")})
    store._fp.close()
    return found, rows


def test_wandb_gets_the_scalars_and_continues_the_same_run(run: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    monkeypatch.setattr(timeouts, "TRACKER_LEAVE", 60.0)  # its own process starts slowly on a busy machine
    assert track("wandb", run, ROWS) == []
    assert track("wandb", run, ROWS[1:], resumed_at=10) == []
    importlib.import_module("wandb").teardown()  # its own process may still be writing, and does so before it ends
    (name, first), (again, second) = sorted(
        map(history, run.tracking.rglob("*.wandb")), key=lambda found: -len(found[1])
    )
    assert name == again == (run.tracking / "wandb.id").read_text()
    later = [{"t": 15, "eval/evaluation_mean": 3}, {"t": 20, "learner/loss": 0.25}]
    assert first == [{"t": 10, "learner/loss": 0.5}, *later]
    assert second == later


TRACKIO = """
calls = []

class Run:
    def log(self, scalars, step):
        calls.append(("log", step, scalars))
    def finish(self):
        calls.append(("finish",))

def init(**options):
    calls.append(("init", options))
    return Run()
"""
MLFLOW = """
from types import SimpleNamespace
from typing import NamedTuple

calls = []

class Metric(NamedTuple):
    key: str
    value: float
    timestamp: int
    step: int

class Param(NamedTuple):
    key: str
    value: str

entities = SimpleNamespace(Metric=Metric, Param=Param)

class MlflowClient:
    def get_experiment_by_name(self, name):
        return None
    def create_experiment(self, name):
        return f"experiment {name}"
    def create_run(self, experiment, run_name):
        calls.append(("create", experiment, run_name))
        return SimpleNamespace(info=SimpleNamespace(run_id="some-id"))
    def log_batch(self, run, metrics=(), params=()):
        assert len(params) <= 100
        calls.append(("log", run, *metrics, *params))
    def set_terminated(self, run, status="FINISHED"):
        calls.append((status, run))
"""


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str, str], list[Any]]]:
    """Return a function that puts a module in place of a package, and returns the list of calls of the module."""
    monkeypatch.syspath_prepend(str(tmp_path))
    made = []

    def put(name: str, source: str) -> list[Any]:
        (tmp_path / f"{name}.py").write_text(source)
        made.extend([name, TRACKERS[name].cls.partition(":")[0]])
        calls: list[Any] = importlib.import_module(name).calls
        return calls

    yield put
    for name in made:
        sys.modules.pop(name, None)


def test_trackio_gets_the_scalars_and_continues_by_name(
    run: RunDirectory, stand_in: Callable[[str, str], list[Any]]
) -> None:
    calls = stand_in("trackio", TRACKIO)
    assert track("trackio", run, ROWS) == []
    assert track("trackio", run, ROWS[1:], resumed_at=10) == []
    (_, first), *logged, end, (_, second), _, _, _ = calls
    assert first["name"] == second["name"] == (run.tracking / "trackio.id").read_text()
    assert first["name"].startswith("run-")
    assert (first["project"], first["resume"], first["config"]) == ("dpsr_apex", "allow", settings_of(Config()))
    steps = [(10, {"learner/loss": 0.5}), (15, {"eval/evaluation_mean": 3.0}), (20, {"learner/loss": 0.25})]
    assert logged == [("log", *step) for step in steps]
    assert end == ("finish",)


def test_mlflow_gets_the_scalars_and_continues_the_same_run(
    run: RunDirectory, stand_in: Callable[[str, str], list[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = stand_in("mlflow", MLFLOW)
    monkeypatch.setitem(sys.modules, "mlflow.entities", sys.modules["mlflow"].entities)
    assert track("mlflow", run, ROWS) == []
    assert track("mlflow", run, ROWS[1:], resumed_at=10) == []
    assert calls[0] == ("create", "experiment dpsr_apex", "run")
    logged = [call for call in calls if call[:2] == ("log", "some-id")]
    params = {param.key: param.value for param in logged[0][2:]}
    assert params == {key: str(value) for key, value in settings_of(Config()).items()}
    metrics = [(metric.step, metric.key, metric.value) for call in logged[1:] for metric in call[2:]]
    later = [(15, "eval/evaluation_mean", 3.0), (20, "learner/loss", 0.25)]
    assert metrics == [(10, "learner/loss", 0.5), *later, *later]
    assert [call[0] for call in calls if call[0] not in ("create", "log")] == ["RUNNING", "FINISHED"] * 2
    assert (run.tracking / "mlflow.id").read_text() == "some-id"
