"""The journal in a run directory: what is shown of it, giving up damage, and going back to a checkpoint."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import Mock

import pytest

from dpsr_apex import running
from dpsr_apex.config import ConfigError
from dpsr_apex.config_files import load_config
from dpsr_apex.inspection import journal as inspection
from dpsr_apex.inspection.journal import show_journal
from dpsr_apex.protocol.events import Counted
from dpsr_apex.record.checkpoint import Checkpoint, list_checkpoints, load_checkpoint, save_checkpoint
from dpsr_apex.record.journal import recover as recover_module
from dpsr_apex.record.journal.disk import Disk, RealDisk
from dpsr_apex.record.journal.encoding import encode_events
from dpsr_apex.record.journal.giving_up import give_up_damage
from dpsr_apex.record.journal.journal import Journal
from dpsr_apex.record.journal.learner import write_learner
from dpsr_apex.record.journal.position import PART, has_journal, journal_part, position_of, reached
from dpsr_apex.record.journal.reader import DamagedJournal
from dpsr_apex.record.journal.recover import Base, UnreadableJournal, recover
from dpsr_apex.record.journal.segments import list_segments
from dpsr_apex.record.journal.summary import Summary, summarize
from dpsr_apex.record.progress import saved_at
from dpsr_apex.record.run_directory import RunDirectory, RunDirectoryError, write_config
from dpsr_apex.running import discard_later, is_followed
from dpsr_apex.state import State
from dpsr_apex.wire.messages import LearnerState

EMPTY = Checkpoint(0, {})


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    """A run of several processes with a journal of 20 records, one for each step, and checkpoints at t = 5 and 10."""
    run = RunDirectory.create(tmp_path / "run")
    settings = ["system.actors=2", "learner.learning_starts=2", "learner.batch_size=2"]
    write_config(load_config("cartpole", overrides=settings), run)
    run.journal.mkdir()
    journal = Journal(RealDisk(), run.journal, 1, 0, {}, awaits_sync=False)
    for t in range(1, 21):
        journal.append(encode_events([Counted({"joins": t})]), t)
        if t in (5, 10):
            journal.roll()
            save_checkpoint(run.checkpoints, t, {PART: journal_part(t)}, 2)
    journal.close()
    write_learner(RealDisk(), run.journal, LearnerState('{"updates": 7}', b"weights"))
    return run


def damage(run: RunDirectory) -> Path:
    """Flip a bit in the middle of the newest segment; return its path."""
    path = list(list_segments(RealDisk(), run.journal).values())[-1]
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(content)
    return path


def test_a_journal_is_shown_with_what_a_recovery_would_apply(
    run: RunDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    assert show_journal(run.path) == 0
    shown = capsys.readouterr().out
    assert all(path.name in shown for path in list_segments(RealDisk(), run.journal).values())
    assert "apply 10 records with 0 transitions: t = 10 → 20" in " ".join(shown.split())
    assert "7 updates" in shown


def test_damage_is_shown_refused_and_given_up_on_request(run: RunDirectory, capsys: pytest.CaptureFixture[str]) -> None:
    path = damage(run)
    newest = load_checkpoint(list_checkpoints(run.checkpoints)[-1])
    with pytest.raises(DamagedJournal) as refused:
        reached(run, newest)
    assert refused.value.exit_code == 2
    place = f"byte {refused.value.offset} of {path}"
    assert show_journal(run.path) == 1
    assert place in capsys.readouterr().out
    assert place in give_up_damage(run)
    assert 10 <= refused.value.t == reached(run, newest) == saved_at(run) < 20
    assert show_journal(run.path) == 0
    assert "given up" in capsys.readouterr().out
    assert "nothing is given up" in give_up_damage(run)


def test_damage_before_a_damaged_checkpoint_is_given_up_as_well(run: RunDirectory) -> None:
    """The run continues from the checkpoint before it, and needs the records between the two."""
    earlier, newest = list_checkpoints(run.checkpoints)
    path = list(list_segments(RealDisk(), run.journal).values())[1]
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    assert "nothing is given up" in give_up_damage(run)
    (newest / f"{PART}.json").write_text("{}")
    assert "after t = 9 is given up" in give_up_damage(run)
    assert reached(run, load_checkpoint(earlier)) == 9
    damage(run)
    give_up_damage(run, earlier)
    stems = [path.name.partition(".")[0] for path in run.journal.glob("*.damaged")]
    assert len(stems) > len(set(stems)), "what was given up earlier under the same number is kept"
    with pytest.raises(RunDirectoryError, match="not a checkpoint of this run"):
        give_up_damage(run, earlier.parent)


def test_a_run_without_a_checkpoint_is_where_its_journal_ends(run: RunDirectory) -> None:
    assert reached(run, EMPTY) == saved_at(run) == 20


def test_a_checkpoint_without_a_place_is_at_the_beginning_of_the_journal(run: RunDirectory, tmp_path: Path) -> None:
    path = save_checkpoint(tmp_path / "old", 3, {"replay": State({}, {})}, 1)
    assert position_of(path) == 0
    assert [position_of(path) for path in list_checkpoints(run.checkpoints)] == [5, 10]


def test_going_back_to_an_earlier_checkpoint_discards_what_came_later(run: RunDirectory) -> None:
    earlier, _ = list_checkpoints(run.checkpoints)
    found = load_checkpoint(earlier)
    discard_later(run, found, is_followed(run, found))
    assert list_checkpoints(run.checkpoints) == [earlier]
    assert not has_journal(run)
    assert list(run.journal.iterdir()) == [], "and the learner's state goes back too"


def test_a_run_that_goes_back_continues_at_the_clock_of_its_checkpoint(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not at the end of the journal, which it does not need: it may be damaged, and later than the new end."""
    continued: list[Checkpoint] = []
    monkeypatch.setattr(running, "_run", lambda _config, _run, found, *_: continued.append(found))
    earlier, _ = list_checkpoints(run.checkpoints)
    damage(run)
    running.resume(run.path, 15, earlier, None, lambda _: Mock())
    assert [found.t for found in continued] == [5]


def test_a_run_cannot_be_shorter_than_its_journal(run: RunDirectory) -> None:
    """The checkpoint at t = 10 alone would allow it."""
    write_config(load_config(run.config, overrides=["run.total_steps=15"]), run)
    with pytest.raises(ConfigError, match=r"run\.total_steps = 15 .* the run is at t = 20: set it to at least that"):
        running.resume(run.path, None, None, None, lambda _: Mock())


def test_a_journal_is_read_again_if_a_checkpoint_was_written_meanwhile(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def save_and_summarize(disk: Disk, folder: Path, since: int, t: int) -> Summary:
        save_checkpoint(run.checkpoints, min(t + 5, 20), {PART: journal_part(min(t + 5, 20))}, 2)
        first = next(iter(list_segments(disk, folder).values()))
        if t < 20:
            first.unlink()
        return summarize(disk, folder, since, t)

    monkeypatch.setattr(inspection, "summarize", save_and_summarize)
    assert show_journal(run.path) == 0
    assert "t = 20 → 20" in " ".join(capsys.readouterr().out.split())


def test_a_journal_of_another_format_is_refused(run: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recover_module, "FORMAT", 2)
    with pytest.raises(UnreadableJournal, match="format 1, and this version reads format 2"):
        recover(RealDisk(), run.journal, load_config(run.config), Mock(), Base(Mock()))


def test_over_a_damaged_checkpoint_the_journal_leads_to_the_end(run: RunDirectory) -> None:
    earlier, newest = list_checkpoints(run.checkpoints)
    (newest / f"{PART}.json").write_text("{}")
    assert position_of(newest) == 0, "so that nothing is removed that it may need"
    found = load_checkpoint(earlier)
    discard_later(run, found, is_followed(run, found))
    assert list_checkpoints(run.checkpoints) == [earlier]
    assert reached(run, found) == 20
