"""Callbacks in real, short runs: which events they receive, how they stop a run, and what happens when they fail."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

import dpsr_apex as da
from dpsr_apex.cli import main
from dpsr_apex.record.ending import read_ending
from dpsr_apex.record.metrics import fingerprint
from dpsr_apex.record.provenance import read_provenance
from dpsr_apex.record.run_directory import RunDirectory
from tests.unit.api.events import FailAtEpisode, StopAt300, WriteEvents, read_events

SETTINGS: dict[str, Any] = {
    "replay.capacity": 500,
    "learner.learning_starts": 50,
    "learner.batch_size": 16,
    "learner.hidden": [8],
    "learner.head": 8,
    "evaluation.period": 200,
    "evaluation.episodes": 2,
    "run.log_period": 100,
    "run.checkpoint_period": 200,
    "run.threads": 1,
}
NAMES = ["tests.unit.api.events:WriteEvents", "tests.unit.api.events:StopAt300"]


def train(path: Path, *callbacks: Any, solo: bool = True, **settings: Any) -> da.Run:
    actors = None if solo else 1
    given = SETTINGS | settings
    return da.train("cartpole", steps=600, solo=solo, actors=actors, set=given, run_dir=path, callbacks=callbacks)


def outcome(path: Path) -> tuple[str, int, str]:
    ending = read_ending(RunDirectory.open(path))
    assert ending
    return ending.outcome, ending.t, ending.process


def ensure_complete(run: da.Run) -> None:
    """Compare the events with the record of the run."""
    events, last = read_events(run), run.metrics[-1]
    assert sum(events["step"]) == 600
    assert len(events["episode"]) == last["episodes"]
    assert max(score for score, _ in events["episode"]) == last["return_best"]
    assert events["evaluation"] == run.evaluations
    assert events["checkpoint"][-1] == sorted(path.name for path in (run.path / "checkpoints").iterdir())[-1]
    assert events["end"] == [[True, last["updates"]]]


def test_callbacks_receive_all_events_and_change_nothing(tmp_path: Path) -> None:
    watched, plain = train(tmp_path / "watched", WriteEvents()), train(tmp_path / "plain")
    ensure_complete(watched)
    assert len(read_events(watched)["checkpoint"]) == 3  # at 200, 400 and the end
    assert read_events(watched)["update"] == [1] * watched.metrics[-1]["updates"]
    assert fingerprint(watched.path / "metrics.jsonl") == fingerprint(plain.path / "metrics.jsonl")


def test_a_callback_stops_a_run_which_can_be_continued(tmp_path: Path) -> None:
    run = train(tmp_path / "run", StopAt300, WriteEvents)
    assert outcome(run.path) == ("stopped", 300, "")
    assert [finished for finished, _ in read_events(run)["end"]] == [False]
    da.resume(run.path, callbacks=["tests.unit.api.events:WriteEvents"])
    assert sum(read_events(run)["step"]) == 600
    assert [finished for finished, _ in read_events(run)["end"]] == [False, True]
    assert fingerprint(run.path / "metrics.jsonl") == fingerprint(train(tmp_path / "plain").path / "metrics.jsonl")


def test_callbacks_are_options_of_train_and_resume(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_dir = ["--run-dir", str(tmp_path / "run")]
    settings = [f"--set={key}={value}" for key, value in SETTINGS.items()]
    words = ["train", "cartpole", "--solo", "--steps", "600", *settings, *run_dir]
    writing, stopping = (["--callback", name] for name in NAMES)
    assert main([*words, "--callback", "no.such:Class"]) == 2
    assert "'no.such:Class' cannot be imported" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
    assert main([*words, *writing, *stopping]) == 0
    run = da.Run(tmp_path / "run")
    assert outcome(run.path) == ("stopped", 300, "")
    assert main([*words, "--resume", "--callback", "no.such:Class"]) == 2
    assert main([*words, "--resume", *writing, *stopping]) == 0
    assert sum(read_events(run)["step"]) == 301, "it stopped again, after one more step"
    assert main(["resume", str(run.path), *writing]) == 0
    assert sum(read_events(run)["step"]) == 600
    assert [finished for finished, _ in read_events(run)["end"]] == [False, False, True]


def test_an_exception_names_the_callback_and_the_run_is_saved(tmp_path: Path) -> None:
    with pytest.raises(da.UserError, match=r"events:FailAtEpisode.on_episode raised RuntimeError: no more episodes"):
        train(tmp_path / "run", FailAtEpisode(), WriteEvents())
    run = da.Run(tmp_path / "run")
    outcome_, t, process = outcome(run.path)
    assert (outcome_, process) == ("failed", "callback")
    assert 0 < t < 600
    assert "end" not in read_events(run)
    assert [part.outcome for part in read_provenance(RunDirectory(run.path))] == ["failed"]
    da.resume(run.path)
    assert run.metrics[-1]["t"] == 600


class Misspelled(da.Callback):
    def on_evaluate(self, run: da.LiveRun, row: dict[str, Any]) -> None:
        pass


class ReturnsTrue(da.Callback):
    made = 0

    def __init__(self) -> None:
        ReturnsTrue.made += 1

    def on_step(self, run: da.LiveRun, transitions: int) -> Any:  # noqa: ARG002 -- the interface
        return True


def test_another_answer_than_none_or_stop_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(da.UserError, match=r"ReturnsTrue.on_step must return None or STOP \(got True\)"):
        train(tmp_path / "run", ReturnsTrue)
    assert ReturnsTrue.made == 1


class Exits(da.Callback):
    def on_step(self, run: da.LiveRun, transitions: int) -> None:  # noqa: ARG002 -- the interface
        if run.t >= 60:
            sys.exit(3)


def test_a_callback_that_exits_does_not_end_the_run_unsaved(tmp_path: Path) -> None:
    with pytest.raises(da.UserError, match=r"Exits.on_step raised SystemExit: 3"):
        train(tmp_path / "run", Exits)
    assert outcome(tmp_path / "run") == ("failed", 60, "callback")


@pytest.mark.parametrize(
    ("callback", "solo", "message"),
    [
        ("StopAt300", True, "must be named 'module:Class'"),
        ("no.such:Class", True, "cannot be imported"),
        (print, True, "must be a dpsr_apex.Callback"),
        (Misspelled, True, "Misspelled has on_evaluate; the events are on_step, on_update"),
        (Misspelled(), True, "Misspelled has on_evaluate"),
        (Misspelled, False, "Misspelled has on_evaluate"),
        (StopAt300(), False, "must be a class or 'module:Class'"),
        (type("Local", (da.Callback,), {}), False, "cannot be imported"),
    ],
)
def test_a_callback_that_cannot_be_called_is_refused(tmp_path: Path, callback: Any, solo: bool, message: str) -> None:
    with pytest.raises(da.UserError, match=message):
        train(tmp_path / "run", callback, solo=solo)
    assert not (tmp_path / "run").exists()


def test_callbacks_of_several_processes_receive_all_events(tmp_path: Path) -> None:
    run = train(tmp_path / "run", WriteEvents, solo=False)
    ensure_complete(run)
    reported = read_events(run)["update"]
    assert all(count >= 1 for count in reported)
    assert 0 < sum(reported) <= run.metrics[-1]["updates"]  # the last ones may come after the learner's last report


@pytest.mark.slow
def test_a_callback_stops_several_processes(tmp_path: Path) -> None:
    run = train(tmp_path / "run", *NAMES, solo=False)
    what, t, process = outcome(run.path)
    assert (what, process) == ("stopped", "")
    assert 300 <= t < 600
    assert [finished for finished, _ in read_events(run)["end"]] == [False]


@pytest.mark.slow
def test_an_exception_ends_several_processes_with_a_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(da.UserError, match=r"FailAtEpisode.on_episode raised RuntimeError"):
        train(tmp_path / "run", FailAtEpisode, solo=False)
    what, t, process = outcome(tmp_path / "run")
    assert (what, process) == ("failed", "callback")
    assert 0 < t < 600
