"""Runs on a Ray cluster of several nodes, all on this machine: placed, killed, moved, scaled, and refused."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from dpsr_apex.config_files import load_config
from dpsr_apex.processes.link import ask
from dpsr_apex.processes.onlooker import address_of
from dpsr_apex.run.metrics import read_metrics
from dpsr_apex.run.run_directory import RunDirectory
from dpsr_apex.wire.messages import Stats, StatsRequest
from tests.system.members import Started
from tests.system.ray_nodes import Nodes, cluster
from tests.system.runs import COMMAND, SMALL, assert_counters_add_up, eventually

pytest.importorskip("ray", reason="Ray is not installed: pip install 'dpsr_apex[cluster]'")

STEPS = 4_000
NODE = "DPSR_APEX_TEST_NODE"  # tells of a process on which node it runs


class Placed(NamedTuple):
    """A process of a run on some node."""

    pid: int
    node: str


class ClusterRun(Started):
    """`dpsr-apex train --cluster`, in a folder with a task that can be held."""

    def __init__(self, folder: Path, nodes: Nodes, *words: str) -> None:
        self.directory = RunDirectory(folder / "run")
        self.environment = nodes.environment
        self._hold = folder / "hold"
        self._hold.touch()
        shutil.copy(Path(__file__).with_name("fault_tasks.py"), folder / "tasks.py")
        settings = [f"--set={setting}" for setting in (*SMALL, "system.lease=10", "run.checkpoint_period=1000")]
        command = [COMMAND, "train", "cartpole", *words, "--run-dir", self.directory.path, *settings]
        super().__init__(folder / "said", command, folder, nodes.environment)

    def release(self) -> None:
        """Go on at full speed."""
        self._hold.unlink()

    def processes(self, *words: str) -> list[Placed]:
        """Those with these words in their command lines, wherever they run."""
        found = []
        for path in Path("/proc").iterdir():
            with suppress(OSError, ValueError):
                line = (path / "cmdline").read_text().split("\0")
                if "--lifeline" in line and str(self.directory.path) in "".join(line) and {*words} <= {*line}:
                    environment = dict(
                        variable.split("=", 1) for variable in (path / "environ").read_text().split("\0") if variable
                    )
                    found.append(Placed(int(path.name), environment.get(NODE, "")))
        return found

    def actors(self) -> dict[str, dict[str, Any]]:
        """What the replay says of the actors that are in the run, by name."""
        answer = ask(address_of(self.directory), StatsRequest(), 2.0)
        assert isinstance(answer, Stats)
        return {actor["name"]: actor for actor in json.loads(answer.facts)["actors"]}

    def await_actors(self, count: int) -> dict[str, dict[str, Any]]:
        """The same, when there are so many and each of them has sent something."""

        def all_there() -> dict[str, dict[str, Any]] | None:
            assert self.runs, self.said
            actors = self.actors()
            return actors if len(actors) == count and all(actor["sent"] for actor in actors.values()) else None

        return eventually(all_there)


@contextmanager
def training_on(folder: Path, nodes: Nodes, *words: str) -> Iterator[ClusterRun]:
    run = ClusterRun(folder, nodes, *words)
    try:
        yield run
    finally:
        run.kill()


@pytest.mark.slow
def test_a_run_on_a_cluster_survives_what_happens_to_nodes_and_processes(tmp_path: Path) -> None:
    with cluster(tmp_path) as nodes:
        nodes.add(3, **{NODE: "head"})
        nodes.add(2, **{NODE: "first"})
        address = nodes.add(2, **{NODE: "second"})
        with training_on(tmp_path, nodes, "--cluster", address, "--actors", "4", "--steps", str(STEPS)) as run:
            before = run.await_actors(4)
            assert [process.node for process in run.processes("replay")] == ["head"]
            assert sorted(process.node for process in run.processes("actor")) == ["first"] * 2 + ["second"] * 2

            (victim,) = run.processes("--name", "actor-1")
            os.kill(victim.pid, signal.SIGKILL)
            run.await_words("actor-1 was killed by SIGKILL")
            eventually(
                lambda: [process.pid for process in run.processes("--name", "actor-1")] not in ([], [victim.pid])
            )
            assert {name: actor["index"] for name, actor in run.await_actors(4).items()} == {
                name: actor["index"] for name, actor in before.items()
            }

            nodes.remove(1)
            run.await_words("Node .* has left the cluster")
            run.await_words(r"Waiting for room: actor-\d and 1 more. The cluster has 5 CPUs \(0 free\)")
            run.await_actors(2)
            nodes.add(4, **{NODE: "third"})
            run.await_words("Node .* has joined the cluster")
            assert run.await_actors(4).keys() == before.keys()

            scaled = Started(
                tmp_path / "scale", [COMMAND, "scale", run.directory.path, "--actors", "6"], None, nodes.environment
            )
            assert scaled.wait() == 0, scaled.said
            run.await_actors(6)
            assert sorted(process.node for process in run.processes("actor")) == ["second"] * 2 + ["third"] * 4

            run.release()
            assert run.wait() == 0, run.said
            assert run.processes() == []
    assert_finished(run, STEPS)


def assert_finished(run: ClusterRun, steps: int) -> None:
    """It has come to its end, and what was acknowledged to an actor is in the replay's books."""
    directory = run.directory
    assert read_metrics(directory.evaluations)[-1]["t"] == steps
    traffic = assert_counters_add_up(directory, steps)
    logs = [path.read_text() for path in directory.logs.glob("actor-*.log")]
    settled = [
        int(sent) - int(unsettled)
        for log in logs
        for sent, unsettled in re.findall(r"(\d+) transitions sent, (\d+) of them not acknowledged", log)
    ]
    assert len(settled) >= load_config(directory.config).system.actors
    assert sum(settled) <= traffic["received"]
    assert not directory.connection.exists()
    assert not list(directory.path.glob(".shared-*"))
