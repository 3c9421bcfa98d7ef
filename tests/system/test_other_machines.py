"""Runs across machines: keys, one command per process, launch scripts, and a network that is interrupted."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from dpsr_apex.config_files import dump_config, load_config
from dpsr_apex.files import read_rows
from dpsr_apex.processes.control import address_of
from dpsr_apex.processes.statistics import ask_stats
from dpsr_apex.record.provenance import read_provenance
from dpsr_apex.record.run_directory import RunDirectory
from dpsr_apex.wire.codec import decode, encode
from dpsr_apex.wire.keys import ROLES, load_keys, make_keys
from dpsr_apex.wire.messages import (
    ACTOR,
    LEARNER,
    SERVER,
    Alive,
    Heartbeat,
    Hello,
    Join,
    LearnerState,
    Message,
    SampleRequest,
    Stats,
    StatsRequest,
    Terms,
    Welcome,
)
from dpsr_apex.wire.sockets import ServerSocket, wait
from tests.system import members
from tests.system.gated import STEP_SECONDS
from tests.system.machines import Machine, machines, sockets_on
from tests.system.members import SETTINGS, Head, Started, await_members, serving, started
from tests.system.runs import PATIENCE, assert_counters_add_up, eventually, sent_in
from tests.system.sandbox import LAUNCH, environment

SCRIPTS = sorted(LAUNCH.glob("*.sh"))
STEPS = 3_000  # more than a minute for two actors at walking pace
SMALL = (
    *SETTINGS,
    *("learner.steps_per_update=8", "run.checkpoint_period=500", "system.lease=10", "system.recycle_deadline=10"),
    *("run.log_period=100", "system.rate_tolerance=100", "system.chunk=20", f"run.total_steps={STEPS}"),
)


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


# Keys.


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Head]:
    """A head that other machines can reach."""
    with serving(tmp_path_factory.mktemp("guarded") / "run", bind="0.0.0.0:0") as head:
        yield head


def test_a_head_that_other_machines_can_reach_creates_keys_that_only_its_owner_can_read(guarded: Head) -> None:
    keys = guarded.run.keys
    assert stat.S_IMODE(keys.stat().st_mode) == 0o700
    modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in keys.iterdir()}
    assert modes == dict.fromkeys((f"{role}.key" for role in ROLES), 0o600)
    assert "secret" not in guarded.said


def dpsr_apex(*arguments: str | Path, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).with_name("dpsr-apex")), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, cwd=cwd)


def test_a_key_file_that_others_can_read_is_refused(guarded: Head, tmp_path: Path) -> None:
    key = tmp_path / "actor.key"
    shutil.copy(guarded.run.key_of(ACTOR), key)
    key.chmod(0o640)
    ended = dpsr_apex("actor", "--connect", "127.0.0.1:1", "--key", key)
    assert ended.returncode == 2
    (line,) = ended.stderr.splitlines()
    assert f"chmod 600 {key}" in line


@pytest.mark.parametrize("role", sorted({*ROLES} - {ACTOR}))
def test_the_key_file_of_another_role_is_refused(guarded: Head, role: str) -> None:
    key = guarded.run.key_of(role)
    ended = dpsr_apex("actor", "--connect", "127.0.0.1:1", "--key", key)
    assert ended.returncode == 2
    (line,) = ended.stderr.splitlines()
    assert str(key) in line
    assert "use actor.key" in line


@pytest.mark.parametrize("role", [ACTOR, LEARNER])
@pytest.mark.parametrize("host", ["127.0.0.1", "head.example"])
def test_a_process_that_is_given_an_address_needs_a_key(role: str, host: str) -> None:
    ended = dpsr_apex(role, "--connect", f"{host}:5555")
    assert ended.returncode == 2
    (line,) = ended.stderr.splitlines()
    assert "--key" in line
    assert f"{role}.key" in line


# One command per process.


@pytest.fixture
def gate(tmp_path: Path) -> Path:
    """The file that lets actors of `gated:Gated` run at full speed, in the folder with that environment."""
    shutil.copy(Path(__file__).with_name("gated.py"), tmp_path)
    return tmp_path / "go"


def small_settings(*settings: str) -> list[str]:
    return [f"--set={setting}" for setting in (*SMALL, *settings)]


def write_gated_config(path: Path) -> Path:
    path.write_text(dump_config(load_config("cartpole", base="paper", overrides=(*SMALL, "env.name=gated:Gated"))))
    return path


@pytest.mark.slow
def test_a_run_can_be_started_with_one_command_per_process(gate: Path, tmp_path: Path, stack: ExitStack) -> None:
    config, run = write_gated_config(tmp_path / "small.toml"), RunDirectory(tmp_path / "run")

    def start(name: str, *arguments: str | Path) -> Started:
        return stack.enter_context(started(tmp_path / name, *arguments, cwd=tmp_path))

    replay = start("replay", "replay", config, "--run-dir", run.path)
    eventually(run.connection.exists)
    address = address_of(run).endpoint.removeprefix("tcp://")
    learner = start("learner", "learner", "--connect", address, "--key", run.key_of(LEARNER))
    nameless = start("nameless", "actor", "--connect", address, "--key", run.key_of(ACTOR))
    named = start("named", "actor", "--find", run.path, "--name", "by-hand")
    evaluator = start("evaluator", "evaluator", run.path)
    default_name = f"{socket.gethostname()}-{nameless.process.pid}"
    await_members(lambda: members.stats_of(run), "by-hand", default_name, joins=4)
    gate.touch()
    for command in (replay, learner, nameless, named, evaluator):
        assert command.wait() == 0, command.said
        assert "Traceback" not in command.said
    assert read_rows(run.evaluations)[-1]["t"] == STEPS
    assert not run.connection.exists()
    assert_counts_agree(assert_counters_add_up(run, STEPS), nameless.said, named.said)

    replay_again = ("replay", config, "--run-dir", run.path, "--resume")
    for words in (replay_again, ("learner", "--find", run.path), ("actor", "--find", run.path)):
        ended = dpsr_apex(*words, cwd=tmp_path)
        assert (ended.returncode, ended.stderr) == (0, "")
        assert str(run.path) in ended.stdout
    assert dpsr_apex("evaluator", run.path, cwd=tmp_path).returncode == 0
    assert len(read_rows(run.evaluations)) == 1, "it was evaluated already"
    (part,) = read_provenance(run)
    assert part.command.startswith("dpsr-apex replay ")
    assert (part.outcome, part.ended_t) == ("finished", STEPS)


def assert_counts_agree(traffic: dict[str, int], *logs: str) -> None:
    """Assert that the replay received everything it acknowledged, and no more than the actors sent."""
    counts = [count for log in logs for count in sent_in(log)]
    assert len(counts) == len(logs)
    sent = sum(count.sent for count in counts)
    assert sent - sum(count.unacknowledged for count in counts) <= traffic["received"] <= sent


def test_a_learner_requests_a_state_again_that_was_lost_on_its_way(tmp_path: Path, stack: ExitStack) -> None:
    make_keys(tmp_path)
    keys, key = load_keys(tmp_path / "server.key", SERVER), ("--key", tmp_path / "learner.key")
    server = stack.enter_context(closing(ServerSocket("tcp://127.0.0.1:0", keys, accepted=[LEARNER])))
    config = dump_config(load_config("cartpole", base="paper", overrides=(*SMALL, "system.lease=2")))
    address = server.endpoint.removeprefix("tcp://")
    learner = stack.enter_context(started(tmp_path / "log", "learner", "--connect", address, *key))
    joins = 0
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        wait([server], 1.0)
        received = server.receive()
        assert learner.runs, learner.said
        replies: list[Message] = []
        match decode(received.frames) if received else None:
            case Hello():
                replies = [Terms("run", config)]
            case Join():
                joins += 1
                replies = [Welcome(0, 0, -1, 1, 0, ""), *([LearnerState("", b"")] if joins > 1 else [])]
            case Heartbeat():
                replies = [Alive(0, 1, "")]
            case SampleRequest():
                break
        for reply in replies:
            assert received is not None
            server.send(received.sender, encode(reply))
    assert joins == 2


# Two machines and the network between them.


@pytest.fixture
def two() -> Iterator[list[Machine]]:
    """The machine of the head, and another one."""
    with machines(2) as found:
        yield found


def stats_of(run: RunDirectory, two: list[Machine]) -> Stats:
    """Return the statistics, requested on the head's machine."""
    with sockets_on(two[0]):
        return ask_stats(address_of(run), StatsRequest(), 2.0)


def await_stats(run: RunDirectory, two: list[Machine], holds: Callable[[Stats], object]) -> Stats:
    """Return the first statistics for which the condition is true."""

    def good() -> Stats | None:
        stats = stats_of(run, two)
        return stats if holds(stats) else None

    return eventually(good)


def sent_by(name: str) -> Callable[[Stats], int]:
    """Transitions that this actor has sent; 0 if it is not in the run."""
    return lambda stats: sum(actor.sent for actor in stats.actors if actor.name == name)


CUT_SECONDS = 5.0
CUT_STEPS = CUT_SECONDS / STEP_SECONDS


@pytest.mark.slow
@pytest.mark.parametrize("lease", [3, pytest.param(30, marks=pytest.mark.thorough)])
def test_an_interrupted_network_loses_no_acknowledged_transition(
    two: list[Machine], gate: Path, tmp_path: Path, stack: ExitStack, lease: int
) -> None:
    steps = 6_000
    run = RunDirectory(tmp_path / "run")
    settings = small_settings(f"run.total_steps={steps}", "env.name=gated:Gated", f"system.lease={lease}")
    head = stack.enter_context(
        started(
            *(tmp_path / "head", "train", "cartpole", "--base=paper", "--actors", "1", "--run-dir", run.path),
            *("--bind", f"{two[0].address}:5555", *settings),
            before=two[0].before,
            cwd=tmp_path,
        )
    )
    head.await_words(f"dpsr-apex actor --connect {two[0].address}:5555 --key {run.keys}/actor.key")
    key = Path(shutil.copy2(run.key_of(ACTOR), tmp_path / "carried.key"))

    def far(name: str) -> Started:
        connect = ("--connect", f"{two[0].address}:5555", "--key", key, "--name", name)
        return stack.enter_context(started(tmp_path / name, "actor", *connect, before=two[1].before, cwd=tmp_path))

    staying = far("staying")
    await_stats(run, two, sent_by("staying"))
    late = far("late")
    before = await_stats(run, two, sent_by("late"))
    assert {actor.name: actor.host for actor in before.actors}["staying"] == two[1].address

    two[1].cut()
    time.sleep(CUT_SECONDS)  # the fault itself
    if lease < CUT_SECONDS:
        await_stats(run, two, lambda stats: stats.traffic.expired_leases == 2)
    assert stats_of(run, two).t > before.t, "the actor beside the head continues"
    two[1].heal()
    await_stats(run, two, lambda stats: sent_by("staying")(stats) > sent_by("staying")(before) + CUT_STEPS)
    await_stats(run, two, lambda stats: sent_by("late")(stats) > sent_by("late")(before) + CUT_STEPS)
    assert stats_of(run, two).traffic.expired_leases == (2 if lease < CUT_SECONDS else 0)

    assert late.end(signal.SIGTERM) == 128 + signal.SIGTERM
    await_stats(run, two, lambda stats: "late" not in [actor.name for actor in stats.actors])
    assert [count.unacknowledged for count in sent_in(late.said)] == [0]

    gate.touch()
    assert head.wait() == 0, head.said
    assert staying.wait() == 0, staying.said
    traffic = assert_counters_add_up(run, steps)
    assert_counts_agree(traffic, staying.said, late.said, (run.logs / "actor-0.log").read_text())


@pytest.mark.thorough
@pytest.mark.slow
def test_the_learner_may_be_on_another_machine_than_the_replay(
    two: list[Machine], gate: Path, tmp_path: Path, stack: ExitStack
) -> None:
    config, run = write_gated_config(tmp_path / "small.toml"), RunDirectory(tmp_path / "run")

    def start(name: str, place: Machine, *arguments: str | Path) -> Started:
        return stack.enter_context(started(tmp_path / name, *arguments, before=place.before, cwd=tmp_path))

    replay = start("replay", two[0], "replay", config, "--run-dir", run.path, "--bind", "0.0.0.0:5555")
    eventually(run.connection.exists)
    near, far = ("--connect", "127.0.0.1:5555"), ("--connect", f"{two[0].address}:5555")
    actor_key = ("--key", run.key_of(ACTOR))
    learner = start("learner", two[1], "learner", *far, "--key", run.key_of(LEARNER), "--bind", "0.0.0.0:5556")
    near_actor = start("near", two[0], "actor", *near, *actor_key, "--name", "near")
    far_actor = start("far", two[1], "actor", *far, *actor_key, "--name", "far")
    evaluator = start("evaluator", two[0], "evaluator", run.path, *near)
    stats = await_members(lambda: stats_of(run, two), "near", "far", joins=4)
    assert {actor.name: actor.host for actor in stats.actors} == {"near": "", "far": two[1].address}
    gate.touch()
    for command in (replay, learner, near_actor, far_actor, evaluator):
        assert command.wait() == 0, command.said
    for command in (learner, near_actor, far_actor, evaluator):  # the replay's machine here has no route to others
        assert "WARNING" not in command.said
    assert_counts_agree(assert_counters_add_up(run, STEPS), near_actor.said, far_actor.said)


# The launch scripts.


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_a_launch_script_is_valid_and_executable(script: Path) -> None:
    subprocess.run(["bash", "-n", script], check=True)
    assert os.access(script, os.X_OK)


def test_the_script_for_this_machine_trains_with_many_processes(sandbox: Path, tmp_path: Path) -> None:
    run = RunDirectory(tmp_path / "run")
    recipe = sandbox / "launch/this_machine.sh"
    settings = small_settings("run.total_steps=500")
    words = ["cartpole", "--base=paper", "--actors", "1", "--run-dir", str(run.path), *settings]
    subprocess.run([recipe, *words], env=environment(sandbox), check=True, timeout=PATIENCE)
    assert_counters_add_up(run, 500)
    assert {log.name for log in run.logs.iterdir()} >= {"replay.log", "learner.log", "evaluator.log", "actor-0.log"}


def test_the_script_for_a_debugger_stops_where_a_round_is_opened(sandbox: Path, tmp_path: Path) -> None:
    recipe = sandbox / "launch/under_a_debugger.sh"
    ended = subprocess.run(
        [recipe, "--run-dir", tmp_path / "run", *small_settings()],
        env=environment(sandbox),
        input="p 'candidates', round_.candidates.size\np 'open', len(self.by_number)\nq\n",
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert "-> self.counters.rounds_opened += 1" in ended.stdout
    assert "('candidates', 4)" in ended.stdout
    assert "('open', 1)" in ended.stdout


@pytest.mark.thorough
@pytest.mark.slow
def test_the_script_for_other_machines_starts_actors_that_join_the_run(
    sandbox: Path, tmp_path: Path, stack: ExitStack
) -> None:
    run = RunDirectory(tmp_path / "run")
    shutil.copy(Path(__file__).with_name("gated.py"), sandbox)
    arguments = ("train", "cartpole", "--base=paper", "--actors", "1", "--run-dir", run.path, "--bind", "0.0.0.0:0")
    gated = small_settings("env.name=gated:Gated", "run.total_steps=6000")
    head = stack.enter_context(started(tmp_path / "head", *arguments, *gated, cwd=sandbox))
    eventually(run.connection.exists)

    def is_joined(*names: str) -> bool:
        return {actor.name for actor in members.stats_of(run).actors} >= set(names)

    for host in ("east", "west"):
        command: list[str | Path] = [sandbox / "launch/other_machines.sh", run.path, "2", host]
        recipe = Started(tmp_path / host, command, environment=environment(sandbox, HEAD="127.0.0.1"))
        stack.callback(recipe.kill)
        eventually(lambda: is_joined(f"{host}-1", f"{host}-2"))  # noqa: B023 -- called before it changes
        if host == "east":
            recipe.end()
            eventually(lambda: not is_joined("east-1") and not is_joined("east-2"))
    (sandbox / "go").touch()
    assert head.wait() == 0, head.said
    assert recipe.wait() == 0, recipe.said
    assert_counters_add_up(run, 6_000)


def test_the_script_for_other_machines_reports_what_is_missing(sandbox: Path, tmp_path: Path) -> None:
    recipe = sandbox / "launch/other_machines.sh"
    run = tmp_path / "run"

    def complaint(*words: str | Path) -> str:
        ended = subprocess.run([recipe, *words], env=environment(sandbox), capture_output=True, text=True)
        assert ended.returncode == 2
        return ended.stderr

    assert f"{recipe} RUN_DIR ACTORS HOST..." in complaint(run, "1")
    assert str(run) in complaint(run, "1", "east")
    run.mkdir()
    (run / "connection.json").write_text('{"endpoint": "tcp://127.0.0.1:5555"}')
    assert "--bind 0.0.0.0:5555" in complaint(run, "1", "east")
