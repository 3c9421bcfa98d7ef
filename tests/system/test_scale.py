"""The number of actors of a run is changed while it goes on."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from contextlib import closing
from pathlib import Path

import pytest

from dpsr_apex.config_files import load_config
from dpsr_apex.wire.messages import SetActors, Stats
from tests.system.members import Visitor, serving
from tests.system.runs import COMMAND, Run, assert_counters_add_up, assert_finished, training
from tests.system.test_cli import fill

STEPS = 2_000


def scale(run: Run, actors: int) -> str:
    """By the command; what it printed. What it promises is kept from then on."""
    command: list[str | Path] = [COMMAND, "scale", run.directory.path, "--actors", str(actors)]
    told = subprocess.run(command, capture_output=True, text=True)
    assert (told.returncode, told.stderr) == (0, "")
    assert planned(run.directory.config) == actors
    return told.stdout


def planned(config: Path) -> int | None:
    return load_config(config).system.actors


def await_actors(run: Run, *names: str) -> None:
    """Until these are in the run and no other is."""
    run.await_stats(lambda stats: sorted(actor["name"] for actor in stats["actors"]) == sorted(names))


@pytest.mark.slow
def test_actors_come_and_go_as_planned_and_the_plan_outlives_the_replay(tmp_path: Path) -> None:
    with training(tmp_path / "run", "learner.steps_per_update=16", steps=STEPS) as run:
        run.await_all()
        run.hold()
        assert re.fullmatch(r"From t = [\d,]+ on: 3 actors planned, 1 is in the run\n", scale(run, 3))
        await_actors(run, "actor-0", "actor-1", "actor-2")
        assert re.fullmatch(r"From t = [\d,]+ on: 1 actor planned, 3 are in the run\n", scale(run, 1))
        await_actors(run, "actor-0")
        for name in ("actor-1", "actor-2"):
            assert re.search(r" sent, 0 of them not acknowledged\n.* leaving: asked to\n", run.log(name))
        scale(run, 2)
        victim = run.await_child("replay")
        os.kill(victim.pid, signal.SIGKILL)
        run.await_another(victim)
        await_actors(run, "actor-0", "actor-1")
        assert run.stats()["planned_actors"] == 2
        run.release()
        assert_finished(run, STEPS)
        assert (run.said.count("has died"), run.said.count("was killed")) == (0, 1)
        assert "3 actors are planned from t = " in run.said
    assert_counters_add_up(run.directory, STEPS)
    assert planned(run.directory.config) == 2
    assert [run.log(f"actor-{index}").count("acting in ") for index in range(3)] == [1, 2, 1], "one line in each life"


@pytest.mark.thorough
@pytest.mark.slow
def test_an_actor_that_does_not_leave_is_killed_before_its_name_is_given_again(tmp_path: Path) -> None:
    with training(tmp_path / "run", "system.lease=60", steps=1_000_000, actors=2) as run:
        run.await_all()
        run.hold()
        stubborn = run.await_child("actor-1")
        os.kill(stubborn.pid, signal.SIGSTOP)
        scale(run, 1)
        scale(run, 2)  # while it is told to leave, or before that was noticed
        scale(run, 1)
        run.eventually(lambda: run.child("actor-1") is None)
        await_actors(run, "actor-0")
        scale(run, 2)
        run.await_another(stubborn)
        await_actors(run, "actor-0", "actor-1")
        assert "actor-1 has died" in run.said
        assert "was killed" not in run.said
        assert run.end(signal.SIGINT) == 130
    assert "actor-1 did not leave and is killed" in run.log("supervisor")
    assert "the name actor-1 is taken" not in run.log("actor-1")


def test_a_full_disk_does_not_end_a_run_whose_number_of_actors_is_changed(small_disk: Path) -> None:
    with serving(small_disk / "run", "system.actors=2") as head, closing(Visitor(head.address)) as visitor:
        fill(small_disk / "filler")
        visitor.send(SetActors(3))
        visitor.await_one(Stats)
        stats = visitor.stats()
        assert stats["planned_actors"] == 3
        assert "config.toml could not be written ([Errno 28] No space left on device); the new" in stats["notes"][-1][1]
        assert planned(head.run.config) == 2
        (small_disk / "filler").unlink()
        visitor.send(SetActors(3))
        visitor.await_one(Stats)
        assert planned(head.run.config) == 3
