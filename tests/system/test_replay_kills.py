"""The replay of a real run is killed at random moments: what continues is identical to what died, digest for digest."""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from dpsr_apex.config_files import load_config
from dpsr_apex.record.run_directory import RunDirectory, write_config
from tests.system import digests
from tests.system.members import Started, started, stats_of
from tests.system.runs import SMALL, eventually, last_checkpoint, restored, sent_in

LONGEST = 1.0  # seconds from the first new transition of a replay until it is killed
ENDLESS = ("run.total_steps=1000000", "evaluation.period=0")
CARTPOLE = (*SMALL, *ENDLESS, "env.name=CartPole-v1", "run.checkpoint_period=300")
BREAKOUT = (
    *("replay.capacity=200", "replay.replace_candidates=32", "replay.recycle_candidates=4", "replay.recycle_period=40"),
    *("learner.learning_starts=100", "learner.batch_size=8", "learner.steps_per_update=16", "learner.device=cpu"),
    *("run.log_period=100", "run.checkpoint_period=150", "run.learner_state_period=20", "system.rate_tolerance=50"),
    *("run.threads=1", *ENDLESS),
)


class Recovery(NamedTuple):
    """What a replay process began with, and what its predecessor had logged before that record was written."""

    number: int  # of the next record
    t: int
    digest: str
    expected: str


def recoveries(log: Path) -> list[Recovery]:
    """Return the recoveries in a file of digests, each beside the last digest logged for the same record."""
    written, found = {"0": ""}, []
    for line in log.read_text().splitlines():
        what, number, t, digest = line.split(" ")
        if what == digests.RECOVERED and number != "0":
            found.append(Recovery(int(number), int(t), digest, written[number]))
        written[number] = digest
    return found


class KilledRun:
    """A run whose replay is started and killed again and again, while its learner and its actor continue."""

    def __init__(self, place: Path, config: str, settings: tuple[str, ...]) -> None:
        shutil.copy(digests.__file__, place / "digests.py")
        self.run = RunDirectory.create(place / "run")
        write_config(load_config(config, base="paper", overrides=settings), self.run)
        self.log = place / digests.FILE
        self._place = place
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._bind = f"127.0.0.1:{free.getsockname()[1]}"

    @contextmanager
    def head(self) -> Iterator[Started]:
        """Start the replay, and wait until it has inserted transitions of its own."""
        before = self._begun
        command = ("replay", "--run-dir", self.run.path, "--bind", self._bind, "--callback", "digests:Digests")
        with started(self._place / "replay.log", *command, cwd=self._place) as head:

            def has_inserted() -> bool:
                assert head.runs, head.said
                return self._begun > before and self._clocks[-1] > self._clocks[0]

            eventually(has_inserted)
            yield head

    @contextmanager
    def members(self) -> Iterator[tuple[Started, Started]]:
        """Run a learner and an actor."""
        find = ("--find", self.run.path)
        with (
            started(self._place / "learner.log", "learner", *find) as learner,
            started(self._place / "actor.log", "actor", *find, "--name", "actor-0") as actor,
        ):
            yield learner, actor

    @property
    def _begun(self) -> int:
        return self.log.read_text().count(digests.RECOVERED) if self.log.exists() else 0

    @property
    def _clocks(self) -> list[int]:
        """The clocks at which the newest replay began, and at its records so far."""
        lines = self.log.read_text().rpartition(digests.RECOVERED)[2].splitlines()
        return [int(line.split(" ")[-2]) for line in lines]


def kill_repeatedly(place: Path, config: str, settings: tuple[str, ...], kills: int) -> list[Recovery]:
    """Kill the replay of a run this number of times, then end it; return all recoveries, after checking the end."""
    rng = np.random.default_rng(kills)
    killed = KilledRun(place, config, settings)
    with killed.members() as (learner, actor):
        for _ in range(kills):
            with killed.head() as head:
                t = stats_of(killed.run, 60.0).t
                with suppress(subprocess.TimeoutExpired):
                    head.process.wait(rng.uniform(0, LONGEST))
                assert head.end(signal.SIGKILL) == -signal.SIGKILL, head.said
        with killed.head() as head:
            eventually(lambda: {"actor-0", "learner"} <= stats_of(killed.run, 60.0).heard.keys())
            assert head.end(signal.SIGTERM) == 0
            assert (learner.wait(), actor.wait()) == (0, 0)
        assert restored(killed.run, last_checkpoint(killed.run)).t >= t, "what was visible is still there"
        traffic = last_checkpoint(killed.run).parts["replay"].facts["traffic"]
        (count,) = sent_in(actor.said)
        assert traffic["sent"] <= count.sent, "on a busy machine, the last report of an actor may come too late"
        assert traffic["sent"] == traffic["inserted"] + traffic["refused"] + traffic["lost"]
    return recoveries(killed.log)


def assert_identical(found: list[Recovery], kills: int) -> None:
    assert len(found) == kills
    assert [recovery.digest for recovery in found] == [recovery.expected for recovery in found]
    clocks = [recovery.t for recovery in found]
    assert clocks == sorted(clocks), "the clock never goes back"
    assert len(set(clocks)) > kills // 2, "the run makes progress"


@pytest.mark.slow
def test_a_replay_that_is_killed_continues_as_the_one_that_died(tmp_path: Path) -> None:
    assert_identical(kill_repeatedly(tmp_path, "cartpole", CARTPOLE, 3), 3)


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.parametrize(("config", "settings"), [("cartpole", CARTPOLE), ("atari/breakout", BREAKOUT)])
def test_a_replay_that_is_killed_fifty_times_continues_as_the_one_that_died(
    config: str, settings: tuple[str, ...], tmp_path: Path
) -> None:
    assert_identical(kill_repeatedly(tmp_path, config, settings, 50), 50)
