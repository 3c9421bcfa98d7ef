"""When the replay process writes a checkpoint: by its clock, and before its journal becomes too large."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dpsr_apex.processes import saving
from dpsr_apex.processes.journaling import Journaling
from dpsr_apex.processes.saving import Saving
from dpsr_apex.record.checkpoint import load_checkpoint
from dpsr_apex.record.recorder import Recorder
from dpsr_apex.record.run_directory import RunDirectory
from dpsr_apex.wire.messages import Heartbeat, Learning, Priorities
from tests.unit.protocol.watched_service import ERA, chunk, enter, service


def test_a_checkpoint_is_due_when_the_journal_has_become_large_whatever_the_clock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(saving, "MOST_JOURNAL", 10_000)
    run = RunDirectory.create(tmp_path / "run")
    replay = service()
    run.journal.mkdir()
    journaling = Journaling(replay, run.journal, 0)
    checkpoints = Saving(run, replay, Recorder(replay.config, run, replay.notes.add), journaling, 0)
    enter(replay, "actor-0", "learner-0")
    replay.handle(b"actor-0", chunk(0), 0.0)
    journaling.commit([])
    assert checkpoints.is_due(period=5)
    assert not checkpoints.is_due(period=6)
    assert not checkpoints.is_due(period=0)
    for sent in range(300):
        replay.handle(b"actor-0", Heartbeat(100 + sent), 0.0)
        replay.handle(b"learner-0", Priorities(ERA, np.arange(10), np.ones(10)), 0.0)
        journaling.commit([])
    assert checkpoints.is_due(period=0)
    journaling.close()
    found = Journaling(service(), run.journal, 1_000)
    assert found.bytes_written == journaling.bytes_written, "what an earlier process has written counts too"
    again = Saving(run, replay, Recorder(replay.config, run, replay.notes.add), found, 0)
    assert again.is_due(period=0)
    found.close()


def test_a_checkpoint_contains_what_the_next_row_will_show(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path / "run")
    replay = service(durability="none")
    recorder = Recorder(replay.config, run, replay.notes.add)
    enter(replay, "actor-0", "learner-0")
    replay.handle(b"actor-0", chunk(0, scores=[2.0, 4.0]), 0.0)
    replay.handle(b"learner-0", Learning(3, 3, 0.5, 1.0, 2.0, 0.1), 0.0)
    saved = load_checkpoint(
        Saving(run, replay, recorder, Journaling(replay, run.journal, 0), 0).write_last(is_finished=False)
    )
    later = Recorder(replay.config, run, replay.notes.add)
    later.load(saved.parts["recorder"])
    with later.open(resumed_at=0):
        row = later.write(replay.replay, 3, None, {})
    assert (row["episodes"], row["return_mean"], row["return_best"]) == (2, 3.0, 4.0)
    assert (row["loss"], row["mean_q"], row["gradient_norm"]) == (0.5, 1.0, 2.0)
