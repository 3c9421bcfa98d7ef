"""Runs on a Ray cluster of several nodes, all on this machine: placed, killed, moved, scaled, and refused."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import pytest

from dpsr_apex.config_files import load_config
from dpsr_apex.files import read_rows
from dpsr_apex.processes.control import address_of
from dpsr_apex.processes.statistics import ask_stats
from dpsr_apex.record.run_directory import RunDirectory
from dpsr_apex.wire.messages import Stats, StatsRequest
from dpsr_apex.wire.statistics import ActorStats
from tests.system.members import Started
from tests.system.ray_nodes import NODE, Nodes, cluster
from tests.system.runs import (
    COMMAND,
    PATIENCE,
    SMALL,
    assert_counters_add_up,
    eventually,
    last_checkpoint,
    last_saved,
    sent_in,
)

pytest.importorskip("ray", reason="Ray is not installed: pip install 'ray>=2.52'")

STEPS = 4_000
HEARD_LATE = 50  # transitions that a held actor sends at most between two heartbeats
FEW = 600  # steps of a short run
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
        options = ["--base=paper", "--run-dir", str(self.directory.path), *settings]
        command: list[str | Path] = [COMMAND, "train", "cartpole", *words, *options]
        super().__init__(folder / "said", command, folder, nodes.environment)

    def release(self) -> None:
        """Let it run at full speed."""
        self._hold.unlink()

    def processes(self, *words: str) -> list[Placed]:
        """Return its processes with these words in their command lines, on all nodes."""
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
        """Change the number of actors."""
        words: list[str | Path] = [COMMAND, "scale", self.directory.path, "--actors", str(actors)]
        subprocess.run(words, env=self.environment, check=True, capture_output=True, timeout=PATIENCE)

    def pids(self, *words: str) -> list[int]:
        return [process.pid for process in self.processes(*words)]

    def nodes_of(self, role: str) -> set[str]:
        """Return the nodes on which processes of this role run."""
        return {process.node for process in self.processes(role)}

    def stats(self) -> Stats:
        """The statistics, from the replay itself."""
        return ask_stats(address_of(self.directory), StatsRequest(), 2.0)

    def actors(self) -> dict[str, ActorStats]:
        """The statistics of the actors, by name."""
        return {actor.name: actor for actor in self.stats().actors}

    def await_actors(self, count: int) -> dict[str, ActorStats]:
        """Wait until there are `count` actors and each of them has sent something; return them by name."""

        def all_there() -> dict[str, ActorStats] | None:
            assert self.runs, self.said
            actors = self.actors()
            return actors if len(actors) == count and all(actor.sent for actor in actors.values()) else None

        return eventually(all_there)


def indices(actors: dict[str, ActorStats]) -> dict[str, int]:
    """Return the place of each actor, which decides its epsilon."""
    return {name: actor.place for name, actor in actors.items()}


@contextmanager
def training_on(folder: Path, nodes: Nodes, *words: str) -> Iterator[ClusterRun]:
    run = ClusterRun(folder, nodes, *words)
    try:
        yield run
    finally:
        run.kill()


@pytest.mark.slow
def test_a_run_on_a_cluster_survives_lost_nodes_and_killed_processes(tmp_path: Path) -> None:
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
            eventually(lambda: run.pids("--name", "actor-1") not in ([], [victim.pid]))
            assert indices(run.await_actors(4)) == indices(before)

            nodes.remove(1)
            eventually(lambda: "first" not in run.nodes_of("actor"))
            run.await_words(r"5 CPUs \(0 free\)")  # the user is told which resources are missing
            assert len(run.actors()) < 4
            nodes.add(4, "third")
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
    """Assert that it is finished, and that the replay has counted all that it acknowledged to each actor process."""
    directory = run.directory
    assert read_rows(directory.evaluations)[-1]["t"] == steps
    assert not directory.connection.exists()
    assert not list(directory.path.glob(".shared-*"))

    traffic = assert_counters_add_up(directory, steps)
    streams = last_checkpoint(directory).parts["replay"].facts["streams"]
    known = Counter((name, sent) for name, _, _, sent, _ in streams)
    left = Counter[tuple[str, int]]()  # processes that ended cleanly, by the number of transitions that they sent
    acknowledged = 0
    for log in directory.logs.glob("actor-*.log"):
        for count in sent_in(log.read_text()):
            left[log.stem, count.sent] += 1
            acknowledged += count.sent - count.unacknowledged
    assert left <= known, "the replay has counted everything that was sent"
    died = list((known - left).elements())
    assert died, "one was killed"
    config = load_config(directory.config).system
    on_their_way = config.in_flight + HEARD_LATE
    acknowledged += sum(max(sent - on_their_way, 0) for _, sent in died)
    assert acknowledged <= traffic["received"] <= sum(sent for _, sent in known.elements()) + len(died) * on_their_way


def refusal(folder: Path, environment: Mapping[str, str], *words: str) -> str:
    """Return the one line that `dpsr-apex train` prints when it is refused; it creates no run."""
    run = folder / "refused"
    command: list[str | Path] = [COMMAND, "train", "cartpole", "--steps", "2000", "--run-dir", run, *words]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE, cwd=folder)
    assert (ended.returncode, ended.stdout) == (2, ""), ended.stderr
    assert RunDirectory.is_free(run)
    assert ended.stderr.count("\n") == 1
    return ended.stderr.strip().removeprefix("dpsr-apex: ")


def own_environment(home: Path, **variables: str) -> dict[str, str]:
    """Return the environment of a user who has not set up a cluster."""
    return {name: value for name, value in os.environ.items() if not name.startswith("RAY_")} | {
        "HOME": str(home),
        **variables,
    }


def test_a_cluster_that_does_not_exist_is_refused_in_one_line(tmp_path: Path) -> None:
    environment = own_environment(tmp_path, RAY_AUTH_TOKEN="0" * 64)
    for address in ("127.0.0.1:1", "localhost:1"):
        said = refusal(tmp_path, environment, "--cluster", address)
        assert f"Ray cluster at {address}" in said
    said = refusal(tmp_path, environment, "--cluster", "nowhere")
    assert "--cluster nowhere" in said
    said = refusal(tmp_path, environment | {"RAY_TMPDIR": str(tmp_path)}, "--cluster", "auto")
    assert "Ray cluster on this machine" in said


def test_a_token_that_other_users_can_read_is_refused(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("0" * 64)
    token.chmod(0o644)
    said = refusal(tmp_path, own_environment(tmp_path, RAY_AUTH_TOKEN_PATH=str(token)), "--cluster", "127.0.0.1:1")
    assert f"chmod 600 {token}" in said


def test_options_that_exclude_each_other_are_refused(tmp_path: Path) -> None:
    environment = own_environment(tmp_path)
    assert "--cluster auto" in refusal(tmp_path, environment, "--cluster", "auto", "--solo")
    assert "--bind" in refusal(tmp_path, environment, "--cluster", "auto", "--bind", "0.0.0.0:5555")
    said = refusal(tmp_path, environment, "--learner-gpus", "1")
    assert "--learner-gpus" in said
    assert "--cluster" in said


@pytest.mark.slow
def test_a_cluster_without_a_token_is_refused_unless_that_is_intended(tmp_path: Path) -> None:
    with cluster(tmp_path, token=False) as nodes:
        address = nodes.add(4)
        environment = own_environment(tmp_path, RAY_AUTH_TOKEN="0" * 64)
        said = refusal(tmp_path, environment, "--cluster", address)
        assert "token" in said
        with training_on(tmp_path, nodes, "--cluster", address, "--actors", "1", "--steps", str(FEW)) as run:
            run.release()
            assert run.wait() == 0, run.said


def other_emulator(folder: Path) -> str:
    """Return a folder for PYTHONPATH in which another version of ale-py seems to be installed."""
    facts = folder / "ale_py-0.0.1.dist-info" / "METADATA"
    facts.parent.mkdir(parents=True)
    facts.write_text("Metadata-Version: 2.1\nName: ale-py\nVersion: 0.0.1\n")
    return str(folder)


def other_version(folder: Path) -> str:
    """Return a folder for PYTHONPATH in which another version of dpsr_apex is installed."""
    shutil.copytree(ROOT / "dpsr_apex", folder / "dpsr_apex", ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "dpsr_apex" / "__init__.py").write_text('"""Another one."""\n\n__version__ = "0.0.1"\n')
    return str(folder)


@contextmanager
def hidden_node(nodes: Nodes, address: str, folder: Path) -> Iterator[None]:
    """Add a node that does not share this folder with the others."""
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
def test_unusable_nodes_are_excluded_with_a_reason(tmp_path: Path) -> None:
    with cluster(tmp_path) as nodes:
        nodes.add(4, "head")
        nodes.add(4, "emulator", path=other_emulator(tmp_path / "emulator"))
        address = nodes.add(4, "version", path=other_version(tmp_path / "version"))
        with (
            hidden_node(nodes, address, tmp_path / "run"),
            training_on(tmp_path, nodes, "--cluster", address, "--actors", "2", "--steps", str(FEW)) as run,
        ):
            for reason in ("ale-py 0.0.1", "dpsr_apex 0.0.1", f"{tmp_path}/run"):  # the user is told which and why
                run.await_words(f"Node .*{reason}")
            run.await_words(r"4 CPUs \(0 free\)")
            assert eventually(lambda: run.nodes_of("actor") | run.nodes_of("learner")) == {"head"}
            run.release()
            assert run.wait() == 0, run.said


@pytest.mark.thorough
@pytest.mark.slow
def test_the_replay_moves_to_another_node_and_all_processes_end_with_their_supervisor(tmp_path: Path) -> None:
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
            eventually(lambda: run.nodes_of("replay") not in (set(), {home}))
            assert len(run.processes("actor")) < 3, "an actor was preempted for the replay"
            nodes.add(3, "3")
            run.await_actors(3)

            nodes.add(3, "4")
            (home,), era = run.nodes_of("replay"), run.stats().era
            nodes.remove(int(home))  # gracefully: its replay saves, and tells all members to leave
            eventually(lambda: run.stats().era != era)
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
    assert read_rows(run.directory.evaluations)[-1]["t"] == STEPS
