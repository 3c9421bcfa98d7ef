"""Experiments as a user runs them: as a process, killed and started again."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from dpsr_apex.experiment.folder import Folder
from dpsr_apex.experiment.grid import load_experiment
from dpsr_apex.record.checkpoint import list_checkpoints
from dpsr_apex.record.ending import read_ending
from dpsr_apex.record.metrics import fingerprint

EXPERIMENT = """
at_once = 2

[[grid]]
configs = ["cartpole"]
methods = ["per", "dpsr"]
base = "paper"
seeds = 2

[grid.settings]
replay = { capacity = 300, recycle_period = 50, recycle_candidates = 8 }
learner = { learning_starts = 100, steps_per_update = 2 }
evaluation = { period = 400, episodes = 2 }
run = { total_steps = 1_500, log_period = 100, checkpoint_period = 100 }
"""
LONGEST = 300.0  # seconds; only a run that hangs takes so long


def start(source: Path, folder: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "dpsr_apex.cli", "experiment", str(source), "--dir", str(folder)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def finish(process: subprocess.Popen[str]) -> tuple[int, str]:
    said, _ = process.communicate(timeout=LONGEST)
    return process.returncode, said


def wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LONGEST
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def results(folder: Path) -> dict[str, tuple[str, str]]:
    """Return every score of every run, and a hash of its rows without the wall clock."""
    return {
        path.parent.name: (path.read_text(), fingerprint(path.parent / "metrics.jsonl"))
        for path in folder.glob("*/evaluations.jsonl")
    }


@pytest.mark.slow
def test_an_experiment_that_is_killed_and_continued_has_the_results_of_an_uninterrupted_one(tmp_path: Path) -> None:
    source = tmp_path / "small.toml"
    source.write_text(EXPERIMENT)
    plans = load_experiment(source).plans
    whole, killed = Folder(tmp_path / "whole"), Folder(tmp_path / "killed")
    code, said = finish(start(source, whole.path))
    assert code == 0, said
    assert "[4/4]" in said

    process = start(source, killed.path)
    last = plans[-1]  # two run at once, so it begins after another one has finished
    wait_until(lambda: len(list_checkpoints(killed.run(last).checkpoints)) > 0)
    process.kill()
    process.communicate()
    states = [killed.state(plan) for plan in plans]
    assert "finished" in states
    assert states[-1] != "finished"

    code, said = finish(start(source, killed.path))
    assert code == 0, said
    assert re.search(rf"{last.name} continues after \d", said)
    assert len(results(whole.path)) == 4
    assert results(killed.path) == results(whole.path)
    assert (killed.path / "report" / "index.html").is_file()


@pytest.mark.thorough
@pytest.mark.slow
def test_ctrl_c_saves_the_runs_and_the_same_command_continues(tmp_path: Path) -> None:
    source = tmp_path / "small.toml"
    source.write_text(EXPERIMENT.replace("seeds = 2", "seeds = 1").replace("1_500", "4_000"))
    plans = load_experiment(source).plans
    folder = Folder(tmp_path / "runs")
    process = start(source, folder.path)
    wait_until(lambda: all(folder.steps_done(plan) >= 200 for plan in plans))
    process.send_signal(signal.SIGINT)
    code, said = finish(process)
    assert code == 130
    assert f"experiment {source} --dir {folder.path}" in said  # how to continue
    assert not [path for path in Path("/proc").glob("[0-9]*/cmdline") if str(folder.path).encode() in read(path)]
    endings = [read_ending(folder.run(plan)) for plan in plans]
    assert [ending[:2] for ending in endings if ending] == [("stopped", 143)] * len(plans)
    code, said = finish(start(source, folder.path))
    assert code == 0, said
    assert [folder.state(plan) for plan in plans] == ["finished"] * len(plans)


def read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:  # gone meanwhile
        return b""


@pytest.mark.slow
def test_a_run_that_fails_is_named_and_the_others_are_finished(tmp_path: Path) -> None:
    (tmp_path / "broken.toml").write_text('[env]\nname = "Acrobot-v1"\narguments = { no_such = 1 }\n')
    source = tmp_path / "mixed.toml"
    grid = EXPERIMENT.replace('["cartpole"]', json.dumps(["cartpole", str(tmp_path / "broken.toml")]))
    source.write_text(grid.replace('["per", "dpsr"]', '["per"]').replace("seeds = 2", "seeds = 1"))
    plans = load_experiment(source).plans
    folder = Folder(tmp_path / "runs")
    code, said = finish(start(source, folder.path))
    assert code == 1
    broken = next(plan.name for plan in plans if "broken" in plan.name)
    assert "no_such" in said
    assert broken in said
    output = (folder.logs / f"{broken}.log").read_text()
    assert output.count("dpsr-apex: ") == 1, "a run whose config is refused is not tried again"
    assert sorted(map(folder.state, plans)) == ["finished", "waiting"]


def test_another_experiment_in_the_same_folder_is_refused(tmp_path: Path) -> None:
    source = tmp_path / "small.toml"
    source.write_text(EXPERIMENT)
    folder = Folder(tmp_path / "runs")
    first = load_experiment(source)
    folder.path.mkdir()
    folder.prepare(first)
    folder.run(first.plans[0]).path.mkdir()
    os.link(folder.config(first.plans[0]), folder.run(first.plans[0]).config)
    source.write_text(EXPERIMENT.replace("capacity = 300", "capacity = 400"))
    code, said = finish(start(source, folder.path))
    assert code == 2
    assert [part for part in ("replay.capacity", "300", "400") if part not in said] == []
