"""The process of one run of an experiment, over its restarts."""

from __future__ import annotations

import io
import signal
from pathlib import Path

import pytest
from rich.console import Console

from dpsr_apex import timeouts
from dpsr_apex.config_files import load_config
from dpsr_apex.experiment import runner
from dpsr_apex.experiment.folder import Folder
from dpsr_apex.experiment.grid import Experiment, Plan
from dpsr_apex.experiment.runner import Progression, Runner, RunProcess, last_evaluation
from dpsr_apex.files import append_row
from dpsr_apex.protocol.restarts import REFUSED, Exit
from dpsr_apex.record.run_directory import RunDirectory
from dpsr_apex.supervise.managed import Starter, Task, start_plainly

TASK = Task("run-0", "run", ["train"], Path("log"))


class PaperProcess:
    """A process that ends as a test says; the newest one is in `started`."""

    started: list[PaperProcess]

    def __init__(self, task: Task, start: Starter) -> None:
        assert task is TASK
        assert start is start_plainly
        self.exit: Exit | None = None
        self.started.append(self)

    def poll(self) -> Exit | None:
        return self.exit

    def signal(self, number: signal.Signals) -> None:
        self.exit = Exit(128 + number, "ended", 1.0)

    def kill(self) -> None:
        raise AssertionError("it has ended")


@pytest.fixture(autouse=True)
def started(monkeypatch: pytest.MonkeyPatch) -> list[PaperProcess]:
    monkeypatch.setattr(timeouts, "FIRST_BACKOFF", 0.0)
    monkeypatch.setattr(runner, "LocalProcess", PaperProcess)
    PaperProcess.started = []
    return PaperProcess.started


def test_a_run_that_fails_is_tried_once_more(started: list[PaperProcess]) -> None:
    process = RunProcess(TASK, start_plainly)
    for number in (1, 2):
        assert process.poll() is None
        assert len(started) == number
        assert process.is_running
        started[-1].exit = Exit(1, "ended with exit code 1", 1.0)
        assert process.poll() is started[-1].exit
    assert process.has_ended
    assert process.poll() is None
    assert len(started) == 2


@pytest.mark.parametrize("code", [0, REFUSED])
def test_a_run_that_is_done_or_was_refused_is_not_started_again(started: list[PaperProcess], code: int) -> None:
    process = RunProcess(TASK, start_plainly)
    started[0].exit = Exit(code, "ended", 1.0)
    assert process.poll() == (started[0].exit if code else None)
    assert process.has_ended
    process.poll()
    assert len(started) == 1


def test_a_run_that_is_stopped_is_not_started_again(started: list[PaperProcess]) -> None:
    process = RunProcess(TASK, start_plainly)
    process.terminate()
    for _ in range(3):
        process.poll()
    assert not process.is_running
    process.kill()
    assert len(started) == 1


def test_a_damaged_line_of_evaluations_does_not_end_an_experiment(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    run.evaluations.write_text(
        '{"t": 20, "mean": 195.5, "games": 20}\n{"t": 10, "mean\n{"t": 10, "mean": 1, "games": 20}\n'
    )
    assert last_evaluation(run) == "evaluation mean 195.5 over 20 episodes"


def test_progress_of_a_run_is_measured_by_what_ends_it(tmp_path: Path) -> None:
    overrides = ["system.actors=0", "run.total_steps=2000", "run.environment_steps=1500"]
    plan = Plan("deep", load_config("cartpole", overrides=overrides))
    experiment = Experiment(tmp_path / "mine.toml", "", 1, (plan,))
    folder = Folder(tmp_path)
    assert experiment.total_steps == 1_500
    assert folder.steps_done(plan) == 0
    run = RunDirectory.create(folder.run(plan).path)
    append_row(run.metrics, {"t": 1_000, "environment_steps": 1_200})
    assert folder.steps_done(plan) == 1_200
    console = Console(file=io.StringIO(), width=100)
    with Progression(experiment, folder, console) as view:
        view.began(plan, folder.steps_done(plan))
        (task,) = (task for task in view._progress.tasks if task.description == "deep")
        assert (task.completed, task.total) == (1_200, 1_500)
        view.finished(plan, "done")
        (whole,) = view._progress.tasks
        assert (whole.completed, whole.total) == (1_500, 1_500)
    assert isinstance(console.file, io.StringIO)
    assert "deep continues after 1,200 environment steps" in console.file.getvalue()


def test_the_output_of_runs_that_fail_alike_is_shown_once(tmp_path: Path) -> None:
    experiment, folder = Experiment(tmp_path / "mine.toml", "", 1, ()), Folder(tmp_path)
    runs = Runner(experiment, folder, Progression(experiment, folder, Console(file=io.StringIO())))
    shown = ["KeyError" in runs._last_output("KeyError", Path(f"{number}.log")) for number in range(3)]
    assert shown == [True, False, False]
    assert "OSError" in runs._last_output("OSError", Path("3.log"))
