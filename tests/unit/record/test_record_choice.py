"""Checkpoints that are chosen, and checkpoints that vanish while they are read."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from dpsr_apex.config import Config
from dpsr_apex.record import choice
from dpsr_apex.record.checkpoint import Checkpoint, DamagedCheckpoint, load_checkpoint, save_checkpoint
from dpsr_apex.record.choice import read_checkpoint
from dpsr_apex.record.run_directory import RunDirectory, RunDirectoryError, write_config
from dpsr_apex.state import State


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    directory = RunDirectory.create(tmp_path / "run")
    write_config(Config(), directory)
    return directory


def save(run: RunDirectory, t: int, keep: int = 2) -> Path:
    return save_checkpoint(run.checkpoints, t, {"learner": State({"updates": t}, {})}, keep)


def test_the_newest_one_is_read_or_the_one_that_was_chosen(run: RunDirectory) -> None:
    older, newer = save(run, 60), save(run, 70)
    assert read_checkpoint(run) == (newer, load_checkpoint(newer))
    assert read_checkpoint(run, older) == (older, load_checkpoint(older))
    with pytest.raises(RunDirectoryError, match="is not a checkpoint of this run"):
        read_checkpoint(run, run.path)


def test_a_checkpoint_that_is_replaced_while_it_is_read_gives_way_to_the_newer_one(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(run, 60)
    tried: list[Path] = []

    def load_late(path: Path) -> Checkpoint:
        tried.append(path)
        if len(tried) == 1:
            save(run, 70, keep=1)
        return load_checkpoint(path)

    monkeypatch.setattr(choice, "load_checkpoint", load_late)
    assert read_checkpoint(run)[1].t == 70
    assert [path.name for path in tried] == ["step_000000000060", "step_000000000070"]


def test_one_of_the_same_clock_that_is_replaced_while_it_is_read_is_read_again(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(run, 60)
    tried: list[Path] = []

    def load_half(path: Path) -> Checkpoint:
        tried.append(path)
        if len(tried) == 1:
            save(run, 60)
            raise DamagedCheckpoint(path, "it was half another one")
        return load_checkpoint(path)

    monkeypatch.setattr(choice, "load_checkpoint", load_half)
    assert read_checkpoint(run)[1].t == 60
    assert len(tried) == 2


def test_a_damaged_checkpoint_that_stays_is_refused(run: RunDirectory) -> None:
    (save(run, 60) / "learner.json").write_text("{}")
    with pytest.raises(DamagedCheckpoint, match=r"learner\.json has 2 bytes"):
        read_checkpoint(run)


def test_a_run_without_a_checkpoint_says_when_there_will_be_one(run: RunDirectory) -> None:
    with pytest.raises(RunDirectoryError, match=r"has no checkpoint yet.*every 50,000 transitions"):
        read_checkpoint(run)
    shutil.rmtree(run.checkpoints)
    with pytest.raises(RunDirectoryError, match="has no checkpoint yet"):
        read_checkpoint(run)
