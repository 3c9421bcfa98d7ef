"""Processes on several machines that share only a folder, in which the head of the run publishes its address."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from dpsr_apex.config_files import dump_config, load_config
from dpsr_apex.files import read_rows
from dpsr_apex.processes.discovery import FileRegistry
from dpsr_apex.record.run_directory import RunDirectory
from dpsr_apex.wire.addresses import host_of
from dpsr_apex.wire.messages import Stats
from tests.system.machines import Machine, machines, sockets_on
from tests.system.members import SETTINGS, Started, await_members, started, stats_of
from tests.system.runs import assert_counters_add_up, eventually, last_saved

STEPS = 3_000
SMALL = (
    *SETTINGS,
    *("env.name=gated:Gated", "learner.steps_per_update=8", "run.checkpoint_period=100", "system.lease=10"),
    *("system.recycle_deadline=10", "system.rate_tolerance=100", "system.chunk=20", f"run.total_steps={STEPS}"),
)


@pytest.fixture
def three() -> Iterator[list[Machine]]:
    with machines(3) as found:
        yield found


@pytest.mark.slow
def test_machines_that_share_a_folder_train_together_and_find_a_head_that_moves(
    three: list[Machine], tmp_path: Path
) -> None:
    first, second, third = three
    run, config = RunDirectory(tmp_path / "run"), tmp_path / "small.toml"
    config.write_text(dump_config(load_config("cartpole", base="paper", overrides=SMALL)))
    shutil.copy(Path(__file__).with_name("gated.py"), tmp_path)
    with ExitStack() as stack:

        def start(machine: Machine, name: str, *words: str | Path) -> Started:
            return stack.enter_context(started(tmp_path / name, *words, before=machine.before, cwd=tmp_path))

        def serve(machine: Machine) -> Started:
            where = ("--run-dir", run.path, "--bind", f"{machine.address}:0", "--resume")
            replay = start(machine, f"replay-{machine.name}", "replay", config, *where)
            eventually(lambda: published_host(run) == machine.address)
            return replay

        def joined(head: Machine, joins: int) -> Stats:
            """Wait until all members have joined the head on this machine; return its statistics."""

            def stats() -> Stats:
                with sockets_on(head):
                    return stats_of(run)

            return await_members(stats, "early", "other", joins=joins)

        early = start(third, "early", "actor", "--find", run.path, "--name", "early")
        early.await_words(str(run.path))  # it reports that it waits for a head there
        replay = serve(first)
        members = [
            early,
            start(second, "learner", "learner", "--find", run.path),
            start(second, "other", "actor", "--find", run.path, "--name", "other"),
            start(first, "evaluator", "evaluator", run.path),
        ]
        before = joined(first, joins=4)
        assert {actor.name: actor.host for actor in before.actors} == {"early": third.address, "other": second.address}
        saved = last_saved(run)
        eventually(lambda: last_saved(run) > saved)  # with the counter of joins, which continues

        replay.end(signal.SIGKILL)
        replay = serve(second)
        after = joined(second, joins=8)
        assert after.era != before.era
        assert {actor.name: actor.host for actor in after.actors} == {"early": third.address, "other": ""}
        (tmp_path / "go").touch()
        for command in (replay, *members):
            assert command.wait() == 0, command.said
            assert "Traceback" not in command.said
    assert_counters_add_up(run, STEPS)
    assert read_rows(run.evaluations)[-1]["t"] == STEPS
    assert not run.connection.exists()


def published_host(run: RunDirectory) -> str | None:
    record = FileRegistry(run.connection).look_up()
    return host_of(record.endpoint) if record else None


def test_an_evaluator_waits_for_a_head_that_has_not_created_the_folder_yet(tmp_path: Path) -> None:
    with started(tmp_path / "log", "evaluator", tmp_path / "run") as evaluator:
        evaluator.await_words(str(tmp_path / "run"))
        assert evaluator.runs
