"""Processes of a run are killed, stopped and starved: it goes on and loses nothing, or it ends and says why."""

from __future__ import annotations

import os
import re
import signal
import socket
from pathlib import Path

import numpy as np
import pytest
import torch

from dpsr_apex.processes.onlooker import address_of
from dpsr_apex.run.checkpoint import has_checkpoint
from dpsr_apex.run.metrics import read_metrics
from dpsr_apex.run.run_directory import RunDirectory
from tests.system.runs import (
    END_SECONDS,
    Process,
    Run,
    assert_counters_add_up,
    assert_finished,
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
MOST_GROWTH = 30 * 2**20  # bytes, of a process that holds all that it may


def kill(process: Process) -> None:
    os.kill(process.pid, signal.SIGKILL)


def await_checkpoint(run: Run) -> int:
    """The clock of the first one that is there; the run is held from then on."""
    run.eventually(lambda: last_saved(run.directory))
    run.hold()
    return last_saved(run.directory)


def places(run: Run, name: str) -> list[str]:
    """The place of an actor among the actors, each time that it joined."""
    return re.findall(r"joined as actor (\d+) of", run.log(name))


def await_join(run: Run, name: str, joined: int) -> None:
    """Until it has joined once more than so often."""
    run.eventually(lambda: len(places(run, name)) > joined)


def test_what_an_actor_was_killed_over_is_done_by_others_and_it_comes_back_in_its_place(tmp_path: Path) -> None:
    patient = ("system.lease=60", "system.recycle_deadline=60")  # nothing but the supervisor tells of the death
    with training(tmp_path / "run", *patient, steps=STEPS, actors=2) as run:
        run.await_stats(lambda stats: len(stats["actors"]) == 2 and stats["replay"]["rounds_closed"])
        run.hold()
        joined = len(places(run, "actor-1"))
        victim = run.await_child("actor-1")
        os.kill(victim.pid, signal.SIGSTOP)
        held = run.eventually(lambda: (actor := run.actor("actor-1")) and actor["recycling"])
        kill(victim)
        run.await_another(victim)
        await_join(run, "actor-1", joined)
        assert len(set(places(run, "actor-1"))) == 1
        assert run.stats()["traffic"]["candidates_reissued"] >= held
        run.release()
        row = assert_finished(run, STEPS)
        assert "actor-1 was killed by SIGKILL" in run.said
    assert_counters_add_up(run.directory, STEPS)
    assert row["traffic_expired_leases"] == row["traffic_candidates_given_up"] == row["candidates_lost"] == 0


@pytest.mark.thorough
@pytest.mark.slow
def test_actors_may_be_killed_at_any_moment(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    with training(tmp_path / "run", steps=3_000, actors=2) as run:
        t = run.await_all()["t"]
        for name in ("actor-0", "actor-1", "actor-0"):
            t = run.await_t(t + int(rng.integers(50, 300)))["t"]
            joined = len(places(run, name))
            victim = run.await_child(name)
            kill(victim)
            run.hold()
            run.await_another(victim)
            await_join(run, name, joined)
            run.release()
        row = assert_finished(run, 3_000)
        assert run.said.count("was killed by SIGKILL") == 3
    assert_counters_add_up(run.directory, 3_000)
    assert row["traffic_expired_leases"] == 0


def test_a_learner_that_was_killed_goes_on_from_the_last_checkpoint(tmp_path: Path) -> None:
    with training(tmp_path / "run", steps=STEPS) as run:
        await_checkpoint(run)
        victim = run.await_child("learner")
        kill(victim)
        run.await_another(victim)
        run.eventually(lambda: "going on from update" in run.log("learner"))
        run.release()
        row = assert_finished(run, STEPS)
    assert_counters_add_up(run.directory, STEPS)
    (begun,) = re.findall(r"going on from update (\d+)", run.log("learner"))
    assert 0 < int(begun) < last_checkpoint(run.directory).parts["learner"].facts["updates"] == row["updates"]


def test_a_replay_that_was_killed_goes_on_from_the_last_checkpoint_where_everybody_finds_it(tmp_path: Path) -> None:
    with training(tmp_path / "run", steps=STEPS) as run:
        saved = await_checkpoint(run)
        endpoint = address_of(run.directory).endpoint
        victim = run.await_child("replay")
        kill(victim)
        run.await_another(victim)
        run.await_all()
        assert address_of(run.directory).endpoint == endpoint
        assert f"serving at {endpoint} from t = {saved}" in run.log("replay")
        run.release()
        assert_finished(run, STEPS)
    assert_counters_add_up(run.directory, STEPS)


@pytest.mark.thorough
@pytest.mark.slow
def test_a_replay_that_was_killed_before_the_first_checkpoint_begins_anew(tmp_path: Path) -> None:
    with training(tmp_path / "run", "run.checkpoint_period=0", "evaluation.period=200", steps=1_000) as run:
        run.await_stats(lambda stats: stats["row"])
        run.hold()
        run.eventually(lambda: read_metrics(run.directory.evaluations))
        victim = run.await_child("replay")
        kill(victim)
        run.await_another(victim)
        run.await_all()
        run.release()
        assert_finished(run, 1_000)
        assert run.log("replay").count("from t = 0") == 2
    assert_counters_add_up(run.directory, 1_000)
    clocks = [row["t"] for row in read_metrics(run.directory.evaluations)]
    assert clocks == sorted(set(clocks))


@pytest.mark.thorough
@pytest.mark.slow
def test_nobody_waits_for_the_copy_of_the_replay_that_writes_a_checkpoint(tmp_path: Path) -> None:
    with training(tmp_path / "run", "run.checkpoint_period=200", steps=1_000_000) as run:
        run.await_all()
        replay = run.await_child("replay")
        copy = run.eventually(lambda: next((one for one in run.processes() if one.parent == replay.pid), None))
        os.kill(copy.pid, signal.SIGSTOP)
        unsaved = int(re.findall(r"saving at t = (\d+)", run.log("replay"))[-1])
        stats = run.stats()
        later = run.await_t(stats["t"] + 1_000)
        assert later["rate"]["batches"] > stats["rate"]["batches"] + 100
        run.hold()
        kill(replay)
        run.await_another(replay)
        run.await_all()
        os.kill(copy.pid, signal.SIGCONT)
        run.eventually(lambda: copy.pid not in [one.pid for one in run.processes()])
        assert not has_checkpoint(run.directory.checkpoints, unsaved)  # of a life that is over
        run.release()
        run.eventually(lambda: last_saved(run.directory) > unsaved)
        assert run.end(signal.SIGINT) == 130
    restored(run.directory, last_checkpoint(run.directory))


@pytest.mark.thorough
@pytest.mark.slow
def test_everybody_comes_back_to_a_replay_that_stood_still_for_longer_than_a_lease(tmp_path: Path) -> None:
    with training(tmp_path / "run", "system.lease=3", steps=STEPS, actors=2) as run:
        run.await_t(600)
        replay = run.await_child("replay")
        os.kill(replay.pid, signal.SIGSTOP)
        everybody = ("actor-0", "actor-1", "learner", "evaluator")
        run.eventually(lambda: all("connecting again" in run.log(name) for name in everybody))
        os.kill(replay.pid, signal.SIGCONT)
        row = assert_finished(run, STEPS)
        assert sent_by_actors(run) == row["traffic_sent"] == row["traffic_received"]
        assert row["traffic_expired_leases"] == 0  # it was the replay that did not listen
    assert_counters_add_up(run.directory, STEPS)


@pytest.mark.thorough
@pytest.mark.slow
def test_an_evaluator_that_was_killed_in_the_last_evaluation_plays_it_again(tmp_path: Path) -> None:
    with training(tmp_path / "run", "evaluation.episodes=40", steps=700) as run:
        run.await_t(500)
        run.hold()
        run.eventually(lambda: "the last evaluation is being played" in run.said)
        victim = run.await_child("evaluator")
        kill(victim)
        run.await_another(victim)
        run.release()
        assert_finished(run, 700)
        assert "evaluator was killed by SIGKILL" in run.said


def test_when_the_supervisor_is_killed_everything_is_saved_and_ends_and_can_go_on(tmp_path: Path) -> None:
    with training(tmp_path / "run", steps=STEPS) as run:
        await_checkpoint(run)
        t = run.await_all()["t"]
        run.process.kill()
        run.process.wait()
        eventually(lambda: not run.processes(), END_SECONDS)
        run.release()
    assert last_checkpoint(run.directory).t >= t
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
def test_a_run_that_is_going_on_cannot_be_resumed_and_does_not_notice(tmp_path: Path) -> None:
    path = tmp_path / "run"
    with training(path, steps=STEPS) as first:
        await_checkpoint(first)
        with running(path, "resume", path) as second:
            assert second.wait() in (1, 2)
            assert f"{path} is running" in second.complained
            assert "Traceback" not in second.complained
        first.await_all()
        first.release()
        assert_finished(first, STEPS)
        assert first.log("replay").count("serving at") == 1
    assert_counters_add_up(RunDirectory(path), STEPS)


def memory(run: Run) -> dict[str, int]:
    """Bytes that those processes take which a stopped learner could fill up."""
    return {name: run.await_child(name).resident_bytes for name in ("replay", "actor-0")}


def assert_bounded(run: Run, before: dict[str, int]) -> None:
    grown = {name: size - before[name] for name, size in memory(run).items()}
    assert max(grown.values()) < MOST_GROWTH, grown


@pytest.mark.thorough
@pytest.mark.slow
def test_everybody_waits_for_a_learner_that_stands_still_and_goes_on_with_it(tmp_path: Path) -> None:
    with training(tmp_path / "run", steps=STEPS) as run:
        run.await_t(600)
        learner = run.await_child("learner")
        os.kill(learner.pid, signal.SIGSTOP)
        stats = run.await_stats(lambda stats: "updates are owed" in (stats["waiting"] or ""))
        before = memory(run)
        run.eventually(lambda: "Nothing has moved for" in run.said)
        assert "The learner was last heard from" in run.said
        assert "The actors wait for the learner: " in run.said
        assert (
            run.stats()["t"] <= stats["t"] + 50
        )  # transitions of a chunk, and the rate limiter's tolerance is used up
        assert_bounded(run, before)
        os.kill(learner.pid, signal.SIGCONT)
        assert_finished(run, STEPS)
        assert run.child("learner") is None
        assert "learner was killed" not in run.said
    assert_counters_add_up(run.directory, STEPS)


@pytest.mark.thorough
@pytest.mark.slow
def test_in_free_running_nobody_waits_for_a_learner_that_stands_still(tmp_path: Path) -> None:
    with training(tmp_path / "run", "learner.steps_per_update=0", steps=1_000_000) as run:
        t = run.await_t(600)["t"]
        learner = run.await_child("learner")
        os.kill(learner.pid, signal.SIGSTOP)
        before = memory(run)
        run.eventually(lambda: "learner was silent for" in run.said)
        t = run.await_t(t + 5_000)["t"]
        assert "The learner was last heard from" in run.stats()["waiting"]
        assert_bounded(run, before)
        batches = run.stats()["rate"]["batches"]
        os.kill(learner.pid, signal.SIGCONT)
        run.await_stats(lambda stats: stats["rate"]["batches"] > batches + 100)
        assert run.end(signal.SIGINT) == 130
    restored(run.directory, last_checkpoint(run.directory))


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), pytest.param(signal.SIGTERM, 143, marks=pytest.mark.slow)]
)
def test_a_signal_saves_and_ends_everything(number: signal.Signals, code: int, tmp_path: Path) -> None:
    with training(tmp_path / "run", steps=1_000_000) as run:
        t = run.await_all()["t"]
        assert (run.end(number), run.complained) == (code, "")
        saved = last_checkpoint(run.directory)
        assert f"Stopped at t = {saved.t:,}. To go on: " in run.said
    assert saved.t >= t
    assert saved.parts["learner"].facts["updates"] > 0
    restored(run.directory, saved)


def test_a_signal_before_anybody_has_joined_ends_everything(tmp_path: Path) -> None:
    with training(tmp_path / "run") as run:
        run.await_child("actor-0")
        assert (run.end(signal.SIGINT), run.complained) == (130, "")
        assert "Stopped before there was anything to save" in run.said


@pytest.mark.thorough
@pytest.mark.slow
def test_a_signal_does_not_wait_for_a_learner_that_stands_still(tmp_path: Path) -> None:
    with training(tmp_path / "run", steps=1_000_000) as run:
        saved = await_checkpoint(run)
        t = run.await_t(saved + 1)["t"]
        os.kill(run.await_child("learner").pid, signal.SIGSTOP)
        assert (run.end(signal.SIGINT), run.complained) == (130, "")
    assert last_checkpoint(run.directory).t >= t
    assert last_checkpoint(run.directory).parts["learner"].facts["updates"] > 0


@pytest.mark.thorough
@pytest.mark.slow
def test_a_second_signal_ends_at_once_and_leaves_nothing_behind(tmp_path: Path) -> None:
    with training(tmp_path / "run", steps=1_000_000) as run:
        run.await_all()
        run.process.send_signal(signal.SIGINT)
        run.eventually(lambda: "Once more to end at once" in run.said)
        run.process.send_signal(signal.SIGINT)
        assert run.process.wait(END_SECONDS) == 130
        eventually(lambda: not run.processes(), END_SECONDS)


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_a_learner_that_always_dies_ends_the_run_with_its_last_words(tmp_path: Path) -> None:
    with training(tmp_path / "run", "learner.device=cuda") as run:
        assert run.wait() == 1
        assert run.said.count("learner ended with exit code 2") == 3
        assert run.said.count("learner.device = 'cuda'") == 1
        assert "The learner died 3 times in a row" in run.complained
        assert "Traceback" not in run.complained


@pytest.mark.thorough
@pytest.mark.slow
def test_a_run_whose_actors_all_die_too_often_ends_with_their_first_traceback(tmp_path: Path) -> None:
    with training(tmp_path / "run", "env.name=tasks:Fragile") as run:
        assert run.wait() == 1
        assert run.said.count("RuntimeError: the pole is broken") == 1
        assert "actor-0 died 5 times in a row and is given up" in run.said
        assert "Every actor died too often" in run.complained


def test_a_port_that_is_in_use_is_refused(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        place = f"127.0.0.1:{taken.getsockname()[1]}"
        with training(tmp_path / "run", bind=place) as run:
            assert run.wait() in (1, 2)
            assert f"{place} is in use: end the process that listens there, or choose another port" in run.complained
            assert "Traceback" not in run.complained


@pytest.mark.thorough
@pytest.mark.slow
def test_a_full_disk_does_not_end_a_run_of_many_processes(small_disk: Path, tmp_path: Path) -> None:
    path = tmp_path / "run"
    path.symlink_to(small_disk / "run")
    (small_disk / "run").mkdir()
    with training(path, steps=1_000_000) as run:
        run.eventually(lambda: last_saved(run.directory))
        fill(small_disk / "filler")
        run.eventually(lambda: "could not be written; the last one is kept" in run.said)
        t = run.stats()["t"]
        run.await_t(t + 500)
        (small_disk / "filler").unlink()
        run.eventually(lambda: last_saved(run.directory) > t)
        assert run.end(signal.SIGINT) == 130
    restored(run.directory, last_checkpoint(run.directory))
