"""Metrics: what is written can be read, by us and by TensorBoard; a torn or repeated row is never seen."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tensorboard.backend.event_processing.data_provider import MultiplexerDataProvider
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.backend.event_processing.plugin_event_multiplexer import EventMultiplexer
from tensorboard.context import RequestContext
from tensorboard.plugins.base_plugin import TBContext
from tensorboard.plugins.hparams.api_pb2 import ListSessionGroupsRequest, Status
from tensorboard.plugins.hparams.backend_context import Context
from tensorboard.plugins.hparams.list_session_groups import Handler as ListSessionGroups

from dpsr_apex.config import SETTINGS, Config, ReplayConfig
from dpsr_apex.files import append_row, read_rows
from dpsr_apex.record.census import take_census
from dpsr_apex.record.checkpoint import load_checkpoint, save_checkpoint
from dpsr_apex.record.metrics import Interval, Metrics, add_last_evaluation, fingerprint, truncate_after
from dpsr_apex.record.run_directory import RunDirectory
from dpsr_apex.replay.replay import Replay
from dpsr_apex.state import State


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    return RunDirectory.create(tmp_path / "run")


def scalars(run: RunDirectory, name: str) -> list[tuple[int, float]]:
    accumulator = EventAccumulator(str(run.tensorboard))
    accumulator.Reload()
    return [(event.step, event.value) for event in accumulator.Scalars(name)]


def test_rows_come_back_with_t_first_and_only_finite_numbers(run: RunDirectory) -> None:
    with Metrics(run) as metrics:
        metrics.write({"loss": np.float32(0.5), "epsilon": float("nan"), "t": 1000, "best": -np.inf, "fill": None})
        assert read_rows(run.metrics) == [{"t": 1000, "best": None, "epsilon": None, "fill": None, "loss": 0.5}]
    assert run.metrics.read_text().startswith('{"t": 1000, "best": null, ')


def test_a_list_of_scores_is_a_row_too(tmp_path: Path) -> None:
    append_row(tmp_path / "evaluations.jsonl", {"t": 5, "scores": np.array([1.0, np.nan]), "games": np.int64(2)})
    assert read_rows(tmp_path / "evaluations.jsonl") == [{"t": 5, "games": 2, "scores": [1.0, None]}]


def test_a_row_without_a_clock_is_refused(run: RunDirectory) -> None:
    with Metrics(run) as metrics, pytest.raises(KeyError, match="t"):
        metrics.write({"loss": 1.0})
    assert read_rows(run.metrics) == []


def test_tensorboard_shows_an_evaluation_at_the_clock_of_its_weights(run: RunDirectory) -> None:
    with Metrics(run) as metrics:
        metrics.write({"t": 10, "loss": 1.0, "evaluation_t": None, "evaluation_mean": None})
        metrics.write({"t": 20, "loss": 1.0, "evaluation_t": 12, "evaluation_mean": 3.0})
    add_last_evaluation(run, 20, 4.0)
    assert scalars(run, "eval/evaluation_mean") == [(12, 3.0), (20, 4.0)]
    assert scalars(run, "learner/loss") == [(10, 1.0), (20, 1.0)]
    assert read_rows(run.metrics)[-1] == {"t": 20, "loss": 1.0, "evaluation_t": 20, "evaluation_mean": 4.0}


def test_the_last_evaluation_is_not_added_to_another_row(run: RunDirectory) -> None:
    append_row(run.metrics, {"t": 10})
    add_last_evaluation(run, 20, 4.0)
    assert read_rows(run.metrics) == [{"t": 10}]


def test_tensorboard_reads_the_same(run: RunDirectory) -> None:
    with Metrics(run) as metrics:
        for t in (1, 2, 3):
            metrics.write({"t": t, "loss": t / 2, "return_mean": None if t == 2 else float(t)})
        assert scalars(run, "learner/loss") == [(1, 0.5), (2, 1.0), (3, 1.5)]
    assert scalars(run, "actors/return_mean") == [(1, 1.0), (3, 3.0)]


def test_tensorboard_shows_the_histograms_of_the_replay(run: RunDirectory) -> None:
    histogram = {"edges": [0.0, 1.0, 10.0, 100.0], "counts": [5, 0, 2]}
    with Metrics(run) as metrics:
        metrics.write({"t": 7, "age_histogram": histogram})
    accumulator = EventAccumulator(str(run.tensorboard)).Reload()
    assert accumulator.Tags()["histograms"] == ["replay/age_histogram"]
    [event] = accumulator.Histograms("replay/age_histogram")
    value = event.histogram_value
    assert (event.step, value.min, value.max, value.num) == (7, 0.0, 100.0, 7)
    assert (value.bucket_limit, value.bucket) == ([1.0, 10.0, 100.0], [5.0, 0.0, 2.0])
    assert value.sum == 5 * 0.5 + 2 * 55


def test_a_row_of_an_empty_replay_can_be_written(run: RunDirectory) -> None:
    """All of its transitions may have been quarantined."""
    empty = Replay(ReplayConfig(capacity=200), 1_000, np.random.default_rng(0))
    with Metrics(run) as metrics:
        metrics.write({"t": 7, "loss": 1.0, **take_census(empty)})
    assert scalars(run, "learner/loss") == [(7, 1.0)]
    assert read_rows(run.metrics)[0]["age_histogram"] is None


def test_tensorboard_shows_the_settings_beside_the_last_scores(tmp_path: Path) -> None:
    for method, scores in {"per": (3.0, 5.0), "dpsr": (4.0, 9.0)}.items():
        with Metrics(RunDirectory.create(tmp_path / method)) as metrics:
            metrics.describe(Config(replay=ReplayConfig(method=method)))
            for t, score in enumerate(scores, 1):
                metrics.write({"t": t, "return_best": t, "evaluation_t": t, "evaluation_mean": score})
    names = ("eval/evaluation_mean", "actors/return_best")
    shown = {session.name: session for session in sessions(tmp_path)}
    assert shown.keys() == {f"{method}/tensorboard" for method in ("per", "dpsr")}
    for method, last in {"per": 5.0, "dpsr": 9.0}.items():
        group = shown[f"{method}/tensorboard"]
        assert group.hparams["replay.method"].string_value == method
        assert group.hparams["learner.double"].bool_value is True
        assert group.hparams["replay.capacity"].number_value == 50_000
        assert group.hparams.keys() == SETTINGS.keys()
        assert {value.name.tag: value.value for value in group.metric_values} == dict(
            zip(names, (last, 2), strict=True)
        )


def sessions(folder: Path) -> list[Any]:
    """Return what TensorBoard's own plugin lists for the runs in a folder."""
    multiplexer = EventMultiplexer().AddRunsFromDirectory(str(folder))
    multiplexer.Reload()
    provider = MultiplexerDataProvider(multiplexer, str(folder))
    context = Context(TBContext(data_provider=provider))
    experiment = context.experiment_from_metadata(
        RequestContext(), "", False, context.hparams_metadata(RequestContext(), ""), None
    )
    request = ListSessionGroupsRequest(slice_size=10, include_metrics=True, allowed_statuses=Status.values())
    for info in experiment.metric_infos:
        request.col_params.add(metric=info.name)
    answer = ListSessionGroups(RequestContext(), context, "", request).run()
    for group in answer.session_groups:
        group.name = group.sessions[0].name
    return list(answer.session_groups)


def test_a_continued_run_repeats_no_row(run: RunDirectory) -> None:
    with Metrics(run) as metrics:
        for t in (10, 20, 30):
            metrics.write({"t": t, "loss": 1.0})
    with Metrics(run, resumed_at=20) as metrics:
        metrics.write({"t": 30, "loss": 2.0})
    assert [(row["t"], row["loss"]) for row in read_rows(run.metrics)] == [(10, 1.0), (20, 1.0), (30, 2.0)]
    assert scalars(run, "learner/loss") == [(10, 1.0), (20, 1.0), (30, 2.0)]


def test_truncating_what_is_not_there_does_nothing(tmp_path: Path) -> None:
    truncate_after(tmp_path / "metrics.jsonl", 5)
    assert list(tmp_path.iterdir()) == []


@given(cut=st.integers(1, 40))
def test_a_torn_last_line_is_left_out(tmp_path_factory: pytest.TempPathFactory, cut: int) -> None:
    path = tmp_path_factory.mktemp("torn") / "metrics.jsonl"
    append_row(path, {"t": 1, "loss": 0.25})
    whole = path.read_bytes()
    append_row(path, {"t": 2, "loss": 0.25})
    path.write_bytes(path.read_bytes()[: -min(cut, len(whole))])
    assert read_rows(path) == [{"t": 1, "loss": 0.25}]
    truncate_after(path, 2)
    assert path.read_bytes() == whole
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]


def test_the_fingerprint_ignores_the_wall_clock_and_nothing_else(tmp_path: Path) -> None:
    row: dict[str, Any] = {"t": 1, "loss": 0.1, "steps_per_second": 10.0, "elapsed_seconds": 3.0}
    variants = {
        "same": row,
        "other order": dict(reversed(row.items())),
        "faster": row | {"steps_per_second": 20.0, "elapsed_seconds": 1.5},
        "other loss": row | {"loss": np.nextafter(0.1, 1)},
        "one more": row | {"fill": None},
    }
    for name, variant in variants.items():
        append_row(tmp_path / name, variant)
    same, other_order, faster, other_loss, one_more = (fingerprint(tmp_path / name) for name in variants)
    assert same == other_order == faster
    assert len({same, other_loss, one_more, fingerprint(tmp_path / "none")}) == 4


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_leaves_no_part_of_a_row(run: RunDirectory) -> None:
    with Metrics(run) as metrics:
        metrics.write({"t": 1, "loss": 0.0})
        with largest_file(run.metrics.stat().st_size + 10), pytest.raises(OSError, match="too large"):
            metrics.write({"t": 2, "loss": 0.0})
        [events] = run.tensorboard.iterdir()
        with largest_file(events.stat().st_size + 10), pytest.raises(OSError, match="too large"):
            metrics.write({"t": 3, "loss": 0.0})
        metrics.write({"t": 4, "loss": 0.0})
    assert [row["t"] for row in read_rows(run.metrics)] in ([1, 4], [1, 3, 4])
    assert scalars(run, "learner/loss") == [(1, 0.0), (4, 0.0)]


def test_means_over_an_interval() -> None:
    interval = Interval()
    for value in (1.0, 2.0, 6.0):
        interval.add("loss", value)
    interval.add("return", 5.0)
    assert interval.drain() == {"loss": 3.0, "return": 5.0}
    assert interval.drain() == {}


@given(values=st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=20), stop=st.integers(0, 20))
def test_an_interval_continues_bit_by_bit(values: list[float], stop: int) -> None:
    whole, first, second = Interval(), Interval(), Interval()
    for value in values:
        whole.add("x", value)
    for value in values[:stop]:
        first.add("x", value)
    second.load(State(json.loads(json.dumps(first.save().facts)), {}))
    for value in values[stop:]:
        second.add("x", value)
    assert second.drain() == whole.drain()


def test_an_interval_fits_into_a_checkpoint(tmp_path: Path) -> None:
    interval, other = Interval(), Interval()
    interval.add("x", np.float32(0.1))
    other.load(load_checkpoint(save_checkpoint(tmp_path, 1, {"interval": interval.save()}, keep=1)).parts["interval"])
    assert other.drain() == interval.drain()


def test_no_torch_is_needed() -> None:
    code = "import sys, dpsr_apex.record.metrics; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
