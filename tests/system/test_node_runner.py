"""Node runners without Ray: real processes of a small run, each run by a thread."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from dpsr_apex import timeouts
from dpsr_apex.processes.discovery import HeadRecord, MemoryRegistry
from dpsr_apex.protocol.restarts import Exit
from dpsr_apex.record.run_directory import RunDirectory
from dpsr_apex.supervise.managed import Task
from dpsr_apex.supervise.ray.node_check import Probe, inspect_node
from dpsr_apex.supervise.ray.node_runner import NodeRef, NodeRunner, Origin, UnusableNode
from tests.system.members import new_run
from tests.system.runs import assert_counters_add_up, eventually

STEPS = 200
NODE = NodeRef("node", "127.0.0.1")


@pytest.fixture
def origin(tmp_path: Path) -> Iterator[Origin]:
    run = new_run(tmp_path / "run", f"run.total_steps={STEPS}", "learner.steps_per_update=8")
    probe = Probe(run.path)
    probe.create()
    before = Path.cwd()
    yield Origin(run.path, probe.name, inspect_node(run.path, probe.name), tmp_path)
    os.chdir(before)


class Started:
    """A runner and its one process."""

    def __init__(
        self, pool: ThreadPoolExecutor, origin: Origin, registry: MemoryRegistry, role: str, *arguments: str
    ) -> None:
        self.runner = NodeRunner(NODE, origin, registry)
        self.log = origin.run / "logs" / f"{role}.log"
        task = Task(role, role, [role, *arguments], self.log)
        self.future: Future[Exit | UnusableNode] = pool.submit(self.runner.run, task)

    @property
    def exit(self) -> Exit:
        exit = self.future.result(60)
        assert isinstance(exit, Exit)
        return exit


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as pool:
        yield pool


@pytest.mark.slow
def test_processes_on_nodes_find_each_other_and_end_in_order(origin: Origin, pool: ThreadPoolExecutor) -> None:
    registry = MemoryRegistry()
    replay = Started(pool, origin, registry, "replay", "--run-dir", str(origin.run))
    others = [
        Started(pool, origin, registry, "learner"),
        Started(pool, origin, registry, "actor", "--name", "actor-0"),
        Started(pool, origin, registry, "evaluator", str(origin.run)),
    ]
    for started in (replay, *others):
        assert started.exit.code == 0, started.log.read_text()
    assert_counters_add_up(RunDirectory(origin.run), STEPS)


def test_a_process_that_is_killed_leaves_its_runner_alive(origin: Origin, pool: ThreadPoolExecutor) -> None:
    registry = MemoryRegistry()
    arguments = ("--run-dir", str(origin.run))
    first = Started(pool, origin, registry, "replay", *arguments)
    record = eventually(registry.look_up)
    first.runner.kill()
    assert first.exit.code == -signal.SIGKILL
    assert "SIGKILL" in first.exit.cause
    assert record.endpoint in first.exit.output

    again = pool.submit(first.runner.run, Task("replay", "replay", ["replay", *arguments], first.log))
    eventually(lambda: moved(registry, record))
    first.runner.signal(signal.SIGTERM)
    exit = again.result(60)
    assert isinstance(exit, Exit)
    assert exit.code == 0, "a process that gets SIGTERM saves and ends in order"


def moved(registry: MemoryRegistry, before: HeadRecord) -> bool:
    now = registry.look_up()
    return now is not None and now.incarnation != before.incarnation


def test_nothing_is_started_on_a_node_that_does_not_share_the_run(
    origin: Origin, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timeouts, "SHARED_FOLDER", 0.0)
    with suppress(OSError):
        (origin.run / f".shared-{origin.probe}").rmdir()
    started = Started(pool, origin, MemoryRegistry(), "replay", "--run-dir", str(origin.run))
    unusable = started.future.result(60)
    assert isinstance(unusable, UnusableNode)
    assert unusable.node == NODE
    assert str(origin.run) in unusable.reason
    assert not started.log.exists()
    started.runner.kill()
    started.runner.signal(signal.SIGTERM)
