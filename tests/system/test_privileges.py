"""Who can do what to a run: every cell of the table in docs/security.md, with real processes and sockets.

A deed is attempted with one key, and whether it was done is judged by what others see: the owner's statistics, what a
later learner receives, or the data that the attacker got.
"""

from __future__ import annotations

import io
import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, nullcontext, redirect_stderr, redirect_stdout
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import zmq
from zmq.utils.monitor import recv_monitor_message

from dpsr_apex import cli
from dpsr_apex.processes.link import request_to_join
from dpsr_apex.processes.weights import pack_weights
from dpsr_apex.record.run_directory import LOCK, REPLAY_LOCK
from dpsr_apex.wire.addresses import port_of
from dpsr_apex.wire.codec import decode, encode
from dpsr_apex.wire.keys import Keys, load_keys, new_keys
from dpsr_apex.wire.messages import (
    ACTOR,
    EVALUATOR,
    LEARNER,
    OWNER,
    SERVER,
    Alive,
    Batch,
    Chunk,
    Gone,
    Heartbeat,
    Hello,
    Join,
    LearnerState,
    Learning,
    Leave,
    Message,
    Priorities,
    Recycled,
    SampleRequest,
    SetActors,
    SetRate,
    Stats,
    StatsRequest,
    Stored,
    StoredRequest,
    Terms,
    Weights,
    WeightsRequest,
    Welcome,
)
from dpsr_apex.wire.sockets import ClientSocket, wait
from tests.system.machines import Machine, machines, sockets_on
from tests.system.members import Head, Member, Started, SyntheticLearner, Visitor, serving, started
from tests.system.runs import PATIENCE, eventually
from tests.unit.wire.examples import walk

TABLE = Path(__file__).parents[2] / "docs" / "security.md"
CHUNK = 50  # transitions
NOTHING, NOBODY = np.zeros(0), np.zeros(0, dtype=np.int64)
NAMES = (f"attacker-{number}" for number in count())


class Cell(NamedTuple):
    deed: str
    key: str  # the role, or "stranger"
    is_allowed: bool

    def __str__(self) -> str:
        return f"{self.key}: {self.deed}"


def cells() -> Iterator[Cell]:
    """Yield the cells of the table in docs/security.md."""
    lines = re.findall(r"^\| (.*) \|$", TABLE.read_text(), re.MULTILINE)
    _, *columns = (column.strip().removesuffix("'s key") for column in lines[0].split("|"))
    for line in lines[2:]:
        deed, *marks = (cell.strip() for cell in line.split("|"))
        for key, mark in zip(columns, marks, strict=True):
            yield Cell(deed, key, {"yes": True, "no": False}[mark])


CELLS = list(cells())


class Site(NamedTuple):
    """The head of a run without a learner, another one with a real learner, and the machines that they are on."""

    head: Head
    bystander: Member  # of that run
    learning: Head
    learner: Started
    weights_port: int
    two: list[Machine]  # of the servers, and another one; empty if namespaces are not allowed

    @property
    def port(self) -> int:
        return port_of(self.bystander.address.endpoint)

    @contextmanager
    def at(self, place: str) -> Iterator[str]:
        """Inside the block, sockets are made at this place; yield the host at which it reaches the servers."""
        if place == "network" and not self.two:
            pytest.skip("other machines are network namespaces, which are not allowed here")
        machine = sockets_on(self.two[place == "network"]) if self.two else nullcontext()
        with machine:
            yield self.two[0].address if place == "network" else "127.0.0.1"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("privileges")
    with ExitStack() as stack:
        try:
            two = stack.enter_context(machines(2))
        except pytest.skip.Exception:
            two = []
        before, bind = (two[0].before, "0.0.0.0:0") if two else ([], "127.0.0.1:0")
        head, learning = (
            stack.enter_context(serving(folder / name, bind=bind, before=before)) for name in ("run", "learning")
        )
        arguments = ("--find", learning.run.path, "--bind", bind, "--threads", "1")
        learner = stack.enter_context(started(folder / "learner", "learner", *arguments, before=before))
        machine = sockets_on(two[0]) if two else nullcontext()
        with machine, closing(Member(head.run, ACTOR, "bystander", environment="")) as bystander:
            bystander.say(chunk(), chunk(1))
            eventually(lambda: learning.stats().learner)
            with closing(Member(learning.run, ACTOR, "asker", environment="")) as asker:
                port = port_of(asker.welcome.weights_endpoint)
                asker.leave()
            yield Site(head, bystander, learning, learner, port, two)


def chunk(sequence: int = 0) -> Chunk:
    return Chunk(sequence, walk(CHUNK, stack=1), None, NOTHING, NOBODY, 0.0)


class Scene:
    """An attempt at a deed: the attacker and the owner of the run, both at one place."""

    def __init__(self, site: Site, host: str, role: str, stack: ExitStack) -> None:
        self.site = site
        self.host = host
        self.role = role
        self.run = site.head.run
        self.attacker = stack.enter_context(closing(Visitor(self.run, role, host)))
        self.owner = stack.enter_context(closing(Visitor(self.run, OWNER, host)))

    def join_as(self, role: str) -> Join:
        return request_to_join(self.run.identity.read_text(), role, next(NAMES), "")

    def enter(self) -> None:
        """Join in the attacker's own role, if it is one of a member."""
        if self.role != OWNER:
            self.attacker.send(self.join_as(self.role))
            self.attacker.await_one(Welcome)

    def stats(self) -> Stats:
        (found,) = self.owner.say(StatsRequest())
        assert isinstance(found, Stats)
        return found

    def restore(self) -> None:
        """Undo what can be undone."""
        self.attacker.say(Leave(0))
        self.owner.say(SetRate(0), SetActors(1))
        self.site.bystander.say(self.site.bystander.request)


def reads_the_config(scene: Scene) -> bool:
    scene.attacker.send(Hello())
    return "[replay]" in scene.attacker.await_one(Terms).config


def joins_as(role: str) -> Callable[[Scene], bool]:
    def joins(scene: Scene) -> bool:
        before = scene.stats().traffic.joins
        replies = scene.attacker.say(scene.join_as(role))
        has_joined = scene.stats().traffic.joins > before
        has_state = any(isinstance(reply, LearnerState) for reply in replies)
        assert has_state == (has_joined and role == LEARNER)
        return has_joined

    return joins


def adds_transitions(scene: Scene) -> bool:
    scene.enter()
    before = scene.stats()
    scene.attacker.say(chunk())
    return scene.stats().t > before.t


def answers_a_recycling_request(scene: Scene) -> bool:
    scene.enter()
    before = scene.stats().traffic.stale_eras
    made, of_chains = walk(1, stack=1), np.ones(1, dtype=np.int64)
    scene.attacker.say(Recycled(0, 0, of_chains, of_chains, np.zeros(1), made, np.ones(1), NOBODY, []))
    return scene.stats().traffic.stale_eras > before


def receives_batches(scene: Scene) -> bool:
    scene.enter()
    return any(isinstance(reply, Batch) for reply in scene.attacker.say(SampleRequest()))


def sends_priorities_and_reports(scene: Scene) -> bool:
    scene.enter()
    before = scene.stats()
    report = Learning(0, 0, float(before.traffic.joins), 0.0, 0.0, 0.0)
    scene.attacker.say(Priorities(before.era, np.zeros(1, dtype=np.int64), np.ones(1)), report)
    after = scene.stats()
    is_reported = after.learner is not None and after.learner.report == report
    assert is_reported == (after.replay != before.replay)
    return is_reported


def sends_a_state(scene: Scene) -> bool:
    scene.enter()
    state = SyntheticLearner.STATE._replace(arrays=pack_weights({"number": np.full(1, float(id(scene)))}))
    scene.attacker.say(state)
    scene.attacker.say(Leave(0))
    with closing(Visitor(scene.run, LEARNER, scene.host)) as learner:
        learner.send(scene.join_as(LEARNER))
        received = learner.await_one(LearnerState)
        learner.say(Leave(0))
    return received == state


def receives_weights(scene: Scene) -> bool:
    site, keys = scene.site, load_keys(scene.site.learning.run.key_of(scene.role), scene.role)
    with closing(ClientSocket(f"tcp://{scene.host}:{site.weights_port}", keys, LEARNER)) as client:
        denied = rf"denied a client at \S+: it has the {scene.role}'s key"
        answer = eventually(lambda: asked_for_weights(client) or re.search(denied, site.learner.said))
        return isinstance(answer, Weights) and bool(answer.online)


def asked_for_weights(client: ClientSocket) -> Message | None:
    """Return the answer to a request for weights; None if there is none yet."""
    client.send(encode(WeightsRequest(-1, -1)))
    wait([client], 0.1)
    return decode(frames) if (frames := client.receive()) else None


def gets(question: Message, kind: type[Message]) -> Callable[[Scene], bool]:
    def asks(scene: Scene) -> bool:
        scene.enter()
        return any(isinstance(reply, kind) for reply in scene.attacker.say(question))

    return asks


def changes(message: Message, wanted: Callable[[Stats], bool]) -> Callable[[Scene], bool]:
    def tries(scene: Scene) -> bool:
        scene.enter()
        assert not wanted(scene.stats())
        scene.attacker.say(message)
        return wanted(scene.stats())

    return tries


DEEDS: dict[str, Callable[[Scene], bool]] = {
    "read the config of the run": reads_the_config,
    "join as an actor": joins_as(ACTOR),
    "add transitions": adds_transitions,
    "answer recycling requests": answers_a_recycling_request,
    "join as the evaluator": joins_as(EVALUATOR),
    "join as the learner, and receive its state": joins_as(LEARNER),
    "receive batches": receives_batches,
    "send priorities and reports of the learner": sends_priorities_and_reports,
    "send a state of the learner": sends_a_state,
    "receive weights from the learner": receives_weights,
    "read statistics": gets(StatsRequest(), Stats),
    "read stored transitions": gets(StoredRequest(NOBODY), Stored),
    "set the rate": changes(SetRate(77), lambda stats: stats.rate.steps_per_update == 77),
    "set the number of actors": changes(SetActors(10), lambda stats: stats.planned_actors == 10),
    "end the membership of another process": changes(
        Gone("bystander"), lambda stats: "bystander" not in [actor.name for actor in stats.actors]
    ),
}

PLACES = pytest.mark.parametrize("place", ["loopback", "network"])


def test_the_table_names_every_deed() -> None:
    assert [cell.deed for cell in CELLS if cell.key == "stranger"] == list(DEEDS)


@PLACES
@pytest.mark.parametrize("cell", [cell for cell in CELLS if cell.key != "stranger"], ids=str)
def test_a_key_permits_what_the_table_says(site: Site, place: str, cell: Cell) -> None:
    with site.at(place) as host, ExitStack() as stack:
        scene = Scene(site, host, cell.key, stack)
        try:
            assert DEEDS[cell.deed](scene) is cell.is_allowed
        finally:
            scene.restore()


# Strangers.


def without_a_key(_right: Keys) -> Keys | None:
    return None


def of_another_run(right: Keys) -> Keys:
    other = new_keys()[right.role]
    return replace(other, public={**right.public, right.role: other.public[right.role]})


def with_a_stolen_public_key(right: Keys) -> Keys:
    return replace(right, secret=new_keys()[right.role].secret)


def of_another_server(right: Keys) -> Keys:
    return replace(right, public={**new_keys()[right.role].public, right.role: right.public[right.role]})


STRANGERS = (without_a_key, of_another_run, with_a_stolen_public_key, of_another_server)


def test_the_table_allows_nothing_to_strangers() -> None:
    assert not any(cell.is_allowed for cell in CELLS if cell.key == "stranger")


@PLACES
@pytest.mark.parametrize("spoil", STRANGERS)
@pytest.mark.parametrize("server", [SERVER, LEARNER])
def test_a_stranger_does_not_even_complete_a_handshake(
    site: Site, place: str, spoil: Callable[[Keys], Keys | None], server: str
) -> None:
    """So it can send no message, and every cell of its column is tested at once."""
    run, port = (site.head.run, site.port) if server == SERVER else (site.learning.run, site.weights_port)
    right = load_keys(run.key_of(ACTOR), ACTOR)
    with site.at(place) as host:
        assert completes_handshake(f"tcp://{host}:{port}", right, server)
        assert not completes_handshake(f"tcp://{host}:{port}", spoil(right), server)


def completes_handshake(endpoint: str, keys: Keys | None, server: str) -> bool:
    """Whether a server accepts a client with these keys, as the client itself sees it."""
    with zmq.Context() as context, context.socket(zmq.DEALER) as client:
        client.linger = 0
        if keys:
            client.curve_serverkey = keys.public[server]
            client.curve_publickey, client.curve_secretkey = keys.public[keys.role], keys.secret
        with client.get_monitor_socket() as monitor:
            client.connect(endpoint)
            ends = zmq.EVENT_DISCONNECTED | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL | zmq.EVENT_HANDSHAKE_FAILED_AUTH
            while True:
                assert monitor.poll(int(1_000 * PATIENCE))
                event = recv_monitor_message(monitor)["event"]
                if event & (ends | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_SUCCEEDED):
                    return bool(event == zmq.EVENT_HANDSHAKE_SUCCEEDED)


# Another user of this machine.


def as_nobody(attack: Callable[[], object]) -> str:
    """Return what the attack has returned or raised, in a forked process of the user nobody, as text."""
    if os.getuid() != 0:
        pytest.skip("only root can become another user")
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setgid(65_534)
            os.setuid(65_534)
            try:
                answer = repr(attack())
            except BaseException as error:
                answer = f"{type(error).__name__}: {error}"
            os.write(write, answer.encode())
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as stream:
        answer = stream.read().decode()
    os.waitpid(child, 0)
    return answer


@pytest.fixture(scope="module")
def public_head() -> Iterator[Head]:
    """A head whose run directory other users can enter, as in a shared folder."""
    folder = Path(tempfile.mkdtemp(prefix="dpsr_apex-"))
    folder.chmod(0o755)
    try:
        with serving(folder / "run") as head:
            yield head
    finally:
        shutil.rmtree(folder)


def test_another_user_finds_no_key_and_cannot_hold_a_lock(public_head: Head) -> None:
    run = public_head.run
    secret = [run.keys, *run.keys.iterdir(), run.path / LOCK, run.path / REPLAY_LOCK]

    def attack() -> list[str]:
        return [path.name for path in secret if os.access(path, os.R_OK) or os.access(path, os.W_OK)]

    assert as_nobody(attack) == "[]"
    assert as_nobody(lambda: run.connection.read_text()).startswith("'{"), "it can enter the folder"


@pytest.mark.parametrize("words", [["watch"], ["rate", "--steps-per-update", "7"], ["scale", "--actors", "10"]])
def test_a_command_of_another_user_names_the_key_that_it_lacks(public_head: Head, words: list[str]) -> None:
    command, *options = words
    cli.main([command, str(public_head.run.path / "nothing"), *options])  # loads what nobody is not allowed to read
    said = io.StringIO()

    def attack() -> tuple[int, str]:
        with redirect_stderr(said), redirect_stdout(io.StringIO()):
            return cli.main([command, str(public_head.run.path), *options]), said.getvalue()

    before = public_head.stats()
    answer = as_nobody(attack)
    assert answer.startswith(f"(2, 'dpsr-apex: {public_head.run.key_of(OWNER)} cannot be read: Permission denied")
    after = public_head.stats()
    assert (after.rate.steps_per_update, after.planned_actors) == (before.rate.steps_per_update, before.planned_actors)


def test_another_user_cannot_take_the_seat_of_the_learner(public_head: Head) -> None:
    endpoint = public_head.address(OWNER).endpoint
    # Made here, because nobody may be unable to read the package.
    join = request_to_join(public_head.run.identity.read_text(), LEARNER, "learner", "")

    def attack() -> bool:
        with closing(ClientSocket(endpoint, None)) as client:
            deadline = time.monotonic() + 1.0
            while time.monotonic() < deadline:
                for message in (SetActors(10), Gone("learner"), join):
                    if client.send(encode(message)) or client.receive():
                        return True
                wait([client], 0.05)
        return False

    with closing(SyntheticLearner(public_head.run)) as learner:
        assert as_nobody(attack) == "False"
        assert isinstance(learner.say(Heartbeat(0))[-1], Alive)
        assert learner.stats().planned_actors == 1
        learner.leave()
