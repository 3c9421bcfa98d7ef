"""The launch scripts for clusters, with substitutes for the schedulers that run everything on this machine."""

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
from dpsr_apex.files import read_rows
from dpsr_apex.record.run_directory import RunDirectory
from tests.launch_files import pods
from tests.system.members import SETTINGS, Started, await_members, stats_of
from tests.system.runs import (
    COMMAND,
    MARK,
    assert_counters_add_up,
    eventually,
    kill_all_with,
    last_saved,
    processes_with,
)
from tests.system.sandbox import environment, write_tool

STEPS = 3_000  # more than a minute for two slow actors
LEASE = 3
SMALL = (
    *SETTINGS,
    *("env.name=gated:Gated", "learner.steps_per_update=8", "run.checkpoint_period=100", f"system.lease={LEASE}"),
    *("system.recycle_deadline=10", "system.rate_tolerance=100", "system.chunk=20", f"run.total_steps={STEPS}"),
)


@pytest.fixture
def config(sandbox: Path) -> Path:
    """The config of a run that lasts until a file named `go` exists."""
    shutil.copy(Path(__file__).with_name("gated.py"), sandbox)
    path = sandbox / "small.toml"
    path.write_text(dump_config(load_config("cartpole", base="paper", overrides=SMALL)))
    return path


def assert_finished(run: RunDirectory) -> None:
    assert_counters_add_up(run, STEPS)
    assert read_rows(run.evaluations)[-1]["t"] == STEPS
    assert not run.connection.exists()


# Slurm.


class Job(Started):
    """`launch/slurm.sbatch` as Slurm would run it, with five tasks on this machine, two of them actors."""

    def __init__(self, sandbox: Path, folder: Path, **variables: str) -> None:
        word = secrets.token_hex(8)
        self.mark = f"{MARK}={word}"
        self.steps = folder / "steps"
        allocation = {
            **{"SLURM_NTASKS": "5", "SLURM_JOB_NUM_NODES": "1", "SLURMD_NODENAME": "node-1", "SLURM_JOB_ID": "1234567"},
            **{"RUN_DIR": str(folder / "run"), "PAUSE": str(LEASE + 1), "SRUN_LOG": str(self.steps), MARK: word},
        }
        recipe = [sandbox / "launch" / "slurm.sbatch"]
        super().__init__(folder / "job.log", recipe, folder, environment(sandbox, **allocation | variables))

    def actor(self, name: str) -> int | None:
        """Return the process id of an actor; None if it does not run."""
        return next((one.pid for one in processes_with(self.mark) if one.words[-2:] == ["--name", name]), None)

    def wait(self) -> int:
        """Return its exit code; it must leave no process behind."""
        code = super().wait()
        eventually(lambda: not processes_with(self.mark))
        return code


@contextmanager
def batch_job(sandbox: Path, folder: Path, **variables: str) -> Iterator[Job]:
    """Start the job; processes that are left in the end are killed."""
    job = Job(sandbox, folder, **variables)
    try:
        yield job
    finally:
        kill_all_with(job.mark)
        job.kill()


def test_the_script_for_slurm_is_valid(sandbox: Path) -> None:
    recipe = sandbox / "launch" / "slurm.sbatch"
    subprocess.run(["bash", "-n", recipe], check=True)
    options = re.findall(r"^#SBATCH (.*)$", recipe.read_text(), re.MULTILINE)
    assert {"--signal=B:TERM@120", "--requeue"} <= set(options)


@pytest.mark.slow
def test_a_job_trains_to_the_end_and_restarts_a_killed_actor(sandbox: Path, config: Path) -> None:
    run = RunDirectory(sandbox / "run")
    with batch_job(sandbox, sandbox, CONFIG=str(config)) as job:
        await_members(lambda: stats_of(run), "actor-0", "actor-1", joins=4)
        victim = job.actor("actor-0")
        assert victim is not None
        os.kill(victim, signal.SIGKILL)
        eventually(lambda: job.actor("actor-0") not in (None, victim))
        await_members(lambda: stats_of(run), "actor-0", "actor-1", joins=5)
        (sandbox / "go").touch()
        assert job.wait() == 0, job.said
        assert "Traceback" not in job.said
    assert_finished(run)


@pytest.mark.slow
def test_a_job_whose_time_is_over_saves_and_the_next_one_continues(sandbox: Path, config: Path) -> None:
    run = RunDirectory(sandbox / "run")
    with batch_job(sandbox, sandbox, CONFIG=str(config)) as job:
        eventually(lambda: last_saved(run) > 0)
        assert job.end(signal.SIGTERM) == 128 + signal.SIGTERM, job.said
        saved = last_saved(run)
    with batch_job(sandbox, sandbox, CONFIG=str(config)) as job:
        assert eventually(lambda: stats_of(run)).t >= saved
        (sandbox / "go").touch()
        assert job.wait() == 0, job.said
    assert_finished(run)


@pytest.mark.thorough
@pytest.mark.slow
def test_a_job_on_ray_saves_when_its_time_is_over_and_the_next_one_continues(sandbox: Path, config: Path) -> None:
    pytest.importorskip("ray", reason="Ray is an extra")
    run = RunDirectory(sandbox / "run")
    token = sandbox / "run.token"
    nodes = {"ENGINE": "ray", "SLURM_JOB_NUM_NODES": "2", "SLURM_CPUS_ON_NODE": "3", "CONFIG": str(config)}
    with batch_job(sandbox, sandbox, **nodes, SLURM_JOB_ID=free_job_id()) as job:
        eventually(lambda: last_saved(run) > 0)
        assert stat.S_IMODE(token.stat().st_mode) == 0o600
        assert job.end(signal.SIGTERM) == 128 + signal.SIGTERM, job.said
        assert token.read_text() not in job.said
        saved, former = last_saved(run), token.read_text()
    with batch_job(sandbox, sandbox, **nodes, SLURM_JOB_ID=free_job_id()) as job:
        assert eventually(lambda: stats_of(run)).t >= saved
        (sandbox / "go").touch()
        assert job.wait() == 0, job.said
        assert token.read_text() != former
    assert_finished(run)
    steps = job.steps.read_text()
    assert steps.count("--nodelist=node-1") == steps.count("--exclude=node-1") == 2


def free_job_id() -> str:
    """Return a job id from which the script derives a free port."""
    for port in range(20_000, 30_000):
        with socket.socket() as free, suppress(OSError):
            free.bind(("", port))
            return str(port + 10_000)
    raise AssertionError("all ports are taken")


# Processes of a job that only pretend: a file decides how each of them ends.

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
def pretended(sandbox: Path, tmp_path: Path) -> Path:
    """The folder of a job whose processes only pretend."""
    write_tool(sandbox / "tools" / "dpsr-apex", ROLE)
    folder = tmp_path / "job"
    folder.mkdir()
    return folder


def begun(folder: Path, role: str) -> int:
    """Return how often processes of a role were started."""
    return sum(line.startswith(f"{role} ") for line in (folder / "commands").read_text().splitlines())


@pytest.mark.parametrize(("role", "code", "starts"), [("replay", 2, 1), ("learner", 2, 1), ("learner", 1, 3)])
def test_a_job_ends_when_its_replay_or_learner_is_refused_or_fails_too_often(
    sandbox: Path, pretended: Path, role: str, code: int, starts: int
) -> None:
    (pretended / f"{role}.code").write_text(str(code))
    with batch_job(sandbox, pretended, PAUSE="0", TRIES="3") as job:
        assert job.wait() == code, job.said
    assert begun(pretended, role) == starts
    assert ("replay-saves" in (pretended / "commands").read_text()) == (role != "replay")


def test_a_replay_is_told_to_end_once_even_if_its_job_is_told_twice(sandbox: Path, pretended: Path) -> None:
    (pretended / "slowly").touch()
    commands = pretended / "commands"
    with batch_job(sandbox, pretended) as job:
        eventually(lambda: commands.exists() and begun(pretended, "replay"))
        job.process.terminate()
        eventually(lambda: "replay-saves" in commands.read_text())
        job.process.terminate()
        (pretended / "over").touch()
        assert job.wait() == 128 + signal.SIGTERM, job.said
    assert commands.read_text().count("replay-saves") == 1


def test_only_the_learner_gets_the_gpu(sandbox: Path, pretended: Path) -> None:
    (pretended / "over").touch()
    with batch_job(sandbox, pretended, GPUS="1") as job:
        assert job.wait() == 0, job.said
    steps = job.steps.read_text()
    alone = [("gpu:1", "learner"), ("none", "evaluator"), ("none", "replay")]
    assert sorted(re.findall(r"--gres=(\S+) dpsr-apex (\w+)", steps)) == alone
    assert re.findall(r"--ntasks=(\d+) .*--gres=none --kill-on-bad-exit=0 --wait=0 bash", steps) == ["2"]


@pytest.mark.parametrize(
    ("variables", "named"),  # what the message must name
    [({"SLURM_NTASKS": "3"}, ["3 tasks"]), ({"ENGINE": "steam"}, ["ENGINE", "steam"]), ({"RUN_DIR": ""}, ["RUN_DIR"])],
)
def test_a_job_with_invalid_settings_is_refused_by_name(
    sandbox: Path, pretended: Path, variables: dict[str, str], named: list[str]
) -> None:
    with batch_job(sandbox, pretended, **variables) as job:
        assert job.wait() != 0
        assert [part for part in named if part not in job.said] == []
    assert not (pretended / "commands").exists()


# Kubernetes.


@pytest.mark.slow
def test_the_commands_of_all_pods_finish_a_run(sandbox: Path, config: Path) -> None:
    run = RunDirectory(sandbox / "run")
    (sandbox / "go").touch()
    with ExitStack() as stack:
        commands = []
        for pod in pods(CONFIG=str(config), RUN_DIR=str(run.path)):
            if pod.index < 2:
                command = Started(sandbox / pod.name, [COMMAND, *pod.arguments], sandbox)
                stack.callback(command.kill)
                commands.append(command)
        assert len(commands) == 5
        for command in commands:
            assert command.wait() == 0, command.said
            assert "Traceback" not in command.said
    assert_finished(run)
