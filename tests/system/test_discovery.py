"""Processes on several machines that share nothing but a folder, in which the head of the run says where it is."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from dpsr_apex.config_files import dump_config, load_config
from dpsr_apex.run.metrics import read_metrics
from dpsr_apex.run.run_directory import RunDirectory
from tests.system.machines import Machine, machines
from tests.system.members import SETTINGS, Started, started
from tests.system.runs import assert_counters_add_up, eventually, last_saved

STEPS = 3_000
SMALL = (
    *SETTINGS,
    *("env.name=gated:Gated", "learner.steps_per_update=8", "run.checkpoint_period=100", "system.lease=10"),
    *("system.recycle_deadline=10", "system.rate_tolerance=100", "system.chunk=20", f"run.total_steps={STEPS}"),
)


@pytest.fixture
def three() -> Iterator[list[Machine]]:
    with machines(3) as found:
        yield found


@pytest.mark.slow
def test_machines_that_share_a_folder_train_together_and_find_a_head_that_moves(
    three: list[Machine], tmp_path: Path
) -> None:
    first, second, third = three
    run, config = RunDirectory(tmp_path / "run"), tmp_path / "small.toml"
    config.write_text(dump_config(load_config("cartpole", overrides=SMALL)))
    shutil.copy(Path(__file__).with_name("gated.py"), tmp_path)
    with ExitStack() as stack:

        def start(machine: Machine, name: str, *words: str | Path) -> Started:
            return stack.enter_context(started(tmp_path / name, *words, before=machine.before, cwd=tmp_path))

        def serve(machine: Machine) -> Started:
            where = ("--run-dir", run.path, "--bind", f"{machine.address}:0", "--resume")
            replay = start(machine, f"replay-{machine.name}", "replay", config, *where)
            replay.await_words(f"serving at tcp://{machine.address}:")
            return replay

        early = start(third, "early", "actor", "--find", run.path, "--name", "early")
        early.await_words(f"waiting for a head to be published in {run.path}")
        replay = serve(first)
        members = [
            early,
            start(second, "learner", "learner", "--find", run.path),
            start(second, "other", "actor", "--find", run.path, "--name", "other"),
            start(first, "evaluator", "evaluator", run.path),
        ]
        replay.await_words(f"learner at {second.address} joined")
        replay.await_words(f"early at {third.address} joined")
        replay.await_words(f"other at {second.address} joined")
        eventually(lambda: last_saved(run) > 0)

        replay.end(signal.SIGKILL)
        replay = serve(second)
        for member in members:
            member.await_words(f"connecting again, to tcp://{second.address}:")
        for words in (f"early at {third.address}", "learner", "other", f"evaluator at {first.address}"):
            replay.await_words(f"{words} joined")
        (tmp_path / "go").touch()
        for command in (replay, *members):
            assert command.wait() == 0, command.said
            assert "Traceback" not in command.said
    assert_counters_add_up(run, STEPS)
    assert read_metrics(run.evaluations)[-1]["t"] == STEPS
    assert not run.connection.exists()


def test_an_evaluator_waits_for_a_head_that_has_not_made_the_folder_yet(tmp_path: Path) -> None:
    with started(tmp_path / "log", "evaluator", tmp_path / "run") as evaluator:
        evaluator.await_words(f"waiting for a head to be published in {tmp_path / 'run'}")
