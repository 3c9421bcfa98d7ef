"""Checkpoints of single-process and multi-process runs, and their age."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dpsr_apex.config import Config
from dpsr_apex.inspection.opening import checkpoint_age, open_run
from dpsr_apex.protocol.rate_limiter import RateLimiter
from dpsr_apex.protocol.replay_service import ReplayService
from dpsr_apex.record.checkpoint import save_checkpoint
from dpsr_apex.record.lock import running_alone
from dpsr_apex.record.run_directory import RunDirectory, write_config
from dpsr_apex.replay.replay import Replay
from dpsr_apex.state import State
from tests.unit.inspection.example_replays import CONFIG, cartpole, filled_replay, played, with_gains

RUN = Config(replay=CONFIG)


@pytest.fixture(scope="module")
def replay() -> Replay:
    full = filled_replay(played(cartpole(), 60))
    return with_gains(full, np.linspace(-1, 1, full.size, dtype=np.float32))


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    directory = RunDirectory.create(tmp_path / "run")
    write_config(RUN, directory)
    return directory


def save(run: RunDirectory, t: int, state: State) -> Path:
    return save_checkpoint(run.checkpoints, t, {"replay": state}, 2)


def saved_by_solo(replay: Replay) -> State:
    facts, arrays = replay.save()
    return State({"replay": facts, "rate": RateLimiter.of(RUN).save().facts}, arrays)


@pytest.mark.parametrize("many", [False, True], ids=["one process", "many processes"])
def test_a_replay_comes_out_as_it_was_saved(many: bool, run: RunDirectory, replay: Replay) -> None:
    save(run, replay.t, ReplayService(RUN, replay, "run", "0", era=1).save() if many else saved_by_solo(replay))
    opened = open_run(run.path)
    for name in ("identities", "births", "priorities", "gains"):
        np.testing.assert_array_equal(getattr(opened.replay, name), getattr(replay, name))
    assert opened.replay.check_valid() == (True, "")
    assert opened.checkpoint.t == replay.t
    assert opened.title == f"CartPole-v1 · double · seed 0 · {run.path}"


def test_only_a_running_run_is_ahead_of_its_checkpoint(run: RunDirectory, replay: Replay) -> None:
    save(run, 60, saved_by_solo(replay))
    opened = open_run(run.path)
    assert checkpoint_age(opened) is None
    with running_alone(run):
        age = checkpoint_age(opened)
    assert age is not None
    assert age >= 0
