"""The judge of a run under chaos finds whatever is wrong: each of these histories has one fault."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest

from dpsr_apex.config_files import load_config
from dpsr_apex.protocol.outbox import Outbox
from dpsr_apex.record.checkpoint import save_checkpoint
from dpsr_apex.record.journal.commit import Commit
from dpsr_apex.record.journal.disk import RealDisk
from dpsr_apex.record.journal.journal import Journal
from dpsr_apex.record.journal.recover import journal_facts
from dpsr_apex.record.journal.segments import segment_path
from dpsr_apex.wire.messages import ACTOR, Acknowledged, Chunk
from tests.chaos.chaos_tasks import keep_ledger
from tests.chaos.history import Account, Archive, judge, new_service, read_ledger
from tests.simulation.hosts import join_request, make_transitions
from tests.system.members import new_run

CHUNK = 5  # transitions


@pytest.fixture
def ledgers(tmp_path: Path) -> Iterator[Path]:
    """The folder of the ledgers that are kept during a test."""
    folder = tmp_path / "ledgers"
    folder.mkdir()
    keep_ledger(folder)
    yield folder
    patch.stopall()


class Story:
    """A replay with a journal, and one actor."""

    def __init__(self, folder: Path) -> None:
        self.run = new_run(folder / "run")
        config = load_config(self.run.config)
        self.service = new_service(config)
        self.run.journal.mkdir()
        journal = Journal(RealDisk(), self.run.journal, 1, 0, journal_facts(config), awaits_sync=False)
        self.commit = Commit(self.service, journal)
        self.archive = Archive(self.run.journal, folder / "archive")
        self.outbox = Outbox(CHUNK, 100, 10.0, 0.0)
        self._folder = folder
        self._made = 0
        join = join_request("actor-0", "actor", 1)._replace(run_id="", emulator="")
        self.commit.commit(self.service.handle(b"actor", join, 0.0, ACTOR))

    def chunk(self) -> Chunk:
        """Return the next chunk of the actor, which it has sent according to its ledger."""
        self.outbox.add(make_transitions(7, self._made, CHUNK), None, 0)
        self._made += CHUNK
        (send,) = self.outbox.flush(0.0)
        assert isinstance(send.message, Chunk)
        return send.message

    def take(self, chunk: Chunk) -> None:
        """Let the replay take a chunk, and the actor its acknowledgement."""
        for out in self.commit.commit(self.service.handle(b"actor", chunk, 0.0, ACTOR)):
            if isinstance(out.message, Acknowledged):
                self.outbox.acknowledge(out.message.sequence, out.message.in_flight, 0.0)
        self.archive.update()

    def play(self, chunks: int) -> None:
        for _ in range(chunks):
            self.take(self.chunk())

    def end(self) -> Account:
        """Write the last checkpoint, and judge the run."""
        self.commit.close()
        save_checkpoint(self.run.checkpoints, self.service.t, {"replay": self.service.save()}, 1)
        self.archive.merge(self._folder / "merged")
        return judge(self.run, self._folder / "merged", sorted((self._folder / "ledgers").iterdir()))


@pytest.fixture
def story(ledgers: Path) -> Story:
    """A run in which more was inserted than fits, with open recycling rounds."""
    story = Story(ledgers.parent)
    story.play(70)
    assert story.service.replay.rounds
    return story


def test_a_good_run_is_found_to_be_good(story: Story) -> None:
    story.commit.begin_segment()
    story.play(10)
    story.commit.journal.remove_before(story.commit.journal.next)  # the first segment; the archive has kept it
    account = story.end()
    assert account.problems == []
    assert (account.acknowledged, account.quarantined, account.lost) == (400, 0, 0)
    assert account.present + account.replaced == 400
    assert min(account.present, account.replaced) > 0
    assert account.is_good


def test_what_was_acknowledged_and_never_inserted_is_lost(story: Story) -> None:
    story.outbox.acknowledge(story.chunk().sequence + 1, 100, 0.0)
    account = story.end()
    assert (account.lost, account.acknowledged) == (CHUNK, 355)
    assert not account.is_good


def test_what_was_not_acknowledged_may_be_missing(story: Story) -> None:
    story.chunk()
    account = story.end()
    assert account.is_good
    assert account.acknowledged == 350


def test_what_was_quarantined_is_not_lost(story: Story) -> None:
    story.service.flow.evict(story.service.replay.identities[:3].tolist(), "unusable")
    story.play(1)
    account = story.end()
    assert account.is_good
    assert (account.quarantined, account.acknowledged) == (3, 355)


@pytest.mark.parametrize("fault", ["twice", "unknown", "priorities", "counters"])
def test_whatever_else_is_wrong_is_found(story: Story, fault: str) -> None:
    chunk, replay = story.chunk(), story.service.replay
    if fault == "twice":
        story.take(chunk)
        story.take(chunk._replace(sequence=chunk.sequence + 1))
    elif fault == "unknown":
        story.take(chunk._replace(transitions=make_transitions(8, 0, CHUNK)))
    elif fault == "priorities":
        replay.update_priorities(replay.identities[:1], np.array([9.0]))  # and nothing of it in the journal
    else:
        replay.counters.replaced += 1
    account = story.end()
    assert account.problems
    assert not account.is_good


def test_the_archive_leaves_out_what_a_recovery_has_removed(tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    journal.mkdir()
    archive = Archive(journal, tmp_path / "archive")
    first, second, third = (segment_path(journal, number) for number in (0, 5, 9))
    for path in (first, second, third):
        path.write_text("before the crash")
    archive.update()
    second.unlink()
    third.unlink()
    second.write_text("after it")
    archive.update()
    first.unlink()
    archive.merge(tmp_path / "merged")
    kept = {path.name: path.read_text() for path in (tmp_path / "merged").iterdir()}
    assert kept == {first.name: "before the crash", second.name: "after it"}


def test_a_ledger_whose_last_line_is_incomplete_is_read(tmp_path: Path) -> None:
    path = tmp_path / "one.ledger"
    path.write_text("sent 0 a b\nsent 1 c\nacknowledged 1\nsent 2 d")
    told = read_ledger(path)
    assert (told.sent, told.acknowledged) == (["a", "b", "c"], ["a", "b"])
