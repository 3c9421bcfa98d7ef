"""Checkpoints of both shapes, and checkpoints that vanish while they are read."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from dpsr_apex.config import Config
from dpsr_apex.inspection import InspectionError, opening
from dpsr_apex.inspection.opening import open_run, read_checkpoint, seconds_behind
from dpsr_apex.processes.lock import serving_alone
from dpsr_apex.replay.memory import DpsrReplay
from dpsr_apex.roles.replay_server import ReplayServer
from dpsr_apex.roles.replay_service import ReplayService
from dpsr_apex.run.checkpoint import Checkpoint, DamagedCheckpoint, load_checkpoint, save_checkpoint
from dpsr_apex.run.run_directory import RunDirectory, write_config
from dpsr_apex.state import State
from tests.unit.inspection.played import CONFIG, cartpole, filled, played, with_gains

RUN = Config(replay=CONFIG)


@pytest.fixture(scope="module")
def replay() -> DpsrReplay:
    full = filled(played(cartpole(), 60))
    return with_gains(full, np.linspace(-1, 1, full.size, dtype=np.float32))


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    directory = RunDirectory.create(tmp_path / "run")
    write_config(RUN, directory)
    return directory


def save(run: RunDirectory, t: int, state: State, keep: int = 2) -> Path:
    return save_checkpoint(run.checkpoints, t, {"replay": state}, keep)


@pytest.mark.parametrize("many", [False, True], ids=["one process", "many processes"])
def test_a_replay_comes_out_as_it_was_saved(many: bool, run: RunDirectory, replay: DpsrReplay) -> None:
    server = ReplayServer(replay, RUN)
    save(run, replay.t, ReplayService(RUN, server, "run", "0").save() if many else server.save())
    opened = open_run(run.path)
    for name in ("identities", "births", "priorities", "gains"):
        np.testing.assert_array_equal(getattr(opened.replay, name), getattr(replay, name))
    assert opened.replay.check_valid() == (True, "")
    assert opened.checkpoint.t == replay.t
    assert opened.title == f"CartPole-v1 · double · seed 0 · {run.path}"


def test_the_newest_one_is_opened_or_the_one_that_was_chosen(run: RunDirectory, replay: DpsrReplay) -> None:
    older, newer = (save(run, t, ReplayServer(replay, RUN).save()) for t in (60, 70))
    assert read_checkpoint(run)[0] == newer
    assert open_run(run.path, older).checkpoint.t == 60
    with pytest.raises(InspectionError, match="is not a checkpoint of this run"):
        open_run(run.path, run.path)


def test_a_checkpoint_that_is_replaced_while_it_is_read_gives_way_to_the_newer_one(
    run: RunDirectory, replay: DpsrReplay, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = ReplayServer(replay, RUN).save()
    save(run, 60, state)
    tried: list[Path] = []

    def load_late(path: Path) -> Checkpoint:
        tried.append(path)
        if len(tried) == 1:
            save(run, 70, state, keep=1)
        return load_checkpoint(path)

    monkeypatch.setattr(opening, "load_checkpoint", load_late)
    assert read_checkpoint(run)[1].t == 70
    assert [path.name for path in tried] == ["step_000000000060", "step_000000000070"]


def test_one_of_the_same_clock_that_is_replaced_while_it_is_read_is_read_again(
    run: RunDirectory, replay: DpsrReplay, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = ReplayServer(replay, RUN).save()
    save(run, 60, state)
    tried: list[Path] = []

    def load_half(path: Path) -> Checkpoint:
        tried.append(path)
        if len(tried) == 1:
            save(run, 60, state)
            raise DamagedCheckpoint(path, "it was half another one")
        return load_checkpoint(path)

    monkeypatch.setattr(opening, "load_checkpoint", load_half)
    assert read_checkpoint(run)[1].t == 60
    assert len(tried) == 2


def test_a_damaged_checkpoint_that_stays_is_refused(run: RunDirectory, replay: DpsrReplay) -> None:
    path = save(run, 60, ReplayServer(replay, RUN).save())
    (path / "replay.json").write_text("{}")
    with pytest.raises(DamagedCheckpoint, match=r"replay\.json has 2 bytes"):
        open_run(run.path)


def test_a_run_without_a_checkpoint_says_when_there_will_be_one(run: RunDirectory) -> None:
    with pytest.raises(InspectionError, match=r"has no checkpoint yet.*every 50,000 transitions"):
        open_run(run.path)
    shutil.rmtree(run.checkpoints)
    with pytest.raises(InspectionError, match="has no checkpoint yet"):
        open_run(run.path)


def test_only_a_run_that_goes_on_is_ahead_of_its_checkpoint(run: RunDirectory, replay: DpsrReplay) -> None:
    save(run, 60, ReplayServer(replay, RUN).save())
    opened = open_run(run.path)
    assert seconds_behind(opened) is None
    with serving_alone(run):
        behind = seconds_behind(opened)
    assert behind is not None
    assert behind >= 0
