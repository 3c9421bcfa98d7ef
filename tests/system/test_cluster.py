"""Runs on a Ray cluster of several nodes, all on this machine: placed, killed, moved, scaled, and refused."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
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
from tests.system.ray_nodes import NODE, Nodes, cluster
from tests.system.runs import COMMAND, PATIENCE, SMALL, assert_counters_add_up, eventually, last_checkpoint, last_saved

pytest.importorskip("ray", reason="Ray is not installed: pip install 'dpsr_apex[cluster]'")

STEPS = 4_000
HEARD_LATE = 50  # transitions that an actor sends at most between two heartbeats, when it is held
FEW = 600  # steps, of runs in which it is not the steps that matter
ROOT = Path(__file__).parents[2]


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
        command: list[str | Path] = [COMMAND, "train", "cartpole", *words, "--run-dir", self.directory.path, *settings]
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

    def scale(self, actors: int) -> None:
        """Have another number of actors."""
        words: list[str | Path] = [COMMAND, "scale", self.directory.path, "--actors", str(actors)]
        subprocess.run(words, env=self.environment, check=True, capture_output=True, timeout=PATIENCE)

    def pids(self, *words: str) -> list[int]:
        return [process.pid for process in self.processes(*words)]

    def nodes_of(self, role: str) -> set[str]:
        """The nodes that processes of this role are on."""
        return {process.node for process in self.processes(role)}

    def stats(self) -> dict[str, Any]:
        """How things are, from the replay itself."""
        answer = ask(address_of(self.directory), StatsRequest(), 2.0)
        assert isinstance(answer, Stats)
        facts: dict[str, Any] = json.loads(answer.facts)
        return facts

    def actors(self) -> dict[str, dict[str, Any]]:
        """What it says of the actors that are in the run, by name."""
        return {actor["name"]: actor for actor in self.stats()["actors"]}

    def await_actors(self, count: int) -> dict[str, dict[str, Any]]:
        """The same, when there are so many and each of them has sent something."""

        def all_there() -> dict[str, dict[str, Any]] | None:
            assert self.runs, self.said
            actors = self.actors()
            return actors if len(actors) == count and all(actor["sent"] for actor in actors.values()) else None

        return eventually(all_there)


def indices(actors: dict[str, dict[str, Any]]) -> dict[str, int]:
    """Their places on the ladder of exploration."""
    return {name: actor["index"] for name, actor in actors.items()}


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
        nodes.add(3, "head")
        nodes.add(2, "first")
        address = nodes.add(2, "second", gpus=1)
        with training_on(tmp_path, nodes, "--cluster", address, "--actors", "4", "--steps", str(STEPS)) as run:
            before = run.await_actors(4)
            assert run.nodes_of("replay") == {"head"}
            assert run.nodes_of("learner") == {"second"}, "where the GPU is"
            assert run.nodes_of("actor") >= {"first", "second"}

            (victim,) = run.processes("--name", "actor-1")
            os.kill(victim.pid, signal.SIGKILL)
            run.await_words("actor-1 was killed by SIGKILL")
            eventually(lambda: run.pids("--name", "actor-1") not in ([], [victim.pid]))
            assert indices(run.await_actors(4)) == indices(before)

            nodes.remove(1)
            run.await_words("Node .* has left the cluster")
            run.await_words(r"Waiting for room: .* and 1 more. The cluster has 5 CPUs \(0 free\)")
            assert "first" not in run.nodes_of("actor")
            nodes.add(4, "third")
            run.await_words("Node .* has joined the cluster")
            assert indices(run.await_actors(4)) == indices(before)
            assert "third" in run.nodes_of("actor")

            for actors in (6, 5):
                run.scale(actors)
                run.await_actors(actors)
                eventually(lambda: len(run.processes("actor")) == actors)  # noqa: B023 -- asked before it changes

            run.release()
            assert run.wait() == 0, run.said
            assert run.processes() == []
    assert_finished(run, STEPS)


def assert_finished(run: ClusterRun, steps: int) -> None:
    """It has come to its end, and what was acknowledged to an actor, in each of its lives, is in the replay's books."""
    directory = run.directory
    assert read_metrics(directory.evaluations)[-1]["t"] == steps
    assert not directory.connection.exists()
    assert not list(directory.path.glob(".shared-*"))

    traffic = assert_counters_add_up(directory, steps)
    streams = last_checkpoint(directory).parts["replay"].facts["streams"]
    known = Counter((name, sent) for name, _, _, sent in streams)
    left = Counter[tuple[str, int]]()  # lives that ended in order, by what they say that they sent
    acknowledged = 0
    for log in directory.logs.glob("actor-*.log"):
        for sent, unsettled in re.findall(r"(\d+) transitions sent, (\d+) of them not acknowledged", log.read_text()):
            left[log.stem, int(sent)] += 1
            acknowledged += int(sent) - int(unsettled)
    assert left <= known, "the replay knows of all that was sent"
    died = list((known - left).elements())
    assert died, "one was killed"
    config = load_config(directory.config).system
    on_their_way = config.window * config.chunk + HEARD_LATE
    acknowledged += sum(max(sent - on_their_way, 0) for _, sent in died)
    assert acknowledged <= traffic["received"] <= sum(sent for _, sent in known.elements()) + len(died) * on_their_way


def refusal(folder: Path, environment: Mapping[str, str], *words: str) -> str:
    """The one line that `dpsr-apex train` ends with when it is refused; nothing of a run is left behind."""
    run = folder / "refused"
    command: list[str | Path] = [COMMAND, "train", "cartpole", "--steps", "2000", "--run-dir", run, *words]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE, cwd=folder)
    assert (ended.returncode, ended.stdout) == (2, ""), ended.stderr
    assert RunDirectory.is_free(run)
    assert ended.stderr.count("\n") == 1
    return ended.stderr.strip().removeprefix("dpsr-apex: ")


def own_environment(home: Path, **variables: str) -> dict[str, str]:
    """That of a user who has nothing to do with a cluster yet."""
    return {name: value for name, value in os.environ.items() if not name.startswith("RAY_")} | {
        "HOME": str(home),
        **variables,
    }


def test_where_there_is_no_cluster_that_is_said_in_one_line(tmp_path: Path) -> None:
    environment = own_environment(tmp_path, RAY_AUTH_TOKEN="0" * 64)
    for address in ("127.0.0.1:1", "localhost:1"):
        said = refusal(tmp_path, environment, "--cluster", address)
        assert said.startswith(f"There is no Ray cluster at {address} that lets this machine in")
    said = refusal(tmp_path, environment, "--cluster", "nowhere")
    assert said == "--cluster nowhere: write auto, or HOST:PORT of its head, such as 10.0.0.1:6379"
    said = refusal(tmp_path, environment | {"RAY_TMPDIR": str(tmp_path)}, "--cluster", "auto")
    assert said.startswith("There is no Ray cluster on this machine that lets this machine in")


def test_what_makes_no_sense_with_a_cluster_is_refused(tmp_path: Path) -> None:
    environment = own_environment(tmp_path)
    assert "leave it out" in refusal(tmp_path, environment, "--cluster", "auto", "--solo")
    assert "leave it out" in refusal(tmp_path, environment, "--cluster", "auto", "--bind", "0.0.0.0:5555")
    said = refusal(tmp_path, environment, "--learner-gpus", "1")
    assert said == "--learner-gpus is about a cluster: name it with --cluster ADDRESS"


@pytest.mark.slow
def test_a_cluster_that_anybody_can_use_is_refused_unless_that_is_wanted(tmp_path: Path) -> None:
    with cluster(tmp_path, token=False) as nodes:
        address = nodes.add(4)
        environment = own_environment(tmp_path, RAY_AUTH_TOKEN="0" * 64)
        said = refusal(tmp_path, environment, "--cluster", address)
        assert said.startswith("Whoever reaches this Ray cluster can run anything on it, since it asks for no token")
        with training_on(tmp_path, nodes, "--cluster", address, "--actors", "1", "--steps", str(FEW)) as run:
            run.release()
            assert run.wait() == 0, run.said


def other_emulator(folder: Path) -> str:
    """A place for PYTHONPATH in which another version of ale-py seems to be installed."""
    facts = folder / "ale_py-0.0.1.dist-info" / "METADATA"
    facts.parent.mkdir(parents=True)
    facts.write_text("Metadata-Version: 2.1\nName: ale-py\nVersion: 0.0.1\n")
    return str(folder)


def other_version(folder: Path) -> str:
    """The same of dpsr_apex itself, all of it."""
    shutil.copytree(ROOT / "dpsr_apex", folder / "dpsr_apex", ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "dpsr_apex" / "__init__.py").write_text('"""Another one."""\n\n__version__ = "0.0.1"\n')
    return str(folder)


@contextmanager
def hidden_node(nodes: Nodes, address: str, folder: Path) -> Iterator[None]:
    """A node that has a folder of its own where others have this one."""
    if subprocess.run(["unshare", "--mount", "true"], capture_output=True).returncode != 0:
        pytest.skip("a machine with folders of its own is made with `unshare --mount`, which is not allowed here")
    folder.mkdir()
    ray = Path(sys.executable).with_name("ray")
    start = (
        f"{ray} start --address={address} --num-cpus=4 --dashboard-agent-listen-port=0 --disable-usage-stats --block"
    )
    node = subprocess.Popen(
        ["unshare", "--mount", "sh", "-c", f"mount -t tmpfs none {folder} && exec {start}"],
        env=nodes.environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield
    finally:
        node.terminate()
        node.wait(PATIENCE)


@pytest.mark.slow
def test_nodes_that_cannot_take_part_are_left_out_with_a_reason(tmp_path: Path) -> None:
    with cluster(tmp_path) as nodes:
        nodes.add(4, "head")
        nodes.add(4, "emulator", path=other_emulator(tmp_path / "emulator"))
        address = nodes.add(4, "version", path=other_version(tmp_path / "version"))
        with (
            hidden_node(nodes, address, tmp_path / "run"),
            training_on(tmp_path, nodes, "--cluster", address, "--actors", "2", "--steps", str(FEW)) as run,
        ):
            run.await_words("is not used: it has ale-py 0.0.1 and this run has .*: install the same version")
            run.await_words("is not used: it has dpsr_apex 0.0.1 .* and this run has .*: install the same version")
            run.await_words(
                f"is not used: it does not see {tmp_path}/run: put the run directory where all nodes see it"
            )
            run.await_words(r"Waiting for room: .* The cluster has 4 CPUs \(0 free\)")
            assert run.nodes_of("actor") | run.nodes_of("learner") == {"head"}
            run.release()
            assert run.wait() == 0, run.said


@pytest.mark.thorough
@pytest.mark.slow
def test_the_replay_moves_to_another_node_and_all_end_with_the_process_that_started_them(tmp_path: Path) -> None:
    with cluster(tmp_path) as nodes:
        nodes.add(0, "head")
        nodes.add(3, "1")
        address = nodes.add(3, "2")
        with training_on(tmp_path, nodes, "--cluster", address, "--actors", "3", "--steps", str(STEPS)) as run:
            run.await_actors(3)
            eventually(lambda: last_saved(run.directory) > 0)
            (home,) = run.nodes_of("replay")
            for process in run.processes():
                if process.node == home:
                    os.kill(process.pid, signal.SIGKILL)
            nodes.remove(int(home), suddenly=True)
            run.await_words(r"replay was lost")
            run.await_words(r"actor-\d makes room for the replay")
            nodes.add(3, "3")
            run.await_actors(3)

            nodes.add(3, "4")
            (home,), era = run.nodes_of("replay"), run.stats()["era"]
            nodes.remove(int(home))  # in order: its replay saves, and sends home also those that are elsewhere
            eventually(lambda: run.stats()["era"] != era)
            run.await_actors(3)
            saved = last_saved(run.directory)
            assert run.end(signal.SIGKILL) == -signal.SIGKILL
            eventually(lambda: not run.processes())
            assert last_saved(run.directory) > saved, "the replay had the time to save"

        resume: list[str | Path] = [COMMAND, "resume", run.directory.path, "--cluster", address]
        run.release()
        again = Started(tmp_path / "again", resume, tmp_path, nodes.environment)
        assert again.wait() == 0, again.said
    assert_counters_add_up(run.directory, STEPS)
    assert read_metrics(run.directory.evaluations)[-1]["t"] == STEPS
