"""The recipes for clusters, really run: the schedulers are stand-ins that do everything on this machine."""

from __future__ import annotations

import os
import re
import secrets
import shutil
import signal
import socket
import stat
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from dpsr_apex.config_files import dump_config, load_config
from dpsr_apex.run.metrics import read_metrics
from dpsr_apex.run.run_directory import RunDirectory
from tests.launch_files import pods
from tests.system.kitchen import environment, write_tool
from tests.system.members import SETTINGS, Started
from tests.system.runs import (
    COMMAND,
    MARK,
    assert_counters_add_up,
    eventually,
    kill_all_with,
    last_saved,
    processes_with,
)

STEPS = 3_000  # more than a minute for two actors at walking pace
LEASE = 3
SMALL = (
    *SETTINGS,
    *("env.name=gated:Gated", "learner.steps_per_update=8", "run.checkpoint_period=100", f"system.lease={LEASE}"),
    *("system.recycle_deadline=10", "system.rate_tolerance=100", "system.chunk=20", f"run.total_steps={STEPS}"),
)


@pytest.fixture
def config(kitchen: Path) -> Path:
    """That of a run which lasts as long as a test needs; a file named `go` lets it come to its end."""
    shutil.copy(Path(__file__).with_name("gated.py"), kitchen)
    path = kitchen / "small.toml"
    path.write_text(dump_config(load_config("cartpole", overrides=SMALL)))
    return path


def assert_finished(run: RunDirectory) -> None:
    assert_counters_add_up(run, STEPS)
    assert read_metrics(run.evaluations)[-1]["t"] == STEPS
    assert not run.connection.exists()


# Slurm.


class Job(Started):
    """`launch/slurm.sbatch` as Slurm would run it, with five tasks, all here: two of them act."""

    def __init__(self, kitchen: Path, folder: Path, **variables: str) -> None:
        word = secrets.token_hex(8)
        self.mark = f"{MARK}={word}"
        self.steps = folder / "steps"
        allocation = {
            **{"SLURM_NTASKS": "5", "SLURM_JOB_NUM_NODES": "1", "SLURMD_NODENAME": "node-1", "SLURM_JOB_ID": "1234567"},
            **{"RUN_DIR": str(folder / "run"), "PAUSE": str(LEASE + 1), "SRUN_LOG": str(self.steps), MARK: word},
        }
        recipe = [kitchen / "launch" / "slurm.sbatch"]
        super().__init__(folder / "job.log", recipe, folder, environment(kitchen, **allocation | variables))

    def actor(self, name: str) -> int | None:
        """The process of an actor; None while there is none."""
        return next((one.pid for one in processes_with(self.mark) if one.words[-2:] == ["--name", name]), None)

    def wait(self) -> int:
        """Its exit code; it leaves no process behind."""
        code = super().wait()
        eventually(lambda: not processes_with(self.mark))
        return code


@contextmanager
def batch_job(kitchen: Path, folder: Path, **variables: str) -> Iterator[Job]:
    """The job, and whatever is left of it in the end is killed."""
    job = Job(kitchen, folder, **variables)
    try:
        yield job
    finally:
        kill_all_with(job.mark)
        job.kill()


def test_the_recipe_for_slurm_is_one(kitchen: Path) -> None:
    recipe = kitchen / "launch" / "slurm.sbatch"
    subprocess.run(["bash", "-n", recipe], check=True)
    options = re.findall(r"^#SBATCH (.*)$", recipe.read_text(), re.MULTILINE)
    assert {"--signal=B:TERM@120", "--requeue"} <= set(options)


@pytest.mark.slow
def test_a_job_trains_to_the_end_and_an_actor_that_is_killed_comes_back(kitchen: Path, config: Path) -> None:
    run = RunDirectory(kitchen / "run")
    with batch_job(kitchen, kitchen, CONFIG=str(config)) as job:
        for who in ("learner", "evaluator", "actor-0", "actor-1"):
            job.await_words(f"{who} at .* joined")
        victim = job.actor("actor-0")
        assert victim is not None
        os.kill(victim, signal.SIGKILL)
        job.await_words("ended with exit code 137, .*--name actor-0")
        job.await_words(r"(?s)ended with exit code 137.* actor-0 at \S+ joined")
        (kitchen / "go").touch()
        assert job.wait() == 0, job.said
        assert "Traceback" not in job.said
    assert_finished(run)


@pytest.mark.slow
def test_a_job_whose_time_is_over_saves_and_the_next_one_goes_on(kitchen: Path, config: Path) -> None:
    run = RunDirectory(kitchen / "run")
    with batch_job(kitchen, kitchen, CONFIG=str(config)) as job:
        eventually(lambda: last_saved(run) > 0)
        assert job.end(signal.SIGTERM) == 128 + signal.SIGTERM, job.said
        saved = last_saved(run)
        assert f"stopped at t = {saved}" in job.said
    (kitchen / "go").touch()
    with batch_job(kitchen, kitchen, CONFIG=str(config)) as job:
        job.await_words(f"serving at .* from t = {saved}")
        assert job.wait() == 0, job.said
    assert_finished(run)


@pytest.mark.thorough
@pytest.mark.slow
def test_a_job_on_ray_saves_when_its_time_is_over_and_the_next_one_goes_on(kitchen: Path, config: Path) -> None:
    pytest.importorskip("ray", reason="Ray is an extra")
    run = RunDirectory(kitchen / "run")
    token = kitchen / "run.token"
    nodes = {"ENGINE": "ray", "SLURM_JOB_NUM_NODES": "2", "SLURM_CPUS_ON_NODE": "3", "CONFIG": str(config)}
    with batch_job(kitchen, kitchen, **nodes, SLURM_JOB_ID=free_job_id()) as job:
        eventually(lambda: last_saved(run) > 0)
        assert stat.S_IMODE(token.stat().st_mode) == 0o600
        assert job.end(signal.SIGTERM) == 128 + signal.SIGTERM, job.said
        assert token.read_text() not in job.said
        saved, former = last_saved(run), token.read_text()
    (kitchen / "go").touch()
    with batch_job(kitchen, kitchen, **nodes, SLURM_JOB_ID=free_job_id()) as job:
        assert job.wait() == 0, job.said
        assert token.read_text() != former
    assert f"from t = {saved}" in (run.logs / "replay.log").read_text()
    assert_finished(run)
    steps = job.steps.read_text()
    assert steps.count("--nodelist=node-1") == steps.count("--exclude=node-1") == 2


def free_job_id() -> str:
    """A number by which the recipe comes to a port that nobody uses."""
    for port in range(20_000, 30_000):
        with socket.socket() as free, suppress(OSError):
            free.bind(("", port))
            return str(port + 10_000)
    raise AssertionError("all ports are taken")


# What each process does is one file here, which says how it ends: for what is about the job alone.

ROLE = """
test "$1" != replay || trap 'echo replay-saves >>commands; test -e slowly || touch over' TERM
echo "$*" >>commands
if [ -e "$1.code" ]; then
    until [ -e all-began ] || [ "$(cut -d " " -f 1 commands | sort -u | wc -l)" -eq 4 ]; do sleep 0.05; done
    touch all-began
    exit "$(cat "$1.code")"
fi
until [ -e over ]; do sleep 0.05; done
"""


@pytest.fixture
def pretended(kitchen: Path, tmp_path: Path) -> Path:
    """The folder of a job whose processes only pretend."""
    write_tool(kitchen / "tools" / "dpsr-apex", ROLE)
    folder = tmp_path / "job"
    folder.mkdir()
    return folder


def begun(folder: Path, role: str) -> int:
    """How often processes of a role were started."""
    return sum(line.startswith(f"{role} ") for line in (folder / "commands").read_text().splitlines())


@pytest.mark.parametrize(("role", "code", "starts"), [("replay", 2, 1), ("learner", 2, 1), ("learner", 1, 3)])
def test_a_job_ends_when_what_it_needs_is_refused_or_fails_too_often(
    kitchen: Path, pretended: Path, role: str, code: int, starts: int
) -> None:
    (pretended / f"{role}.code").write_text(str(code))
    with batch_job(kitchen, pretended, PAUSE="0", TRIES="3") as job:
        assert job.wait() == code, job.said
    assert begun(pretended, role) == starts
    assert ("replay-saves" in (pretended / "commands").read_text()) == (role != "replay")


def test_a_replay_is_told_once_to_end_however_often_its_job_is(kitchen: Path, pretended: Path) -> None:
    (pretended / "slowly").touch()
    commands = pretended / "commands"
    with batch_job(kitchen, pretended) as job:
        eventually(lambda: commands.exists() and begun(pretended, "replay"))
        job.process.terminate()
        eventually(lambda: "replay-saves" in commands.read_text())
        job.process.terminate()
        (pretended / "over").touch()
        assert job.wait() == 128 + signal.SIGTERM, job.said
    assert commands.read_text().count("replay-saves") == 1


def test_only_the_learner_gets_the_gpu(kitchen: Path, pretended: Path) -> None:
    (pretended / "over").touch()
    with batch_job(kitchen, pretended, GPUS="1") as job:
        assert job.wait() == 0, job.said
    steps = job.steps.read_text()
    alone = [("gpu:1", "learner"), ("none", "evaluator"), ("none", "replay")]
    assert sorted(re.findall(r"--gres=(\S+) dpsr-apex (\w+)", steps)) == alone
    assert re.findall(r"--ntasks=(\d+) .*--gres=none --kill-on-bad-exit=0 --wait=0 bash", steps) == ["2"]


@pytest.mark.parametrize(
    ("variables", "complaint"),
    [
        ({"SLURM_NTASKS": "3"}, "3 tasks are too few"),
        ({"ENGINE": "steam"}, "ENGINE=steam is neither folder nor ray"),
        ({"RUN_DIR": ""}, "RUN_DIR: is to be a folder on the shared file system"),
    ],
)
def test_a_job_that_cannot_be_says_why(
    kitchen: Path, pretended: Path, variables: dict[str, str], complaint: str
) -> None:
    with batch_job(kitchen, pretended, **variables) as job:
        assert job.wait() != 0
        assert complaint in job.said
    assert not (pretended / "commands").exists()


# Kubernetes.


@pytest.mark.slow
def test_the_commands_of_all_pods_make_a_run(kitchen: Path, config: Path) -> None:
    run = RunDirectory(kitchen / "run")
    (kitchen / "go").touch()
    with ExitStack() as stack:
        commands = []
        for pod in pods(CONFIG=str(config), RUN_DIR=str(run.path)):
            if pod.index < 2:
                command = Started(kitchen / pod.name, [COMMAND, *pod.arguments], kitchen)
                stack.callback(command.kill)
                commands.append(command)
        assert len(commands) == 5
        for command in commands:
            assert command.wait() == 0, command.said
            assert "Traceback" not in command.said
    assert_finished(run)
