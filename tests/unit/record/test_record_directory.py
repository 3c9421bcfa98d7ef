from __future__ import annotations

import logging
from datetime import datetime
from pathlib import Path

import pytest

from dpsr_apex.config_files import load_config
from dpsr_apex.files import AtomicFile
from dpsr_apex.record.run_directory import RunDirectory, RunDirectoryError, default_path, name_of


def test_a_new_one_can_be_opened_once_it_has_a_config(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path / "runs" / "a")
    assert run.checkpoints.is_dir()
    assert run.logs.is_dir()
    assert run.tensorboard.is_dir()
    with pytest.raises(RunDirectoryError, match=r"has no config\.toml"):
        RunDirectory.open(run.path)
    run.config.write_text("")
    assert RunDirectory.open(run.path) == run


def test_every_place_is_inside(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    places = {run.config, run.metrics, run.tensorboard, run.checkpoints, run.logs, run.curve, run.evaluations}
    assert {place.parent for place in places} == {tmp_path}
    assert len(places) == 7


def test_an_empty_folder_may_become_one(tmp_path: Path) -> None:
    RunDirectory.create(tmp_path)


def test_what_was_never_finished_is_not_in_the_way(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path)
    AtomicFile(run.config)  # killed before it was committed
    assert RunDirectory.is_free(tmp_path)
    RunDirectory.create(tmp_path)
    run.config.touch()
    assert not RunDirectory.is_free(tmp_path)


def test_another_run_is_never_written_over(tmp_path: Path) -> None:
    (tmp_path / "something").touch()
    with pytest.raises(RunDirectoryError, match=r"resume .* or choose a new name"):
        RunDirectory.create(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["something"]


def test_a_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.touch()
    with pytest.raises(RunDirectoryError, match="is a file"):
        RunDirectory.create(path)
    with pytest.raises(RunDirectoryError, match="no such folder"):
        RunDirectory.open(path)


def test_what_is_not_there_cannot_be_opened(tmp_path: Path) -> None:
    with pytest.raises(RunDirectoryError, match="no such folder"):
        RunDirectory.open(tmp_path / "nothing")


@pytest.mark.parametrize(
    ("name", "slug"),
    [("breakout", "breakout"), ("CartPole-v1", "cartpole-v1"), ("my.package:Env", "my-package-env"), ("../..", "run")],
)
def test_default_names(name: str, slug: str) -> None:
    path = default_path(name, "dpsr", 0, datetime(2026, 11, 16, 10, 15, 0))
    assert path == Path(f"runs/{slug}-dpsr-seed0-20261116-101500")


def test_the_log_is_appended_to_and_let_go(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path)
    for text in ("first", "second"):
        with run.log_to("solo") as logger:
            logging.getLogger("dpsr_apex.record.somewhere").info(text)
    assert logger.handlers == []
    lines = (run.logs / "solo.log").read_text().splitlines()
    assert [line.split(": ")[-1] for line in lines] == ["first", "second"]
    assert "INFO dpsr_apex.record.somewhere" in lines[0]


@pytest.mark.parametrize(
    ("setting", "name"),
    [
        ("env.name=CartPole-v1", "CartPole"),
        ("env.name=Pong", "Pong"),
        ("env.name=ladder:Ladder", "Ladder"),
        ("env.arguments.env=LunarLander-v3", "LunarLander"),
    ],
)
def test_a_run_is_named_after_its_environment_not_its_config(setting: str, name: str) -> None:
    assert name_of(load_config("atari/breakout", overrides=[setting])) == name
