"""A run whose durability changes: its journal is never applied to a checkpoint that it does not follow."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dpsr_apex.processes.journaling import Journaling
from dpsr_apex.record.journal.disk import RealDisk
from dpsr_apex.record.journal.reader import DamagedJournal
from dpsr_apex.record.journal.recover import Base, InconsistentJournal, Recovered, recover
from dpsr_apex.state import State
from tests.unit.protocol.watched_service import KeyedService, chunk, enter, service


class Part:
    """A part of a run with its own durability, from a state on; its actor sends chunks of five transitions."""

    def __init__(self, folder: Path, durability: str, state: State | None, next_: int) -> None:
        self.service: KeyedService = service(durability=durability)
        if state is not None:
            self.service.load(state)
        self._journaling = Journaling(self.service, folder, next_)
        enter(self.service, "actor-0")

    def insert(self) -> None:
        settled = {name: number for name, _, number, *_ in self.service.flow.inbox.save()}
        self.service.handle(b"actor-0", chunk(settled["actor-0"]), 0.0)
        self._journaling.commit([])

    def checkpoint(self) -> tuple[State, int]:
        """Return the state and the position of a checkpoint of now."""
        facts, arrays = self.service.save()
        return State(json.loads(json.dumps(facts)), arrays), self._journaling.begin_segment()

    def end(self) -> None:
        self._journaling.close()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "journal").mkdir()
    return tmp_path / "journal"


def recovered(folder: Path, state: State, next_: int) -> Recovered:
    config = service(durability="process").config
    return recover(RealDisk(), folder, config, lambda _: service(), Base(lambda new: new.load(state), next=next_))


@pytest.mark.parametrize("has_earlier_journal", [False, True])
def test_a_journal_does_not_continue_an_earlier_checkpoint_of_a_part_without_one(
    folder: Path, has_earlier_journal: bool
) -> None:
    former = Part(folder, "process" if has_earlier_journal else "none", None, 0)
    former.insert()
    state, next_ = former.checkpoint()
    former.end()
    without = Part(folder, "none", state, next_)
    checkpoints = []
    for _ in range(2):
        without.insert()
        checkpoints.append(without.checkpoint())
    without.end()
    last = Part(folder, "process", *checkpoints[-1])
    last.insert()
    last.end()
    assert recovered(folder, *checkpoints[-1]).service.t == 20
    with pytest.raises(DamagedJournal):
        recovered(folder, *checkpoints[0])


def test_a_record_that_does_not_continue_the_state_before_it_is_refused(folder: Path) -> None:
    part = Part(folder, "process", None, 0)
    part.insert()
    state, next_ = part.checkpoint()
    part.insert()
    part.end()
    assert recovered(folder, state, next_).service.t == 10
    with pytest.raises(InconsistentJournal, match="leads to t = 10 instead of 5"):
        recovered(folder, state, 0)
