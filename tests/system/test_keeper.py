"""Keepers without Ray: real processes of a small run, each kept by a thread."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from dpsr_apex.cluster import fitness
from dpsr_apex.cluster.fitness import Probe, look_around
from dpsr_apex.cluster.keeper import Keeper, Origin, Outcome, Place, Unfit
from dpsr_apex.processes.discovery import MemoryBoard, Notice
from dpsr_apex.run.lives import Task
from dpsr_apex.run.run_directory import RunDirectory
from tests.system.members import new_run
from tests.system.runs import assert_counters_add_up, eventually

STEPS = 200
PLACE = Place("node", "127.0.0.1")


@pytest.fixture
def origin(tmp_path: Path) -> Iterator[Origin]:
    run = new_run(tmp_path / "run", f"run.total_steps={STEPS}", "learner.steps_per_update=8")
    probe = Probe(run.path)
    probe.leave()
    before = Path.cwd()
    yield Origin(run.path, probe.word, look_around(run.path, probe.word), tmp_path)
    os.chdir(before)


class Kept:
    """A keeper and its one process."""

    def __init__(self, pool: ThreadPoolExecutor, origin: Origin, board: MemoryBoard, role: str, *words: str) -> None:
        self.keeper = Keeper(PLACE, origin, board)
        self.log = origin.run / "logs" / f"{role}.log"
        self.future: Future[Outcome | Unfit] = pool.submit(self.keeper.keep, Task(role, role, [role, *words], self.log))

    @property
    def outcome(self) -> Outcome:
        outcome = self.future.result(60)
        assert isinstance(outcome, Outcome)
        return outcome


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as pool:
        yield pool


def test_kept_processes_find_each_other_and_say_how_they_ended(origin: Origin, pool: ThreadPoolExecutor) -> None:
    board = MemoryBoard()
    replay = Kept(pool, origin, board, "replay", "--run-dir", str(origin.run))
    others = [
        Kept(pool, origin, board, "learner"),
        Kept(pool, origin, board, "actor", "--name", "actor-0"),
        Kept(pool, origin, board, "evaluator", str(origin.run)),
    ]
    for kept in (replay, *others):
        assert kept.outcome.ended.code == 0, kept.log.read_text()
    assert_counters_add_up(RunDirectory(origin.run), STEPS)


def test_a_process_that_is_killed_leaves_its_keeper_alive(origin: Origin, pool: ThreadPoolExecutor) -> None:
    board = MemoryBoard()
    words = ("--run-dir", str(origin.run))
    first = Kept(pool, origin, board, "replay", *words)
    notice = eventually(board.look_up)
    first.keeper.kill()
    assert first.outcome.ended.code == -signal.SIGKILL
    assert first.outcome.ended.cause == "was killed by SIGKILL"
    assert "serving at tcp://127.0.0.1:" in first.outcome.last_words

    again = pool.submit(first.keeper.keep, Task("replay", "replay", ["replay", *words], first.log))
    eventually(lambda: moved(board, notice))
    first.keeper.signal(signal.SIGTERM)
    outcome = again.result(60)
    assert isinstance(outcome, Outcome)
    assert outcome.ended.code == 0, "one that is told to stop saves and ends in order"


def moved(board: MemoryBoard, before: Notice) -> bool:
    now = board.look_up()
    return now is not None and now.incarnation != before.incarnation


def test_nothing_is_started_where_the_run_is_not_seen(
    origin: Origin, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fitness, "SHARE_SECONDS", 0.0)
    with suppress(OSError):
        (origin.run / f".shared-{origin.word}").rmdir()
    kept = Kept(pool, origin, MemoryBoard(), "replay", "--run-dir", str(origin.run))
    outcome = kept.future.result(60)
    assert isinstance(outcome, Unfit)
    assert outcome.place == PLACE
    assert outcome.why.startswith(f"it does not see {origin.run}")
    assert not kept.log.exists()
    kept.keeper.kill()
    kept.keeper.signal(signal.SIGTERM)
