"""Multi-process runs from start to end: every transition is accounted for, and a run can be stopped and resumed."""

from __future__ import annotations

import logging
import re
import shutil
import signal
import subprocess
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from dpsr_apex.config_files import load_config
from dpsr_apex.files import read_rows
from dpsr_apex.record.checkpoint import Checkpoint
from dpsr_apex.record.metric_table import metric_names
from dpsr_apex.record.metrics import fingerprint
from dpsr_apex.record.provenance import read_provenance
from dpsr_apex.record.run_directory import RunDirectory
from dpsr_apex.replay.records import Counters
from dpsr_apex.state import State
from dpsr_apex.wire.messages import Stats
from dpsr_apex.wire.statistics import LearnerPaused
from tests.system.runs import (
    COMMAND,
    Run,
    assert_counters_add_up,
    assert_finished,
    last_checkpoint,
    restored,
    running,
    sent_by_actors,
    training,
)

STEPS = 2_000
BETA_1, BETA_2 = 0.9, 0.999
# An upper bound of a step of Adam, in learning rates: Cauchy-Schwarz on |m| / sqrt(v), over all histories of gradients.
MOST_OF_ADAM = (1 - BETA_1) / ((1 - BETA_2) * (1 - BETA_1**2 / BETA_2)) ** 0.5

log = logging.getLogger(__name__)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A small finished run; tests must not change it."""
    with training(tmp_path_factory.mktemp("finished") / "run", steps=STEPS, actors=2) as run:
        assert_finished(run, STEPS)
    return run


def test_everything_that_an_actor_sent_is_accounted_for(finished: Run) -> None:
    traffic = assert_counters_add_up(finished.directory, STEPS)
    assert sent_by_actors(finished) == traffic["sent"] == traffic["received"]
    assert last_checkpoint(finished.directory).parts["replay"].facts["replay"]["counters"]["recycled"] > 0


def test_the_last_row_has_the_final_counters(finished: Run) -> None:
    row = read_rows(finished.directory.metrics)[-1]
    assert row.keys() == metric_names()
    facts = last_checkpoint(finished.directory).parts["replay"].facts
    counters = facts["replay"]["counters"]
    assert {name: row[name] for name in Counters.__dataclass_fields__} == counters
    assert {name: row[f"traffic_{name}"] for name in facts["traffic"]} == facts["traffic"]
    assert row["updates"] == facts["rate"]["batches"]
    assert f"t {STEPS:,}/{STEPS:,}" in finished.said


def test_a_row_has_an_evaluation_only_if_one_was_made_and_the_last_row_has_the_last(finished: Run) -> None:
    made = {row["t"]: row["mean"] for row in read_rows(finished.directory.evaluations)}
    rows = read_rows(finished.directory.metrics)
    logged = [(row["evaluation_t"], row["evaluation_mean"]) for row in rows if row["evaluation_t"] is not None]
    assert logged[-1] == (STEPS, made[STEPS]) == (rows[-1]["t"], rows[-1]["evaluation_mean"])
    assert len(dict(logged)) == len(logged)
    assert dict(logged).items() <= made.items()


def test_chains_of_several_actors_add_up_to_the_environment_steps_of_the_run(tmp_path: Path) -> None:
    deep = ("replay.recycle_steps=4", "replay.recycle_share=0.2", "replay.recycle_choice=novel", "actor.n_steps=2")
    with training(tmp_path / "run", *deep, steps=1_200, actors=2) as run:
        run.wait()
        row = assert_finished(run, 1_200)
    assert_counters_add_up(run.directory, 1_200)
    unstored = row["chain_steps_dropped"] + row["chain_steps_late"]
    assert row["environment_steps"] == 1_200 + row["chains"] + unstored
    assert row["chains"] + row["chain_steps_stored"] + row["chain_steps_dropped"] == row["chain_steps"]
    assert row["chain_steps_stored"] > 0
    assert row["chain_steps"] + 4 * row["candidates_lost"] <= 0.2 * (row["environment_steps"] - 500)


def test_the_rate_of_updates_is_kept(finished: Run) -> None:
    assert read_rows(finished.directory.metrics)[-1]["steps_per_update"] == pytest.approx(4, rel=0.05)


@pytest.mark.thorough
@pytest.mark.slow
def test_the_rate_of_updates_is_kept_by_a_learner_that_is_slower_than_its_actors(tmp_path: Path) -> None:
    with training(tmp_path / "run", "learner.steps_per_update=1", steps=STEPS) as run:
        row = assert_finished(run, STEPS)
    assert row["steps_per_update"] == pytest.approx(1, rel=0.05)


def test_the_rate_of_a_running_run_can_be_changed(tmp_path: Path) -> None:
    with training(tmp_path / "run", steps=1_000_000) as run:
        run.await_all()
        before = set_rate(run, 16)
        after = run.await_t(before.t + 3_200)
        updates = after.rate.batches - before.rate.batches
        assert (after.t - before.t) / updates == pytest.approx(16, rel=0.1)  # chunks, and updates that were due before
        run.hold()
        run.await_stats(lambda stats: any(isinstance(wait, LearnerPaused) for wait in stats.waiting))
        set_rate(run, 0)
        run.await_stats(lambda stats: not any(isinstance(wait, LearnerPaused) for wait in stats.waiting))
        assert run.end(signal.SIGINT) == 130


def set_rate(run: Run, steps_per_update: int) -> Stats:
    """Set the rate with the command; return the stats after it."""
    command: list[str | Path] = [COMMAND, "rate", run.directory.path, "--steps-per-update", str(steps_per_update)]
    told = subprocess.run(command, capture_output=True, text=True)
    assert (told.returncode, told.stderr) == (0, "")
    stats = run.stats()
    assert stats.rate.steps_per_update == steps_per_update
    return stats


def test_a_run_continues_with_another_number_of_actors(finished: Run, tmp_path: Path) -> None:
    path = Path(shutil.copytree(finished.directory.path, tmp_path / "run"))
    rows = read_rows(path / "metrics.jsonl")
    saved = last_checkpoint(finished.directory)
    facts = saved.parts["replay"].facts
    with running(path, "resume", path, "--steps", "3000", "--actors", "1") as run:
        run.hold()
        served = run.eventually(run.stats)
        assert served.t == STEPS
        assert asdict(served.replay) == facts["replay"]["counters"]
        assert (served.traffic.counts(), served.queued) == (facts["traffic"], 0)
        assert served.rate.batches == facts["rate"]["batches"]
        later = run.await_stats(lambda stats: stats.t > STEPS and stats.rate.batches > served.rate.batches)
        assert [(actor.name, actor.place) for actor in later.actors] == [("actor-0", 0)]
        assert later.planned_actors == 1
        assert run.end(signal.SIGINT) == 130
    assert_continues(run.directory, saved, last_checkpoint(run.directory))
    first, second = read_provenance(run.directory)  # one row each, although every run has several processes
    assert (first.t, first.outcome, first.ended_t) == (0, "finished", STEPS)
    assert (second.t, second.outcome, second.ended_t) == (STEPS, "stopped", last_checkpoint(run.directory).t)
    assert second.command == f"dpsr-apex resume {path} --steps 3000 --actors 1"
    assert read_rows(path / "metrics.jsonl")[: len(rows)] == rows


def assert_continues(directory: RunDirectory, saved: Checkpoint, later: Checkpoint) -> None:
    """Assert that the differences are explained by the few steps in between."""
    before, after = restored(directory, saved), restored(directory, later)
    happened = {name: value - asdict(before.counters)[name] for name, value in asdict(after.counters).items()}
    assert min(happened.values()) >= 0
    assert 0 < later.t - saved.t < before.size / 2
    stays = np.flatnonzero(before.identities == after.identities)
    assert before.size - stays.size <= happened["replaced"] < before.size
    assert np.delete(after.identities, stays).min() > before.identities.max()
    assert np.array_equal(before.births[stays], after.births[stays])
    assert np.count_nonzero(before.priorities[stays] != after.priorities[stays]) <= happened["priorities_updated"]
    assert np.array_equal(before.read(before.identities[stays]).r_t, after.read(before.identities[stays]).r_t)
    assert before.read(before.identities[stays]).s_tm1 == after.read(before.identities[stays]).s_tm1
    learners = [checkpoint.parts["learner"] for checkpoint in (saved, later)]
    updates = learners[1].facts["updates"] - learners[0].facts["updates"]
    moved = max(float(np.abs(array - learners[1].arrays[name]).max()) for name, array in weights(learners[0]).items())
    step = MOST_OF_ADAM * load_config(directory.config).learner.learning_rate.start
    assert 0 < moved < updates * step, "fresh weights differ more"
    totals = [checkpoint.parts["recorder"].facts["totals"] for checkpoint in (saved, later)]
    assert totals[0]["episodes"] <= totals[1]["episodes"]
    assert totals[0]["elapsed_seconds"] <= totals[1]["elapsed_seconds"]


def weights(learner: State) -> dict[str, NDArray[Any]]:
    return {name: array for name, array in learner.arrays.items() if name.startswith("online")}


def test_saving_pauses_the_service_for_less_than_a_second(finished: Run) -> None:
    """The pause is measured in the replay process, which records it in its log only."""
    seconds = [float(text) for text in re.findall(r"saving at t = \d+\D+([\d.]+) s", finished.log("replay"))]
    log.info("the service was paused for at most %.3f s", max(seconds))  # pytest --log-cli-level=info shows it
    assert max(seconds) < 1


@pytest.mark.slow
def test_resuming_a_finished_run_adds_its_last_evaluation_if_it_is_missing(finished: Run, tmp_path: Path) -> None:
    path = Path(shutil.copytree(finished.directory.path, tmp_path / "run"))
    (path / "evaluations.jsonl").unlink()
    for _ in range(2):
        with running(path, "resume", path) as run:
            assert_finished(run, STEPS)
        assert [row["t"] for row in read_rows(path / "evaluations.jsonl")] == [STEPS]
    assert fingerprint(path / "evaluations.jsonl") == fingerprint(finished.directory.evaluations)
    assert fingerprint(path / "metrics.jsonl") == fingerprint(finished.directory.metrics)


def test_the_evaluator_plays_randomly_once(tmp_path: Path) -> None:
    with training(tmp_path / "run", "evaluation.random_episodes=3") as run:
        assert_finished(run, 2_000)
    (random_play,) = read_rows(run.directory.random_play)
    assert random_play["games"] == 3


@pytest.mark.slow
def test_breakout_is_recycled_by_its_actors(tmp_path: Path) -> None:
    settings = (
        *("env.name=Breakout", "learner.steps_per_update=16", "learner.batch_size=8", "replay.recycle_period=100"),
        *("evaluation.episodes=1", "evaluation.max_steps=30", "run.checkpoint_period=1000"),
    )
    with training(tmp_path / "run", *settings, steps=2_000, actors=2, config="atari/breakout") as run:
        row = assert_finished(run, 2_000)
        traffic = assert_counters_add_up(run.directory, 2_000)
        assert sent_by_actors(run) == traffic["sent"] == traffic["received"]
    assert row["rounds_closed"] > 0
    assert row["candidates_applied"] > 0
    assert row["recycled"] > 0
    assert row["traffic_candidates_failed"] == 0


@pytest.mark.thorough
@pytest.mark.slow
def test_cartpole_is_learned(tmp_path: Path) -> None:
    """A run may end in a bad moment, so only two bad runs in a row are a failure."""
    steps = load_config("cartpole").run.total_steps
    final = []
    for seed in range(2):
        path = tmp_path / f"run-{seed}"
        with running(path, "train", "cartpole", "--actors", "2", "--seed", str(seed), "--run-dir", path) as run:
            assert run.process.wait(3_600) == 0
            assert_finished(run, steps)
            assert sent_by_actors(run) == assert_counters_add_up(run.directory, steps)["sent"]
        final.append(read_rows(run.directory.evaluations)[-1]["mean"])
        if final[-1] >= 195:
            return
    pytest.fail(f"no run learned it; their final evaluations: {final}")
