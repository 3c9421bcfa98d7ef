"""The number of actors of a run is changed while it runs."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
from contextlib import closing
from pathlib import Path

import pytest

from dpsr_apex.config_files import load_config
from dpsr_apex.wire.messages import OWNER, SetActors, Stats
from tests.system.members import Visitor, serving
from tests.system.runs import COMMAND, Run, assert_counters_add_up, assert_finished, sent_in, training
from tests.system.test_cli import fill

STEPS = 2_000


def scale(run: Run, actors: int) -> None:
    """Run the command, after which the config and the replay have the new number."""
    command: list[str | Path] = [COMMAND, "scale", run.directory.path, "--actors", str(actors)]
    told = subprocess.run(command, capture_output=True, text=True)
    assert (told.returncode, told.stderr) == (0, "")
    assert planned(run.directory.config) == actors
    assert run.stats().planned_actors == actors


def planned(config: Path) -> int | None:
    return load_config(config).system.actors


def await_actors(run: Run, *names: str) -> None:
    """Wait until exactly these actors are members."""
    run.await_stats(lambda stats: sorted(actor.name for actor in stats.actors) == sorted(names))


@pytest.mark.slow
def test_actors_join_and_leave_as_planned_and_the_plan_survives_a_restart_of_the_replay(tmp_path: Path) -> None:
    with training(tmp_path / "run", "learner.steps_per_update=16", steps=STEPS) as run:
        run.await_all()
        run.hold()
        first, learner = run.pids("actor-0", "learner")
        scale(run, 3)
        await_actors(run, "actor-0", "actor-1", "actor-2")
        scale(run, 1)
        await_actors(run, "actor-0")
        for name in ("actor-1", "actor-2"):
            run.eventually(lambda: run.child(name) is None)  # noqa: B023 -- called before it changes
            assert [counted.unacknowledged for counted in sent_in(run.log(name))] == [0]
        scale(run, 2)
        victim = run.await_child("replay")
        os.kill(victim.pid, signal.SIGKILL)
        run.await_another(victim)
        await_actors(run, "actor-0", "actor-1")
        assert run.stats().planned_actors == 2
        assert run.pids("actor-0", "learner") == [first, learner], "only the replay was restarted"
        assert run.child("actor-2") is None
        run.release()
        assert_finished(run, STEPS)
    assert_counters_add_up(run.directory, STEPS)
    assert planned(run.directory.config) == 2


@pytest.mark.thorough
@pytest.mark.slow
def test_an_actor_that_does_not_leave_is_killed_before_its_name_is_reused(tmp_path: Path) -> None:
    with training(tmp_path / "run", "system.lease=60", steps=1_000_000, actors=2) as run:
        run.await_all()
        run.hold()
        stubborn = run.await_child("actor-1")
        os.kill(stubborn.pid, signal.SIGSTOP)
        scale(run, 1)
        scale(run, 2)  # while it is told to leave, or before the supervisor has seen the change
        scale(run, 1)
        run.eventually(lambda: run.child("actor-1") is None)  # a suspended process ends only if it is killed
        await_actors(run, "actor-0")
        scale(run, 2)
        run.await_another(stubborn)
        await_actors(run, "actor-0", "actor-1")
        assert run.stats().traffic.refused_joins == 0, "the name was free"
        assert run.end(signal.SIGINT) == 130


def test_a_full_disk_does_not_end_a_run_whose_number_of_actors_is_changed(small_disk: Path) -> None:
    with serving(small_disk / "run", "system.actors=2") as head, closing(Visitor(head.run, OWNER)) as visitor:
        fill(small_disk / "filler")
        visitor.send(SetActors(3))
        visitor.await_one(Stats)
        stats = visitor.stats()
        assert stats.planned_actors == 3
        (note,) = (note.text for note in stats.notes if str(head.run.config) in note.text)
        assert os.strerror(errno.ENOSPC) in note
        assert planned(head.run.config) == 2
        (small_disk / "filler").unlink()
        visitor.send(SetActors(3))
        visitor.await_one(Stats)
        assert planned(head.run.config) == 3
