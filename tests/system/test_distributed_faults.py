"""Processes of a run are killed, suspended and starved: it continues without loss, or fails with a recorded cause."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from dpsr_apex.files import UNFINISHED, read_rows
from dpsr_apex.processes.control import address_of
from dpsr_apex.record.checkpoint import clock_of, list_checkpoints
from dpsr_apex.record.ending import Ending
from dpsr_apex.record.run_directory import RunDirectory
from dpsr_apex.wire.addresses import port_of
from dpsr_apex.wire.messages import Stats
from dpsr_apex.wire.statistics import ActorsPaused, LearnerMissing
from tests.system.runs import (
    END_SECONDS,
    Process,
    Run,
    assert_counters_add_up,
    assert_finished,
    assert_nothing_missing,
    connections,
    eventually,
    last_checkpoint,
    last_saved,
    restored,
    running,
    sent_by_actors,
    training,
)
from tests.system.test_cli import fill

STEPS = 2_000
TEMPLATE = "dpsr-apex template"
MAX_GROWTH = 30 * 2**20  # bytes, of a process with full queues


def kill(process: Process) -> None:
    os.kill(process.pid, signal.SIGKILL)


def await_checkpoint(run: Run) -> int:
    """Wait for a checkpoint, and hold the run from then on; return its clock."""
    run.eventually(lambda: last_saved(run.directory))
    run.hold()
    return last_saved(run.directory)


def await_members(run: Run, count: int) -> Stats:
    """Return the first stats after all processes have joined: the actors, the learner and the evaluator."""
    return run.await_stats(lambda stats: stats.traffic.joins >= count)


def await_join(run: Run, before: Stats) -> Stats:
    """Return the first stats after one more process has joined."""
    return run.await_stats(lambda stats: stats.traffic.joins > before.traffic.joins)


def places(stats: Stats) -> dict[str, int]:
    """Return the place of each actor among the actors, which decides its epsilon."""
    return {actor.name: actor.place for actor in stats.actors}


@pytest.mark.slow
def test_the_candidates_of_a_killed_actor_are_reissued_and_it_returns_to_its_place(tmp_path: Path) -> None:
    patient = ("system.lease=60", "system.recycle_deadline=60")  # only the supervisor reports the death
    with training(tmp_path / "run", *patient, steps=STEPS, actors=2) as run:
        run.await_stats(lambda stats: stats.replay.rounds_closed)
        before = await_members(run, 4)
        run.hold()
        victim = run.await_child("actor-1")
        os.kill(victim.pid, signal.SIGSTOP)
        held = run.eventually(lambda: (actor := run.actor("actor-1")) and actor.recycling)
        kill(victim)
        run.await_another(victim)
        after = await_join(run, before)
        assert places(after) == places(before)
        assert after.traffic.candidates_reissued >= held
        run.release()
        row = assert_finished(run, STEPS)
    assert_counters_add_up(run.directory, STEPS)
    assert row["traffic_expired_leases"] == row["traffic_candidates_given_up"] == row["candidates_lost"] == 0


@pytest.mark.thorough
@pytest.mark.slow
def test_actors_may_be_killed_at_any_moment(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    with training(tmp_path / "run", steps=3_000, actors=2) as run:
        run.await_all()
        before = await_members(run, 4)
        others = run.pids("replay", "learner", "evaluator")
        for name in ("actor-0", "actor-1", "actor-0"):
            before = run.await_t(before.t + int(rng.integers(50, 300)))
            victim = run.await_child(name)
            kill(victim)
            run.hold()
            run.await_another(victim)
            before = await_join(run, before)
            assert run.pids("replay", "learner", "evaluator") == others
            run.release()
        row = assert_finished(run, 3_000)
    assert_counters_add_up(run.directory, 3_000)
    assert row["traffic_expired_leases"] == 0


def test_a_killed_learner_continues_from_the_last_checkpoint(tmp_path: Path) -> None:
    with training(tmp_path / "run", steps=STEPS) as run:
        await_checkpoint(run)
        saved = last_checkpoint(run.directory).parts["learner"].facts["updates"]
        before = await_members(run, 3)
        victim = run.await_child("learner")
        kill(victim)
        run.await_another(victim)
        after = await_join(run, before)
        assert 0 < saved <= after.rate.batches, "the updates that the learner starts from are not due again"
        run.release()
        row = assert_finished(run, STEPS)
    assert_counters_add_up(run.directory, STEPS)
    assert last_checkpoint(run.directory).parts["learner"].facts["updates"] == row["updates"]


def test_a_killed_replay_continues_with_everything_that_it_has_acknowledged_at_the_same_address(
    tmp_path: Path,
) -> None:
    with training(tmp_path / "run", steps=STEPS) as run:
        saved = await_checkpoint(run)
        before = run.await_t(saved + 20)
        endpoint, era = address_of(run.directory).endpoint, run.stats().era
        victim = run.await_child("replay")
        kill(victim)
        run.await_another(victim)
        after = run.await_stats(lambda stats: stats.era != era)
        assert after.t >= before.t
        assert after.traffic.inserted >= before.traffic.inserted
        assert after.replay.priorities_updated > 0, "its counters continue too"
        run.await_all()
        assert address_of(run.directory).endpoint == endpoint
        run.release()
        assert_finished(run, STEPS)
    assert_counters_add_up(run.directory, STEPS)
    assert_nothing_missing(run)


@pytest.mark.slow
def test_without_a_journal_a_killed_replay_continues_from_the_last_checkpoint(tmp_path: Path) -> None:
    with training(tmp_path / "run", "run.durability=none", steps=STEPS) as run:
        saved = await_checkpoint(run)
        run.await_t(saved + 20)
        victim = run.await_child("replay")
        kill(victim)
        run.await_another(victim)
        run.release()
        assert_finished(run, STEPS)
    assert_counters_add_up(run.directory, STEPS)
    assert last_checkpoint(run.directory).parts["replay"].facts["traffic"]["lost"] > 0, "and they are counted"


@pytest.mark.thorough
@pytest.mark.slow
def test_a_replay_that_is_killed_before_the_first_checkpoint_loses_nothing_and_the_same_a_second_time(
    tmp_path: Path,
) -> None:
    with training(tmp_path / "run", "run.checkpoint_period=0", "evaluation.period=200", steps=1_000) as run:
        run.await_stats(lambda stats: stats.row)
        run.hold()
        run.eventually(lambda: read_rows(run.directory.evaluations))
        for _ in range(2):
            before = run.await_all()
            victim = run.await_child("replay")
            kill(victim)
            run.await_another(victim)
            after = run.await_stats(lambda stats: stats.era != before.era)  # noqa: B023 -- called before it changes
            assert after.t >= before.t
        run.await_all()
        run.release()
        assert_finished(run, 1_000)
    assert_counters_add_up(run.directory, 1_000)
    clocks = [row["t"] for row in read_rows(run.directory.evaluations)]
    assert clocks == sorted(set(clocks))


@pytest.mark.thorough
@pytest.mark.slow
def test_no_process_waits_for_the_copy_of_the_replay_that_writes_a_checkpoint(tmp_path: Path) -> None:
    with training(tmp_path / "run", "run.checkpoint_period=200", steps=1_000_000) as run:
        run.await_all()
        replay = run.await_child("replay")
        copy, unsaved = run.eventually(lambda: suspended_copy(run, replay))
        stats = run.stats()
        later = run.await_t(stats.t + 1_000)
        assert later.rate.batches > stats.rate.batches + 100
        run.hold()
        kill(replay)
        run.await_another(replay)
        run.await_all()
        os.kill(copy.pid, signal.SIGCONT)
        run.eventually(lambda: copy.pid not in [one.pid for one in run.processes()])
        clocks = [clock_of(path) for path in list_checkpoints(run.directory.checkpoints)]
        assert unsaved not in clocks, "the replay that it was written for is gone"
        run.release()
        run.eventually(lambda: last_saved(run.directory) > unsaved)
        assert run.end(signal.SIGINT) == 130
    restored(run.directory, last_checkpoint(run.directory))


def suspended_copy(run: Run, replay: Process) -> tuple[Process, int] | None:
    """Suspend the copy of the replay while it writes a checkpoint; return it and that clock, None if there is none."""
    for copy in run.processes():
        if copy.parent != replay.pid:
            continue
        with suppress(ProcessLookupError):
            os.kill(copy.pid, signal.SIGSTOP)
            clocks = [int(path.name[-12:]) for path in run.directory.checkpoints.glob(f"{UNFINISHED}step_*")]
            if unsaved := [t for t in clocks if t > last_saved(run.directory)]:
                return copy, unsaved[0]
            os.kill(copy.pid, signal.SIGCONT)
    return None


@pytest.mark.thorough
@pytest.mark.slow
def test_all_members_reconnect_to_a_replay_that_was_suspended_for_longer_than_a_lease(tmp_path: Path) -> None:
    with training(tmp_path / "run", "system.lease=3", steps=STEPS, actors=2) as run:
        run.await_t(600)
        replay = run.await_child("replay")
        port = port_of(address_of(run.directory).endpoint)
        members = [run.await_child(name) for name in ("actor-0", "actor-1", "learner", "evaluator")]
        former = [connections(member, port) for member in members]
        os.kill(replay.pid, signal.SIGSTOP)
        for member, ports in zip(members, former, strict=True):
            run.eventually(lambda: not connections(member, port) & ports)  # noqa: B023 -- called before it changes
        os.kill(replay.pid, signal.SIGCONT)
        row = assert_finished(run, STEPS)
        assert sent_by_actors(run) == row["traffic_sent"] == row["traffic_received"]
        assert row["traffic_expired_leases"] == 0  # the members were never silent
    assert_counters_add_up(run.directory, STEPS)


@pytest.mark.thorough
@pytest.mark.slow
def test_an_evaluator_that_is_killed_in_the_last_evaluation_repeats_it(tmp_path: Path) -> None:
    with training(tmp_path / "run", "evaluation.episodes=40", steps=700) as run:
        run.await_t(500)
        run.hold()
        run.eventually(lambda: run.child("replay") is None)  # only the last evaluation is left
        victim = run.await_child("evaluator")
        kill(victim)
        run.await_another(victim)
        run.release()
        assert_finished(run, 700)


def test_when_the_supervisor_is_killed_the_run_is_saved_and_ends_and_can_be_resumed(tmp_path: Path) -> None:
    with training(tmp_path / "run", steps=STEPS) as run:
        await_checkpoint(run)
        t = run.await_all().t
        run.process.kill()
        run.process.wait()
        eventually(lambda: not run.processes(), END_SECONDS)
        run.release()
    assert last_checkpoint(run.directory).t >= t
    assert run.ending is None
    with running(run.directory.path, "resume", run.directory.path) as run:
        assert_finished(run, STEPS)
    assert_counters_add_up(run.directory, STEPS)


@pytest.mark.thorough
@pytest.mark.slow
def test_a_run_whose_supervisor_was_killed_can_be_resumed_before_its_processes_have_ended(tmp_path: Path) -> None:
    path = tmp_path / "run"
    with training(path, steps=STEPS) as first:
        await_checkpoint(first)
        os.kill(first.await_child("learner").pid, signal.SIGSTOP)  # the replay will wait for it before it ends
        first.process.kill()
        with running(path, "resume", path) as second:
            second.await_all()
            second.release()
            assert_finished(second, STEPS)
        assert [process.name for process in first.processes()] == ["learner"]
    assert_counters_add_up(RunDirectory(path), STEPS)


@pytest.mark.thorough
@pytest.mark.slow
def test_a_running_run_cannot_be_resumed_and_is_not_disturbed(tmp_path: Path) -> None:
    path = tmp_path / "run"
    with training(path, steps=STEPS) as first:
        await_checkpoint(first)
        era, pids = first.await_all().era, first.pids("replay", "learner", "actor-0", "evaluator")
        with running(path, "resume", path) as second:
            assert second.wait() == 2
            assert f"{path} is running already, in process {first.process.pid}" in second.complained
            assert second.complained.count("\n") == 1
            assert second.ending is None
        assert first.await_all().era == era
        assert first.pids("replay", "learner", "actor-0", "evaluator") == pids
        first.release()
        assert_finished(first, STEPS)
    assert_counters_add_up(RunDirectory(path), STEPS)


def memory(run: Run) -> dict[str, int]:
    """Return the resident bytes of the processes with queues that a suspended learner could fill."""
    return {name: run.await_child(name).resident_bytes for name in ("replay", "actor-0")}


def assert_bounded(run: Run, before: dict[str, int]) -> None:
    grown = {name: size - before[name] for name, size in memory(run).items()}
    assert max(grown.values()) < MAX_GROWTH, grown


def learner_is_missing(stats: Stats) -> bool:
    return any(isinstance(wait, LearnerMissing) and wait.silent_seconds for wait in stats.waiting)


@pytest.mark.thorough
@pytest.mark.slow
def test_actors_wait_for_a_suspended_learner_and_continue_with_it(tmp_path: Path) -> None:
    with training(tmp_path / "run", "system.lease=60", steps=STEPS) as run:
        run.await_t(600)
        learner = run.await_child("learner")
        os.kill(learner.pid, signal.SIGSTOP)
        stats = run.await_stats(lambda stats: any(isinstance(wait, ActorsPaused) for wait in stats.waiting))
        before = memory(run)
        run.await_stats(learner_is_missing)
        run.eventually(lambda: "No progress" in run.said)  # the user is told
        assert run.stats().t <= stats.t + 50  # transitions of a chunk, and the rate limiter's tolerance is used up
        assert_bounded(run, before)
        assert run.pids("learner") == [learner.pid], "it was not restarted"
        os.kill(learner.pid, signal.SIGCONT)
        assert_finished(run, STEPS)
        assert run.child("learner") is None
    assert_counters_add_up(run.directory, STEPS)


@pytest.mark.slow
def test_in_free_running_nothing_waits_for_a_frozen_learner_which_is_restarted(tmp_path: Path) -> None:
    with training(tmp_path / "run", "learner.steps_per_update=0", steps=1_000_000) as run:
        run.eventually(lambda: last_saved(run.directory))
        learner = run.await_child("learner")
        os.kill(learner.pid, signal.SIGSTOP)
        before = memory(run)
        run.await_stats(learner_is_missing)
        t = run.stats().t
        run.eventually(lambda: last_saved(run.directory) > t)  # a checkpoint after it has been silent for a while
        assert_bounded(run, before)
        replay = run.await_child("replay")
        kill(replay)
        run.await_another(replay)
        assert run.await_stats(lambda stats: stats.actors).t > t, "what was acknowledged is not lost"
        run.await_another(learner)
        batches = run.stats().rate.batches
        run.await_stats(lambda stats: stats.rate.batches > batches + 100)
        assert run.end(signal.SIGINT) == 130
    restored(run.directory, last_checkpoint(run.directory))


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), pytest.param(signal.SIGTERM, 143, marks=pytest.mark.slow)]
)
def test_a_signal_saves_and_ends_everything(number: signal.Signals, code: int, tmp_path: Path) -> None:
    # With a slow learner, chunks wait in the replay.
    slow = ("learner.steps_per_update=1", "system.in_flight_behind=1000")
    with training(tmp_path / "run", *slow, steps=1_000_000, actors=2) as run:
        run.await_all()
        t = run.await_stats(lambda stats: stats.queued > 100).t
        assert (run.end(number), run.complained) == (code, "")
        traffic = assert_nothing_missing(run)
        assert traffic["refused"] == 0, "what was not stored was not acknowledged"
        assert traffic["lost"] > 0
        saved = last_checkpoint(run.directory)
        assert run.ending == Ending("stopped", code, saved.t)
        assert f"resume {run.directory.path}" in run.said, "the command that continues it"
    assert saved.t >= t
    assert saved.parts["learner"].facts["updates"] > 0
    restored(run.directory, saved)


def test_a_signal_before_any_process_has_joined_ends_everything(tmp_path: Path) -> None:
    with training(tmp_path / "run") as run:
        template = run.eventually(lambda: next((one for one in run.processes() if one.words == [TEMPLATE]), None))
        os.kill(template.pid, signal.SIGSTOP)  # no process is forked
        run.eventually(run.directory.connection.exists)
        assert (run.end(signal.SIGINT), run.complained) == (130, "")
        assert run.ending == Ending("stopped", 130, 0)


@pytest.mark.thorough
@pytest.mark.slow
def test_a_signal_does_not_wait_for_a_suspended_learner(tmp_path: Path) -> None:
    with training(tmp_path / "run", steps=1_000_000) as run:
        saved = await_checkpoint(run)
        t = run.await_t(saved + 1).t
        os.kill(run.await_child("learner").pid, signal.SIGSTOP)
        assert (run.end(signal.SIGINT), run.complained) == (130, "")
    assert last_checkpoint(run.directory).t >= t
    assert last_checkpoint(run.directory).parts["learner"].facts["updates"] > 0


@pytest.mark.thorough
@pytest.mark.slow
def test_a_second_signal_ends_at_once_and_leaves_nothing_behind(tmp_path: Path) -> None:
    with training(tmp_path / "run", steps=1_000_000) as run:
        run.await_all()
        learner = run.await_child("learner")
        os.kill(learner.pid, signal.SIGSTOP)  # the replay would wait for it before it ends
        while run.process.poll() is None:  # two signals that arrive together count as one
            run.process.send_signal(signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                run.process.wait(0.2)
        assert run.process.returncode == 130
        assert run.ending is None
        os.kill(learner.pid, signal.SIGCONT)
        eventually(lambda: not run.processes(), END_SECONDS)


@pytest.mark.slow
def test_a_learner_that_always_crashes_fails_the_run_with_its_last_output(tmp_path: Path) -> None:
    with training(tmp_path / "run", "learner.network=tasks:CrashingNetwork") as run:
        assert run.wait() == 1
        assert run.ending is not None
        assert run.ending[:4] == ("failed", 1, 0, "learner")
        assert "the network is broken" in run.ending.cause
        assert run.said.count("the network is broken") == 1, "the output of the first crash alone is shown"
        assert "learner.log" in run.complained
        assert "Traceback" not in run.complained


@pytest.mark.thorough
@pytest.mark.slow
def test_a_run_whose_actors_all_crash_too_often_fails_with_their_first_traceback(tmp_path: Path) -> None:
    with training(tmp_path / "run", "env.name=tasks:Fragile") as run:
        assert run.wait() == 1
        assert run.said.count("RuntimeError: the pole is broken") == 1
        assert run.ending is not None
        assert (run.ending.outcome, run.ending.process) == ("failed", "actor-0")
        assert run.ending.cause.endswith("RuntimeError: the pole is broken")
        assert "actor-0.log" in run.complained


@pytest.mark.thorough
@pytest.mark.slow
def test_a_run_fails_if_its_replay_is_terminated_and_can_be_resumed(tmp_path: Path) -> None:
    with training(tmp_path / "run", steps=STEPS) as run:
        await_checkpoint(run)
        os.kill(run.await_child("replay").pid, signal.SIGTERM)
        assert run.wait() == 1
        assert run.ending is not None
        assert run.ending[:4] == ("failed", 1, last_saved(run.directory), "replay")
        run.release()
    with running(run.directory.path, "resume", run.directory.path) as run:
        assert_finished(run, STEPS)


def test_a_port_that_is_in_use_is_refused(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        place = f"127.0.0.1:{taken.getsockname()[1]}"
        with training(tmp_path / "run", bind=place) as run:
            assert run.wait() in (1, 2)
            assert place in run.complained
            assert "Traceback" not in run.complained
            assert run.ending is not None
            assert (run.ending.outcome, run.ending.process) == ("failed", "replay")
            assert place in run.ending.cause


@pytest.mark.thorough
@pytest.mark.slow
def test_without_a_journal_a_full_disk_does_not_pause_a_run(small_disk: Path, tmp_path: Path) -> None:
    path = tmp_path / "run"
    path.symlink_to(small_disk / "run")
    (small_disk / "run").mkdir()
    with training(path, "run.durability=none", steps=1_000_000) as run:
        run.eventually(lambda: last_saved(run.directory))
        replay = run.await_child("replay")
        for name in ("filler", "more"):  # a checkpoint that was being written may have released space
            fill(small_disk / name)
            run.eventually(lambda: not any(one.parent == replay.pid for one in run.processes()))
        saved = last_saved(run.directory)
        t = run.await_t(run.stats().t + 1_500).t
        assert last_saved(run.directory) == saved, "no checkpoint can be written, and the last one is kept"
        for name in ("filler", "more"):
            (small_disk / name).unlink()
        run.eventually(lambda: last_saved(run.directory) > t)
        assert run.end(signal.SIGINT) == 130
    restored(run.directory, last_checkpoint(run.directory))
