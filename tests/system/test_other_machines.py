"""Runs that other machines take part in: keys, commands for each process, recipes, and a network that breaks."""

from __future__ import annotations

import json
import os
import re
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
from typing import Any, NamedTuple

import pytest

from dpsr_apex.config_files import dump_config, load_config
from dpsr_apex.processes.discovery import Address
from dpsr_apex.processes.link import ReplayLost, ask
from dpsr_apex.processes.onlooker import address_of
from dpsr_apex.run.metrics import read_metrics
from dpsr_apex.run.run_directory import RunDirectory
from dpsr_apex.wire.addresses import port_of, with_host
from dpsr_apex.wire.codec import decode, encode
from dpsr_apex.wire.keys import ClientKeys
from dpsr_apex.wire.messages import (
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
    Weights,
    WeightsRequest,
    Welcome,
)
from dpsr_apex.wire.sockets import BindError, Server, make_keypair, wait
from tests.system.gated import STEP_SECONDS
from tests.system.kitchen import LAUNCH, environment
from tests.system.machines import Machine, living_on, machines
from tests.system.members import SETTINGS, Head, Member, Started, serving, started
from tests.system.runs import PATIENCE, assert_counters_add_up, eventually

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
    """A head that other machines could reach."""
    with serving(tmp_path_factory.mktemp("guarded") / "run", bind="0.0.0.0:0") as head:
        yield head


def test_a_head_that_others_can_reach_makes_keys_for_its_owner_alone(guarded: Head) -> None:
    keys = guarded.run.keys
    assert stat.S_IMODE(keys.stat().st_mode) == 0o700
    assert {file.name: stat.S_IMODE(file.stat().st_mode) for file in keys.iterdir()} == {
        "server.key": 0o600,
        "client.key": 0o600,
    }
    assert "secret" not in guarded.said


def no_key(_right: ClientKeys) -> ClientKeys | None:
    return None


def wrong_client_key(right: ClientKeys) -> ClientKeys:
    return ClientKeys(right.server_public, *make_keypair())


def stolen_public_key(right: ClientKeys) -> ClientKeys:
    return ClientKeys(right.server_public, right.public, make_keypair()[1])


def wrong_server_key(right: ClientKeys) -> ClientKeys:
    return ClientKeys(make_keypair()[0], right.public, right.secret)


INTRUDERS: list[tuple[Callable[[ClientKeys], ClientKeys | None], str]] = [
    (no_key, "it .*has no key"),
    (wrong_client_key, "its key is not the client key of this run"),
    (stolen_public_key, "its keys do not fit those of this server"),
    (wrong_server_key, "its keys do not fit those of this server"),
]


@pytest.mark.parametrize(("spoil", "reason"), INTRUDERS)
def test_without_the_right_key_a_head_says_nothing(
    guarded: Head, stack: ExitStack, spoil: Callable[[ClientKeys], ClientKeys | None], reason: str
) -> None:
    endpoint, keys = guarded.address
    assert keys is not None
    with pytest.raises(ReplayLost, match="Nothing answers"):
        ask(Address(endpoint, spoil(keys)), Hello(), 1.0)
    guarded.await_words(f"denied a client at .*: {reason}")
    member = stack.enter_context(closing(Member(guarded.address, "actor", "friend", environment="")))
    assert isinstance(member.say(Heartbeat(0))[0], Alive)
    member.leave()


@pytest.mark.parametrize(("spoil", "reason"), INTRUDERS)
def test_without_the_right_key_a_learner_gives_no_weights(
    learning: tuple[Started, Address], spoil: Callable[[ClientKeys], ClientKeys | None], reason: str
) -> None:
    learner, (endpoint, keys) = learning
    assert keys is not None
    question = WeightsRequest(-1, -1)
    with pytest.raises(ReplayLost, match="Nothing answers"):
        ask(Address(endpoint, spoil(keys)), question, 1.0)
    learner.await_words(f"denied a client at .*: {reason}")
    weights = ask(Address(endpoint, keys), question, PATIENCE)
    assert isinstance(weights, Weights)
    assert weights.online


@pytest.fixture(scope="module")
def learning(guarded: Head, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Started, Address]]:
    """A learner that others could reach, and where its weights are."""
    endpoint, keys = guarded.address
    assert keys is not None
    arguments = ("--connect", f"127.0.0.1:{port_of(endpoint)}", "--key", guarded.run.client_key)
    output = tmp_path_factory.mktemp("learning") / "log"
    with started(output, "learner", *arguments, "--bind", "0.0.0.0:0") as learner:
        learner.await_words("joined at t = 0")
        with closing(Member(guarded.address, "actor", "asker", environment="")) as member:
            where, public = member.welcome.weights_endpoint, member.welcome.weights_key
            member.leave()
        assert where.startswith("tcp://0.0.0.0:")
        yield learner, Address(with_host(where, "127.0.0.1"), ClientKeys(public, keys.public, keys.secret))


def dpsr_apex(*arguments: str | Path, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).with_name("dpsr-apex")), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, cwd=cwd)


def test_a_key_file_that_others_can_read_is_refused(guarded: Head, tmp_path: Path) -> None:
    key = tmp_path / "client.key"
    shutil.copy(guarded.run.keys / "client.key", key)
    key.chmod(0o640)
    ended = dpsr_apex("actor", "--connect", "127.0.0.1:1", "--key", key)
    assert ended.returncode == 2
    assert ended.stderr == (
        f"dpsr-apex: {key} is open to other users of this machine, so it is no secret: chmod 600 {key}\n"
    )


def test_the_key_file_of_the_server_is_not_that_of_a_client(guarded: Head) -> None:
    key = guarded.run.keys / "server.key"
    ended = dpsr_apex("actor", "--connect", "127.0.0.1:1", "--key", key)
    assert (ended.returncode, ended.stderr) == (2, f"dpsr-apex: {key} is not the key file of a client\n")


def test_nobody_listens_for_others_without_keys(stack: ExitStack, tmp_path: Path) -> None:
    with pytest.raises(BindError, match="without keys"):
        Server("tcp://0.0.0.0:0")
    head = stack.enter_context(serving(tmp_path / "run"))
    address = head.address.endpoint.removeprefix("tcp://")
    ended = dpsr_apex("learner", "--connect", address, "--bind", "0.0.0.0:0")
    assert ended.returncode == 2
    assert ended.stderr.splitlines()[-1].startswith("dpsr-apex: cannot listen at tcp://0.0.0.0:0 without keys")


# The commands, each by hand.


@pytest.fixture
def gate(tmp_path: Path) -> Path:
    """The file that lets actors of `gated:Gated` run, in a folder where commands find that environment."""
    shutil.copy(Path(__file__).with_name("gated.py"), tmp_path)
    return tmp_path / "go"


def small_settings(*settings: str) -> list[str]:
    return [f"--set={setting}" for setting in (*SMALL, *settings)]


def write_gated_config(path: Path) -> Path:
    path.write_text(dump_config(load_config("cartpole", overrides=(*SMALL, "env.name=gated:Gated"))))
    return path


def test_a_run_can_be_put_together_by_hand(gate: Path, tmp_path: Path, stack: ExitStack) -> None:
    config, run = write_gated_config(tmp_path / "small.toml"), RunDirectory(tmp_path / "run")

    def start(name: str, *arguments: str | Path) -> Started:
        return stack.enter_context(started(tmp_path / name, *arguments, cwd=tmp_path))

    replay = start("replay", "replay", config, "--run-dir", run.path)
    address = replay.await_words(r"(?<=serving at tcp://)\S+")
    learner = start("learner", "learner", "--connect", address)
    nameless = start("nameless", "actor", "--connect", address)
    named = start("named", "actor", "--find", run.path, "--name", "by-hand")
    evaluator = start("evaluator", "evaluator", run.path)
    for name in ("learner", "by-hand", "evaluator", f"{socket.gethostname()}-{nameless.process.pid}"):
        replay.await_words(f"{name} joined")
    gate.touch()
    for command in (replay, learner, nameless, named, evaluator):
        assert command.wait() == 0, command.said
        assert "Traceback" not in command.said
    assert read_metrics(run.evaluations)[-1]["t"] == STEPS
    assert not run.connection.exists()
    assert_books_agree(assert_counters_add_up(run, STEPS), nameless.said, named.said)

    replay_again = ("replay", config, "--run-dir", run.path, "--resume")
    for words in (replay_again, ("learner", "--find", run.path), ("actor", "--find", run.path)):
        ended = dpsr_apex(*words, cwd=tmp_path)
        assert (ended.returncode, ended.stdout) == (0, f"{run.path} is finished\n")
    assert dpsr_apex("evaluator", run.path, cwd=tmp_path).returncode == 0
    assert len(read_metrics(run.evaluations)) == 1, "it was evaluated already"


class Books(NamedTuple):
    """What an actor says of its transitions when it leaves."""

    sent: int
    unsettled: int


def books_of(log: str) -> Books:
    (found,) = re.findall(r"(\d+) transitions sent, (\d+) of them not acknowledged", log)
    return Books(*map(int, found))


def assert_books_agree(traffic: dict[str, int], *logs: str) -> None:
    """All that was acknowledged to an actor was received, and nothing else than what an actor sent."""
    books = [books_of(log) for log in logs]
    sent = sum(book.sent for book in books)
    assert sent - sum(book.unsettled for book in books) <= traffic["received"] <= sent


def test_a_learner_asks_again_for_a_state_that_was_lost_on_its_way(tmp_path: Path, stack: ExitStack) -> None:
    server = stack.enter_context(closing(Server("tcp://127.0.0.1:0")))
    config = dump_config(load_config("cartpole", overrides=(*SMALL, "system.lease=2")))
    address = server.endpoint.removeprefix("tcp://")
    learner = stack.enter_context(started(tmp_path / "log", "learner", "--connect", address))
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
                replies = [Welcome(0, 0, -1, 1, 0, "", b""), *([LearnerState("", b"")] if joins > 1 else [])]
            case Heartbeat():
                replies = [Alive(0, 1, "", b"")]
            case SampleRequest():
                break
        for reply in replies:
            assert received is not None
            server.send(received.sender, encode(reply))
    assert joins == 2


# Two machines, and the cable between them.


@pytest.fixture
def two() -> Iterator[list[Machine]]:
    """That of the head, and another one."""
    with machines(2) as found:
        yield found


def stats_of(run: RunDirectory, two: list[Machine]) -> dict[str, Any]:
    """How things are, asked on the head's machine."""
    with living_on(two[0]):
        answer = ask(address_of(run), StatsRequest(), 2.0)
    assert isinstance(answer, Stats)
    facts: dict[str, Any] = json.loads(answer.facts)
    return facts


def await_stats(run: RunDirectory, two: list[Machine], holds: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    """The first stats for which this holds."""

    def good() -> dict[str, Any] | None:
        stats = stats_of(run, two)
        return stats if holds(stats) else None

    return eventually(good)


def sent_by(name: str) -> Callable[[dict[str, Any]], int]:
    """Transitions that this actor has sent; 0 if it is not in the run."""
    return lambda stats: sum(actor["sent"] for actor in stats["actors"] if actor["name"] == name)


CUT_SECONDS = 5.0
CUT_STEPS = CUT_SECONDS / STEP_SECONDS


@pytest.mark.slow
@pytest.mark.parametrize("lease", [3, pytest.param(30, marks=pytest.mark.thorough)])
def test_a_network_that_breaks_loses_nothing_that_was_acknowledged(
    two: list[Machine], gate: Path, tmp_path: Path, stack: ExitStack, lease: int
) -> None:
    steps = 6_000
    run = RunDirectory(tmp_path / "run")
    settings = small_settings(f"run.total_steps={steps}", "env.name=gated:Gated", f"system.lease={lease}")
    head = stack.enter_context(
        started(
            *(tmp_path / "head", "train", "cartpole", "--actors", "1", "--run-dir", run.path),
            *("--bind", f"{two[0].address}:5555", *settings),
            before=two[0].before,
            cwd=tmp_path,
        )
    )
    head.await_words(f"dpsr-apex actor --connect {two[0].address}:5555 --key {run.keys}/client.key")
    key = Path(shutil.copy2(run.keys / "client.key", tmp_path / "carried.key"))

    def far(name: str) -> Started:
        connect = ("--connect", f"{two[0].address}:5555", "--key", key, "--name", name)
        return stack.enter_context(started(tmp_path / name, "actor", *connect, before=two[1].before, cwd=tmp_path))

    staying = far("staying")
    await_stats(run, two, sent_by("staying"))
    late = far("late")
    before = await_stats(run, two, sent_by("late"))
    assert f"staying at {two[1].address} joined" in head.said

    two[1].cut()
    time.sleep(CUT_SECONDS)  # this is the fault itself, nothing is waited for
    if lease < CUT_SECONDS:
        await_stats(run, two, lambda stats: stats["traffic"]["expired_leases"] == 2)
    assert stats_of(run, two)["t"] > before["t"], "the actor beside the head goes on"
    two[1].heal()
    await_stats(run, two, lambda stats: sent_by("staying")(stats) > sent_by("staying")(before) + CUT_STEPS)
    await_stats(run, two, lambda stats: sent_by("late")(stats) > sent_by("late")(before) + CUT_STEPS)
    assert stats_of(run, two)["traffic"]["expired_leases"] == (2 if lease < CUT_SECONDS else 0)

    assert late.end(signal.SIGTERM) == 128 + signal.SIGTERM
    head.await_words(f"late at {two[1].address} left")
    assert books_of(late.said).unsettled == 0

    gate.touch()
    assert head.wait() == 0, head.said
    assert staying.wait() == 0, staying.said
    traffic = assert_counters_add_up(run, steps)
    assert_books_agree(traffic, staying.said, late.said, (run.logs / "actor-0.log").read_text())


@pytest.mark.thorough
@pytest.mark.slow
def test_the_learner_may_be_on_another_machine_than_the_replay(
    two: list[Machine], gate: Path, tmp_path: Path, stack: ExitStack
) -> None:
    config, run = write_gated_config(tmp_path / "small.toml"), RunDirectory(tmp_path / "run")

    def start(name: str, place: Machine, *arguments: str | Path) -> Started:
        return stack.enter_context(started(tmp_path / name, *arguments, before=place.before, cwd=tmp_path))

    replay = start("replay", two[0], "replay", config, "--run-dir", run.path, "--bind", "0.0.0.0:5555")
    replay.await_words("serving at")
    key = ("--key", run.keys / "client.key")
    near, far = ("--connect", "127.0.0.1:5555", *key), ("--connect", f"{two[0].address}:5555", *key)
    learner = start("learner", two[1], "learner", *far, "--bind", "0.0.0.0:5556")
    near_actor = start("near", two[0], "actor", *near, "--name", "near")
    far_actor = start("far", two[1], "actor", *far, "--name", "far")
    evaluator = start("evaluator", two[0], "evaluator", run.path, *near)
    for name in (f"learner at {two[1].address}", "near", f"far at {two[1].address}", "evaluator"):
        replay.await_words(f"{name} joined")
    gate.touch()
    for command in (replay, learner, near_actor, far_actor, evaluator):
        assert command.wait() == 0, command.said
        assert "WARNING" not in command.said
    assert_books_agree(assert_counters_add_up(run, STEPS), near_actor.said, far_actor.said)


# The recipes.


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_a_recipe_is_one(script: Path) -> None:
    subprocess.run(["bash", "-n", script], check=True)
    assert os.access(script, os.X_OK)


def test_the_recipe_for_this_machine_trains_with_many_processes(kitchen: Path, tmp_path: Path) -> None:
    run = RunDirectory(tmp_path / "run")
    recipe = kitchen / "launch/this_machine.sh"
    words = ["cartpole", "--actors", "1", "--run-dir", str(run.path), *small_settings("run.total_steps=500")]
    subprocess.run([recipe, *words], env=environment(kitchen), check=True, timeout=PATIENCE)
    assert_counters_add_up(run, 500)
    assert {log.name for log in run.logs.iterdir()} >= {"replay.log", "learner.log", "evaluator.log", "actor-0.log"}


def test_the_recipe_for_a_debugger_stops_where_a_round_is_opened(kitchen: Path, tmp_path: Path) -> None:
    recipe = kitchen / "launch/under_a_debugger.sh"
    ended = subprocess.run(
        [recipe, "--run-dir", tmp_path / "run", *small_settings()],
        env=environment(kitchen),
        input="p 'candidates', round_.candidates.size\np 'depth', len(self.rounds)\nq\n",
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert "-> self.rounds[number] = round_" in ended.stdout
    assert "('candidates', 4)" in ended.stdout
    assert "('depth', 0)" in ended.stdout


@pytest.mark.thorough
@pytest.mark.slow
def test_the_recipe_for_other_machines_brings_actors_into_the_run(
    kitchen: Path, tmp_path: Path, stack: ExitStack
) -> None:
    run = RunDirectory(tmp_path / "run")
    shutil.copy(Path(__file__).with_name("gated.py"), kitchen)
    arguments = ("train", "cartpole", "--actors", "1", "--run-dir", run.path, "--bind", "0.0.0.0:0")
    gated = small_settings("env.name=gated:Gated", "run.total_steps=6000")
    head = stack.enter_context(started(tmp_path / "head", *arguments, *gated, cwd=kitchen))
    head.await_words("With a copy of the key file, other machines join by")
    for host in ("east", "west"):
        command: list[str | Path] = [kitchen / "launch/other_machines.sh", run.path, "2", host]
        recipe = Started(tmp_path / host, command, environment=environment(kitchen, HEAD="127.0.0.1"))
        stack.callback(recipe.kill)
        for name in (f"{host}-1", f"{host}-2"):
            head.await_words(f"{name} joined")
            recipe.await_words(f"{name}: .* joined as actor")
        if host == "east":
            recipe.end()
            for name in ("east-1", "east-2"):
                head.await_words(f"{name} left")
    (kitchen / "go").touch()
    assert head.wait() == 0, head.said
    assert recipe.wait() == 0, recipe.said
    assert_counters_add_up(run, 6_000)


def test_the_recipe_for_other_machines_says_what_is_missing(kitchen: Path, tmp_path: Path) -> None:
    recipe = kitchen / "launch/other_machines.sh"
    run = tmp_path / "run"

    def complaint(*words: str | Path) -> str:
        ended = subprocess.run([recipe, *words], env=environment(kitchen), capture_output=True, text=True)
        assert ended.returncode == 2
        return ended.stderr

    assert complaint(run, "1") == f"usage: {recipe} RUN_DIR ACTORS HOST...\n"
    assert complaint(run, "1", "east") == f"{run} is not running\n"
    run.mkdir()
    (run / "connection.json").write_text('{"endpoint": "tcp://127.0.0.1:5555"}')
    assert complaint(run, "1", "east") == f"{run} is for this machine alone: start it with --bind 0.0.0.0:5555\n"
