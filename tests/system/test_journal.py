"""The journal of whole runs: full disks, interrupted writes, damage, and what `dpsr-apex journal` shows."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from dpsr_apex.cli import main
from dpsr_apex.record.journal.disk import RealDisk
from dpsr_apex.record.journal.segments import find_records, list_segments
from dpsr_apex.wire.messages import Stats
from dpsr_apex.wire.statistics import JournalBlocked
from tests.system.runs import (
    Run,
    assert_counters_add_up,
    assert_finished,
    assert_nothing_missing,
    last_checkpoint,
    restored,
    running,
    training,
)
from tests.system.test_cli import fill

STEPS = 600


def is_blocked(stats: Stats) -> bool:
    return any(isinstance(wait, JournalBlocked) for wait in stats.waiting)


@pytest.mark.slow
def test_a_full_disk_pauses_a_run_which_continues_by_itself_when_there_is_space(
    small_disk: Path, tmp_path: Path
) -> None:
    path = tmp_path / "run"
    path.symlink_to(small_disk / "run")
    (small_disk / "run").mkdir()
    with training(path, "run.checkpoint_period=0", steps=1_000_000) as run:
        run.await_all()
        fill(small_disk / "filler")
        paused = run.await_stats(is_blocked)
        run.eventually(lambda: "the journal cannot be written (No space left on device)" in run.said)
        later = run.stats()
        assert is_blocked(later)
        assert later.t == paused.t, "nothing is inserted meanwhile"
        (small_disk / "filler").unlink()
        run.await_t(later.t + 200)
        assert run.end(signal.SIGINT) == 130
    assert assert_nothing_missing(run)["refused"] == 0
    restored(run.directory, last_checkpoint(run.directory))


def killed_before_its_first_checkpoint(path: Path) -> tuple[Run, int]:
    """Kill all processes of a run at once; return it, and a clock that was visible before."""
    with training(path, "run.checkpoint_period=0", steps=STEPS) as run:
        run.await_all()
        run.hold()
        t = run.await_t(run.stats().t + 10).t
        run.kill_all()
    (path.parent / "hold").unlink()
    return run, t


@pytest.mark.slow
def test_a_run_that_was_killed_with_all_its_processes_continues_after_an_interrupted_write(tmp_path: Path) -> None:
    path = tmp_path / "run"
    run, t = killed_before_its_first_checkpoint(path)
    newest = list(list_segments(RealDisk(), run.directory.journal).values())[-1]
    size = newest.stat().st_size
    with newest.open("ab") as file:
        file.write(b"DPJr and half a record")
    with running(path, "resume", path) as resumed:
        assert_finished(resumed, STEPS)
        assert f"22 bytes from byte {size:,} of {newest.name} on were removed" in resumed.said
        assert "Continuing" in resumed.said
    assert_counters_add_up(run.directory, STEPS)
    continued = next(line for line in resumed.said.splitlines() if "Continuing" in line)
    assert int(continued.rpartition("t = ")[2].replace(",", "")) >= t


@pytest.mark.slow
def test_a_damaged_journal_is_refused_with_the_way_out_which_gives_up_the_rest(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "run"
    run, _ = killed_before_its_first_checkpoint(path)
    segment = next(iter(list_segments(RealDisk(), run.directory.journal).values()))
    content = bytearray(segment.read_bytes())
    records = [record for record in find_records(bytes(content), 0) if not record.is_header]
    before, damaged = records[len(records) // 2 - 1 :][:2]
    content[damaged.end - 1] ^= 1
    segment.write_bytes(content)
    place = f"The journal is damaged at byte {before.end} of {segment}"
    assert main(["journal", str(path)]) == 1
    assert place in capsys.readouterr().out
    with running(path, "resume", path) as refused:
        assert refused.wait() == 2
        assert place in refused.complained
        assert f"t = {before.place.t:,}: dpsr-apex resume {path} --until-damage" in refused.complained
    with running(path, "resume", path, "--until-damage") as resumed:
        assert_finished(resumed, STEPS)
        assert f"Everything after t = {before.place.t:,} is given up" in resumed.said
        assert f"at t = {before.place.t:,}" in resumed.said
    assert_counters_add_up(run.directory, STEPS)
    assert [file.suffix for file in run.directory.journal.iterdir() if file.stem == segment.stem] == [".damaged"]
