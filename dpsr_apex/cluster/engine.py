"""Ray as the engine of a run. The one module that knows Ray.

Every process of a run has a keeper, which is a Ray actor: Ray finds a place for it by the resources that it asks for,
and ends it when the process that started the run is gone. A keeper stays where it is when its process dies, and the
next life begins there; a keeper that is lost with its node is replaced by another one.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import time
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("RAY_AUTH_MODE", "token")  # who wants a cluster that is open to all must say so

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, NodeLabelSchedulingStrategy, NotIn

from dpsr_apex.cluster import ClusterError
from dpsr_apex.cluster.fitness import NodeFacts, Probe, look_around, why_unfit
from dpsr_apex.cluster.keeper import Keeper, MemoryBoard, Origin, Outcome, Place, Unfit
from dpsr_apex.processes.discovery import Address, Board, Notice, Whereabouts, find_head
from dpsr_apex.run.lives import Ended, Life, Task
from dpsr_apex.run.run_directory import RunDirectory
from dpsr_apex.wire.keys import make_keys

CONNECT_SECONDS = 5.0
ANSWER_SECONDS = 30.0  # for a node, which may have to start Python first
LOOK_SECONDS = 1.0  # between two looks at the nodes
FORMER_SECONDS = 120  # for the lock of a replay whose node is gone to be free: NFS holds it for up to 90
LOST = -signal.SIGKILL  # as an exit code, of a process whose keeper is gone

# Else Ray kills what a keeper has started together with it, and a replay could not save.
_KEEPER_ENVIRONMENT = {"env_vars": {"RAY_kill_child_processes_on_worker_exit": "0"}}


_KINDS = {"num_cpus": "CPU", "num_gpus": "GPU"}  # what Ray calls a resource when it is asked for, and when it is there


class Room(NamedTuple):
    """How much of a resource a cluster has."""

    kind: str
    there: float
    free: float

    def __str__(self) -> str:
        return f"{self.there:g} {self.kind}s ({self.free:g} free)"


class Demands(NamedTuple):
    """What the processes of a run ask for."""

    cpus_per_actor: float
    learner_cpus: int
    learner_gpus: float | None  # None: one, where the cluster has any


def connect(address: str) -> None:
    """Become a client of the cluster at HOST:PORT, or of the one that this machine is in ("auto")."""
    if address != "auto":
        _ensure_listening(address)
    # Ray prints all that it hears of nodes, whatever it is told, in many lines. Here that is said in one, by the run.
    ray._private.worker.print_to_stdstream = lambda *_, **__: None
    try:
        ray.init(address, namespace="dpsr_apex", log_to_driver=False, logging_level=logging.ERROR)
    except RayError as error:
        raise ClusterError(_why_denied(str(error))) from error
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise ClusterError(_why_unreachable(address, str(error))) from error


def room_for_actors(demands: Demands) -> int:
    """As many as there are CPUs, but for those of the replay, the evaluator and the learner."""
    cpus = ray.cluster_resources().get("CPU", 0) - 2 - demands.learner_cpus
    return max(int(cpus / demands.cpus_per_actor), 1)


def _ensure_listening(address: str) -> None:
    """Ray itself would try for minutes."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        raise ClusterError(f"--cluster {address}: write auto, or HOST:PORT of its head, such as 10.0.0.1:6379")
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS).close()
    except OSError as error:
        raise ClusterError(_why_unreachable(address, str(error))) from error


def _why_unreachable(address: str, error: str) -> str:
    where = "on this machine" if address == "auto" else f"at {address}"
    first = error.strip().partition("\n")[0].partition(". ")[0]
    return (
        f"There is no Ray cluster {where} that lets this machine in ({first}). Start one by `ray start --head`, have "
        "this machine join it by `ray start --address HOST:6379`, and have the same token on both (docs/cluster.md)"
    )


def _why_denied(error: str) -> str:
    return (
        f"{error.strip().partition('.')[0]}. Copy ~/.ray/auth_token from the cluster's head, or make one for a new "
        "cluster by `ray get-auth-token --generate`"
    )


class RayBoard:
    """A board that every node reaches through Ray; OSError when it does not answer."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor

    def publish(self, notice: Notice) -> None:
        """From now on this is the head."""
        self._ask(self._actor.publish.remote(notice))

    def look_up(self) -> Notice | None:
        """The newest notice."""
        found: Notice | None = self._ask(self._actor.look_up.remote())
        return found

    def withdraw(self) -> None:
        """There is no head any more."""
        self._ask(self._actor.withdraw.remote())

    def _ask(self, answer: Any) -> Any:
        try:
            return ray.get(answer, timeout=ANSWER_SECONDS)
        except RayError as error:
            raise OSError(f"the board of the cluster does not answer: {error}") from error

    def __str__(self) -> str:
        return "the cluster"


class RayCluster:
    """Gives the processes of one run a place on the nodes of the cluster that this process is connected to."""

    def __init__(self, address: str, path: Path, demands: Demands) -> None:
        self.named = ("--cluster", address)
        self.run = RunDirectory(path)
        self.unfit: dict[str, str] = {}  # why, by the id of a node
        self._demands = demands
        self._driver = ray.get_runtime_context().get_node_id()
        self._probe = Probe(path)
        self._probe.leave()
        self.origin = Origin(path, self._probe.word, look_around(path, self._probe.word), Path.cwd())
        self._keepers: dict[str, Any] = {}  # by the name of the process
        self._nodes: dict[str, str] = {}  # address by id, of those that are there
        self._checks: dict[Any, Place] = {}  # nodes that have not answered yet, by what they were asked
        self._looked = 0.0
        self._news: list[str] = []
        self._lets_anybody_in = False
        here = NodeAffinitySchedulingStrategy(self._driver, soft=False)
        self.board: Board = RayBoard(ray.remote(MemoryBoard).options(num_cpus=0, scheduling_strategy=here).remote())
        try:
            self._check_all()
        except ClusterError:
            self._probe.remove()
            raise

    def options(self, role: str, actors: int) -> list[str]:  # noqa: ARG002 -- nodes have room for what was asked for
        """Where to listen and to connect the keepers know."""
        if role == "replay":
            return ["--former-seconds", str(FORMER_SECONDS)]
        return ["--threads", str(self._demands.learner_cpus)] if role == "learner" else []

    def begin(self, task: Task) -> Life:
        """Have a keeper run it as soon as there is room for one."""
        return RayLife(self, task)

    def find_head(self) -> Whereabouts | None:
        """Where the replay is, by the board."""
        key = self.run.client_key
        found = find_head(self.board, key)
        return Whereabouts(found.address, lambda: find_head(self.board, key)) if found else None

    def invitation(self, head: Address) -> str:
        """For machines that see the run directory."""
        return f"Serving at {head.endpoint}. More actors join by\n  dpsr-apex actor --find {self.run.path}"

    def has_room(self, role: str) -> bool:
        """Whether so much is free in all; it may be in pieces, on several nodes."""
        return all(self._room_of(_KINDS[kind]).free >= wanted for kind, wanted in self._resources(role).items())

    def room(self) -> str:
        """How much there is on all nodes that are used, and how much is left."""
        kinds = ["CPU", *(["GPU"] if self._gpus else [])]
        return " and ".join(str(self._room_of(kind)) for kind in kinds)

    def news(self) -> list[str]:
        """Nodes that came, left or cannot be used since the last call."""
        if time.monotonic() - self._looked > LOOK_SECONDS:
            self._look_at_nodes()
            self._judge_those_that_answered(0)
        news, self._news = self._news, []
        return news

    def withdraw(self) -> None:
        """No head is published."""
        with contextlib.suppress(OSError):
            self.board.withdraw()
        self.run.connection.unlink(missing_ok=True)

    def close(self) -> None:
        """Leave the cluster; what is left there ends."""
        self.withdraw()
        self._probe.remove()
        ray.shutdown()

    def keeper(self, task: Task) -> Any:
        """The one that this process had, or a new one, which waits for room."""
        if task.name not in self._keepers:
            if task.role == "replay":
                make_keys(self.run.keys)  # before anybody looks for them: a shared folder may be behind
            options = self._resources(task.role) | {
                "max_concurrency": 4,
                "runtime_env": _KEEPER_ENVIRONMENT,
                "scheduling_strategy": self._strategy(task.role),
            }
            kept = ray.remote(PlacedKeeper).options(**options)
            self._keepers[task.name] = kept.remote(self.origin, self.board)
        return self._keepers[task.name]

    def dismiss(self, task: Task) -> None:
        """Give the place of this process away."""
        if keeper := self._keepers.pop(task.name, None):
            ray.kill(keeper)

    def refuse(self, unfit: Unfit) -> None:
        """Use a node no more, and say so once."""
        if unfit.place.node not in self.unfit:
            self.unfit[unfit.place.node] = unfit.why
            self._news.append(f"Node {unfit.place.host} is not used: {unfit.why}")

    def _room_of(self, kind: str) -> Room:
        """Nodes that are not used are taken to be idle: Ray only says how much is free in all."""
        nodes = {node["NodeID"]: node["Resources"].get(kind, 0) for node in ray.nodes() if node["Alive"]}
        not_used = sum(nodes.get(node, 0) for node in self.unfit)
        free = ray.available_resources().get(kind, 0) - not_used
        return Room(kind, sum(nodes.values()) - not_used, max(free, 0))

    @property
    def _gpus(self) -> float:
        """Of the learner."""
        if self._demands.learner_gpus is not None:
            return self._demands.learner_gpus
        return 1 if ray.cluster_resources().get("GPU", 0) >= 1 else 0

    def _resources(self, role: str) -> dict[str, float]:
        if role == "learner":
            return {"num_cpus": self._demands.learner_cpus, "num_gpus": self._gpus}
        return {"num_cpus": self._demands.cpus_per_actor if role == "actor" else 1}

    def _strategy(self, role: str) -> Any:
        """Actors are spread over the nodes; others go where the run was started if they can: batches are large."""
        if self.unfit:
            return NodeLabelSchedulingStrategy(hard={"ray.io/node-id": NotIn(*self.unfit)})
        if role == "actor":
            return "SPREAD"
        return NodeAffinitySchedulingStrategy(self._driver, soft=True, _spill_on_unavailable=True)

    def _check_all(self) -> None:
        """See which nodes can take part; ClusterError if none can, or if the cluster is open to everybody."""
        self._look_at_nodes()
        deadline = time.monotonic() + ANSWER_SECONDS
        while self._checks and time.monotonic() < deadline:
            self._judge_those_that_answered(1.0)
        if self._lets_anybody_in and os.environ["RAY_AUTH_MODE"].lower() == "token":
            raise ClusterError(
                "Whoever reaches this Ray cluster can run anything on it, since it asks for no token: start it with "
                "RAY_AUTH_MODE=token (docs/cluster.md), or say RAY_AUTH_MODE=disabled to use it as it is"
            )
        if not self._nodes.keys() - self.unfit.keys():
            raise ClusterError(f"No node of the cluster can take part: {next(iter(self.unfit.values()))}")

    def _look_at_nodes(self) -> None:
        """See who came and went, and ask those that are new what they have."""
        self._looked = time.monotonic()
        alive = {node["NodeID"]: node["NodeManagerAddress"] for node in ray.nodes() if node["Alive"]}
        came, left = alive.keys() - self._nodes.keys(), self._nodes.keys() - alive.keys()
        self._news += [f"Node {self._nodes[node]} has left the cluster" for node in left]
        if self._nodes:  # those of the beginning are no news
            self._news += [f"Node {alive[node]} has joined the cluster" for node in came]
        for node in came:
            strategy = NodeAffinitySchedulingStrategy(node, soft=False)
            check = ray.remote(look_around).options(num_cpus=0, scheduling_strategy=strategy, max_retries=0)
            self._checks[check.remote(self.run.path, self._probe.word)] = Place(node, alive[node])
        self._nodes = alive

    def _judge_those_that_answered(self, seconds: float) -> None:
        """Within so many seconds."""
        if self._checks:
            for check in ray.wait(list(self._checks), timeout=seconds)[0]:
                self._judge(self._checks.pop(check), check)

    def _judge(self, place: Place, check: Any) -> None:
        """Whether a node can take part, from its answer; one that has left meanwhile is not judged."""
        try:
            facts: NodeFacts = ray.get(check)
        except RayError as error:
            why = f"dpsr_apex cannot be used there: {str(error).strip().splitlines()[-1]}"
        else:
            why = why_unfit(self.origin.facts, facts, self.run.path)
            self._lets_anybody_in |= not facts.asks_for_token
        if why and place.node in self._nodes:
            self.refuse(Unfit(place, why))


class PlacedKeeper(Keeper):
    """A keeper as a Ray actor: Ray tells it where it is."""

    def __init__(self, origin: Origin, board: Board) -> None:
        place = Place(ray.get_runtime_context().get_node_id(), ray.util.get_node_ip_address())
        super().__init__(place, origin, board)


class RayLife:
    """A process that a keeper runs on some node."""

    def __init__(self, cluster: RayCluster, task: Task) -> None:
        self._cluster = cluster
        self._task = task
        self._last_words = ""
        self._ended: Ended | None = None
        self._find_place()

    @property
    def has_place(self) -> bool:
        """Whether its keeper has."""
        return bool(ray.wait([self._place], timeout=0)[0])

    def poll(self) -> Ended | None:
        """How it ended; None while it lives or waits for a place."""
        if self._ended is None and ray.wait([self._outcome], timeout=0)[0]:
            self._take_outcome()
        return self._ended

    def signal(self, number: signal.Signals) -> None:
        """Send a signal, if it is alive; one that waits for a place does not wait any longer."""
        if self.poll() is not None:
            return
        if self.has_place:
            self._keeper.signal.remote(int(number))
        else:
            self._cluster.dismiss(self._task)

    def kill(self) -> None:
        """End it at once, if it is alive, and give its place away."""
        if self.poll() is None and self.has_place:
            with contextlib.suppress(RayError):
                ray.get(self._keeper.kill.remote(), timeout=CONNECT_SECONDS)
        self._cluster.dismiss(self._task)

    def last_words(self) -> str:
        """What its keeper says that they were."""
        return self._last_words

    def _find_place(self) -> None:
        self._began = time.monotonic()
        self._keeper = self._cluster.keeper(self._task)
        self._place = self._keeper.place.remote()
        self._outcome = self._keeper.keep.remote(self._task)

    def _take_outcome(self) -> None:
        try:
            outcome: Outcome | Unfit = ray.get(self._outcome)
        except RayError:
            self._cluster.dismiss(self._task)
            self._ended = Ended(LOST, f"was lost{self._where}", time.monotonic() - self._began, is_lost=True)
            return
        if isinstance(outcome, Unfit):
            self._cluster.refuse(outcome)
            self._cluster.dismiss(self._task)
            self._find_place()
            return
        self._ended, self._last_words = outcome
        if self._ended.code == 0:
            self._cluster.dismiss(self._task)

    @property
    def _where(self) -> str:
        with contextlib.suppress(RayError):
            place: Place = ray.get(self._place, timeout=0)
            return f" with its place at {place.host}"
        return ""
