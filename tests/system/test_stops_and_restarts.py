"""Runs that are stopped, resumed twice at once, or resumed after damage: they continue, or say why not in one line."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from dpsr_apex.record.checkpoint import list_checkpoints
from dpsr_apex.record.run_directory import RunDirectory
from tests.system.runs import (
    Process,
    Run,
    assert_counters_add_up,
    assert_finished,
    eventually,
    last_saved,
    running,
    training,
)
from tests.system.test_cli import fill

STEPS = 2_000
RACERS = 6


def stopped(path: Path, *settings: str, at: int = 500, steps: int = STEPS, actors: int = 1) -> Run:
    """Train a run until it is stopped at this clock or later."""
    with training(path, *settings, steps=steps, actors=actors) as run:
        run.await_t(at)
        run.hold()
        assert run.end(signal.SIGINT) == 130
    return run


# Two at once.


def test_of_many_that_resume_a_run_at_once_one_does_and_the_others_touch_nothing(tmp_path: Path) -> None:
    path = tmp_path / "run"
    first = stopped(path, actors=2)
    saved, logged = last_saved(first.directory), len(first.log("replay"))
    with ExitStack() as stack:
        racers = [stack.enter_context(running(path, "resume", path)) for _ in range(RACERS)]
        eventually(lambda: sum(racer.process.poll() is not None for racer in racers) == RACERS - 1)
        (winner,) = [racer for racer in racers if racer.process.poll() is None]
        stats = winner.await_stats(lambda stats: len(stats.actors) == 2 and stats.learner)
        for loser in (racer for racer in racers if racer is not winner):
            assert loser.wait() == 2
            assert (loser.said, loser.complained.count("\n")) == ("", 1)
            assert f"{path} is running already, in process {winner.process.pid}" in loser.complained
        assert winner.directory.connection.exists(), "the others have not withdrawn it"
        assert winner.ending is None
        assert winner.log("replay")[logged:].count(f"from t = {saved}") == 1, "one replay was started"
        assert not [note.text for note in stats.notes if "died" in note.text or "refused" in note.text]
        winner.release()
        assert_finished(winner, STEPS)
    assert_counters_add_up(first.directory, STEPS)


# After damage.


def suspended_replay(run: Run) -> Process:
    """Suspend the replay, so that it changes nothing until it is killed."""
    replay = run.await_child("replay")
    os.kill(replay.pid, signal.SIGSTOP)
    return replay


def flip_a_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def test_a_replay_that_restarts_with_a_damaged_checkpoint_uses_the_one_before_and_says_so(tmp_path: Path) -> None:
    with training(tmp_path / "run", "run.checkpoint_period=300", steps=STEPS) as run:
        run.eventually(lambda: len(list_checkpoints(run.directory.checkpoints)) == 2)
        run.hold()
        replay = suspended_replay(run)
        older, newest = list_checkpoints(run.directory.checkpoints)
        flip_a_bit(newest / "replay.safetensors")
        os.kill(replay.pid, signal.SIGKILL)
        run.await_another(replay)
        run.eventually(lambda: f"continuing from {older}" in run.said)
        run.release()
        assert_finished(run, STEPS)
        assert "checksum of replay.safetensors differs from manifest.json" in run.said
    assert newest.with_name(f"damaged-{newest.name}").is_dir()
    assert_counters_add_up(run.directory, STEPS)


@pytest.mark.slow
def test_a_replay_that_restarts_on_a_full_disk_waits_for_space(small_disk: Path, tmp_path: Path) -> None:
    path = tmp_path / "run"
    path.symlink_to(small_disk / "run")
    (small_disk / "run").mkdir()
    with training(path, steps=STEPS) as run:
        run.eventually(lambda: last_saved(run.directory))
        run.hold()
        replay = suspended_replay(run)
        saved = last_saved(run.directory)
        fill(small_disk / "filler")
        os.kill(replay.pid, signal.SIGKILL)
        waiting = run.await_another(replay)
        run.eventually(lambda: "No progress" in run.said)  # longer than three crashes and their restarts would take
        assert run.await_child("replay") == waiting, "it has not crashed meanwhile"
        (small_disk / "filler").unlink()
        assert run.await_stats(lambda stats: stats.actors).t >= saved
        assert run.await_child("replay") == waiting
        run.release()
        assert_finished(run, STEPS)
    assert_counters_add_up(run.directory, STEPS)


@pytest.mark.slow
def test_a_run_whose_directory_is_removed_ends_and_says_why(tmp_path: Path) -> None:
    with training(tmp_path / "run", steps=1_000_000) as run:
        run.eventually(lambda: last_saved(run.directory))
        run.directory.path.rename(tmp_path / "elsewhere")
        assert run.wait() == 1
        assert run.complained.splitlines()[-1].startswith(f"dpsr-apex: {run.directory.path} was removed")
        assert "To continue" not in run.said
    assert last_saved(RunDirectory(tmp_path / "elsewhere")) > 0, "it could be moved back"


@pytest.fixture
def immutable() -> Iterator[Callable[[Path], None]]:
    """Makes a folder and everything in it read-only for everyone, until the end of the test."""
    folders: list[Path] = []

    def freeze(folder: Path) -> None:
        folders.append(folder)
        frozen = subprocess.run(["chattr", "-R", "+i", folder], capture_output=True, text=True)
        if frozen.returncode:
            pytest.skip(f"files cannot be made immutable here: {frozen.stderr.strip()}")

    try:
        yield freeze
    finally:
        for folder in folders:
            subprocess.run(["chattr", "-R", "-i", folder], capture_output=True)


@pytest.mark.slow
def test_a_run_whose_directory_becomes_read_only_ends_and_says_why(
    tmp_path: Path, immutable: Callable[[Path], None]
) -> None:
    with training(tmp_path / "run", steps=1_000_000) as run:
        run.eventually(lambda: last_saved(run.directory))
        immutable(run.directory.path)
        assert run.wait() == 1
        (complaint,) = run.complained.splitlines()
        assert "replay could not be started" in complaint
        assert f"resume {run.directory.path}" in run.said
