"""Checkpoints of both shapes, and how late they are."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dpsr_apex.config import Config
from dpsr_apex.inspection.opening import open_run, seconds_behind
from dpsr_apex.processes.lock import serving_alone
from dpsr_apex.replay.memory import DpsrReplay
from dpsr_apex.roles.replay_server import ReplayServer
from dpsr_apex.roles.replay_service import ReplayService
from dpsr_apex.run.checkpoint import save_checkpoint
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


def save(run: RunDirectory, t: int, state: State) -> Path:
    return save_checkpoint(run.checkpoints, t, {"replay": state}, 2)


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


def test_only_a_run_that_goes_on_is_ahead_of_its_checkpoint(run: RunDirectory, replay: DpsrReplay) -> None:
    save(run, 60, ReplayServer(replay, RUN).save())
    opened = open_run(run.path)
    assert seconds_behind(opened) is None
    with serving_alone(run):
        behind = seconds_behind(opened)
    assert behind is not None
    assert behind >= 0
