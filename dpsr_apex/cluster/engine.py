"""Ray as the engine of a run: which nodes can take part, what room they have, and who goes where.

Every process of a run has a keeper, which is a Ray actor: Ray finds a place for it by the resources that it asks for,
and ends it when the process that started the run is gone. A keeper stays where it is when its process dies, and the
next life begins there; a keeper that is lost with its node is replaced by another one.
"""

from __future__ import annotations

import atexit
import contextlib
import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, NodeLabelSchedulingStrategy, NotIn

from dpsr_apex.cluster import ClusterError
from dpsr_apex.cluster.board import make_board
from dpsr_apex.cluster.connection import wants_token
from dpsr_apex.cluster.fitness import NodeFacts, Probe, look_around, why_unfit
from dpsr_apex.cluster.keeper import Origin, Place, Unfit
from dpsr_apex.cluster.life import PlacedKeeper, RayLife
from dpsr_apex.processes.discovery import Address, Whereabouts, follow_head
from dpsr_apex.run.lives import Life, Task
from dpsr_apex.run.run_directory import RunDirectory
from dpsr_apex.wire.keys import make_keys

ANSWER_SECONDS = 30.0  # for a node, which may have to start Python first
LOOK_SECONDS = 1.0  # between two looks at the nodes
FORMER_SECONDS = 120  # for the lock of a replay whose node is gone to be free: NFS holds it for up to 90

# Else Ray kills what a keeper has started together with it, and a replay could not save.
_KEEPER_ENVIRONMENT = {"env_vars": {"RAY_kill_child_processes_on_worker_exit": "0"}}


class Node(NamedTuple):
    """A node that is there."""

    host: str  # its address
    resources: dict[str, float]


class Demands(NamedTuple):
    """What the processes of a run ask for."""

    cpus_per_actor: float
    learner_cpus: int
    learner_gpus: float | None  # None: one, where the cluster has any


def room_for_actors(demands: Demands) -> int:
    """As many as there are CPUs, but for those of the replay, the evaluator and the learner."""
    cpus = ray.cluster_resources().get("CPU", 0) - 2 - demands.learner_cpus
    return max(int(cpus / demands.cpus_per_actor), 1)


class RayCluster:
    """Gives the processes of one run a place on the nodes of the cluster that this process is connected to."""

    def __init__(self, address: str, path: Path, demands: Demands) -> None:
        self.named = ("--cluster", address)
        self.former_seconds = float(FORMER_SECONDS)
        self.run = RunDirectory(path)
        self.unfit: dict[str, str] = {}  # why, by the id of a node
        self._demands = demands
        self._driver = ray.get_runtime_context().get_node_id()
        self._probe = Probe(path)
        self._probe.leave()
        atexit.register(self._probe.remove)  # however this process comes to its end
        self.origin = Origin(path, self._probe.word, look_around(path, self._probe.word), Path.cwd())
        self._keepers: dict[str, Any] = {}  # by the name of the process
        self._nodes: dict[str, Node] = {}  # by id
        self._free_now: dict[str, dict[str, float]] = {}  # resources by the id of a node
        self._counted = 0.0  # when that was looked up
        self.places: dict[str, Place] = {}  # by the name of a process, where it was last
        self._checks: dict[Any, Place] = {}  # nodes that have not answered yet, by what they were asked
        self._looked = 0.0
        self._news: list[str] = []
        self._lets_anybody_in = False
        self.board = make_board(self._driver)
        self._check_all()

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
        return follow_head(self.board, self.run.client_key)

    def invitation(self, head: Address) -> str:
        """For machines that see the run directory."""
        return f"Serving at {head.endpoint}. More actors join by\n  dpsr-apex actor --find {self.run.path}"

    def has_room(self, role: str) -> bool:
        """Whether one node has all that is asked for."""
        wanted = self._resources(role)
        return any(all(free.get(kind, 0) >= wanted[kind] for kind in wanted) for free in self._free().values())

    def in_the_way(self, role: str, actors: Sequence[str]) -> list[str]:
        """The fewest that leave enough CPUs on a node that has all else."""
        wanted = self._resources(role)
        best: list[str] = []
        for node, free in self._free().items():
            there = [name for name in actors if name in self.places and self.places[name].node == node]
            missing = math.ceil((wanted["CPU"] - free.get("CPU", 0)) / self._demands.cpus_per_actor)
            has_all_else = all(free.get(kind, 0) >= wanted[kind] for kind in wanted.keys() - {"CPU"})
            if has_all_else and 0 < missing <= len(there) and (not best or missing < len(best)):
                best = there[-missing:]
        return best

    def room(self) -> str:
        """How much there is on all nodes that are used, and how much is left."""
        kinds = ["CPU", *(["GPU"] if self._gpus else [])]
        free = {kind: sum(node.get(kind, 0) for node in self._free().values()) for kind in kinds}
        return " and ".join(f"{self._there(kind):g} {kind}s ({free[kind]:g} free)" for kind in kinds)

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
            wanted = self._resources(task.role)
            options = {
                "num_cpus": wanted["CPU"],
                "num_gpus": wanted.get("GPU", 0),
                "max_concurrency": 4,
                "runtime_env": _KEEPER_ENVIRONMENT,
                "scheduling_strategy": self._strategy(task.role),
            }
            kept = ray.remote(PlacedKeeper).options(**options)
            self._keepers[task.name] = kept.remote(self.origin, self.board)
        return self._keepers[task.name]

    def dismiss(self, task: Task, is_placed: bool) -> None:
        """Give the place of this process away, and end it if it is alive; nobody is waited for."""
        keeper = self._keepers.pop(task.name, None)
        if keeper is None:
            return
        if is_placed:
            keeper.end.remote()
        else:
            ray.kill(keeper)

    def refuse(self, unfit: Unfit) -> None:
        """Use a node no more, and say so once."""
        if unfit.place.node not in self.unfit:
            self.unfit[unfit.place.node] = unfit.why
            self._news.append(f"Node {unfit.place.host} is not used: {unfit.why}")

    def _free(self) -> dict[str, dict[str, float]]:
        """What is free on each node that is used, as it was a second ago at most."""
        if time.monotonic() - self._counted > LOOK_SECONDS:
            self._counted = time.monotonic()
            self._free_now = ray._private.state.available_resources_per_node()
        used = self._nodes.keys() - self.unfit.keys()
        return {node: free for node, free in self._free_now.items() if node in used}

    def _there(self, kind: str) -> float:
        """How much the nodes that are used have, free or not."""
        return sum(node.resources.get(kind, 0) for name, node in self._nodes.items() if name not in self.unfit)

    @property
    def _gpus(self) -> float:
        """Of the learner."""
        if self._demands.learner_gpus is not None:
            return self._demands.learner_gpus
        return 1 if self._there("GPU") >= 1 else 0

    def _resources(self, role: str) -> dict[str, float]:
        """What it asks for, by the names of Ray."""
        if role == "learner":
            return {"CPU": self._demands.learner_cpus, "GPU": self._gpus}
        return {"CPU": self._demands.cpus_per_actor if role == "actor" else 1}

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
        if any(place.node == self._driver for place in self._checks.values()):
            raise ClusterError(f"This machine's own node of the cluster does not answer within {ANSWER_SECONDS:.0f} s")
        if self._lets_anybody_in and wants_token():
            raise ClusterError(
                "Whoever reaches this Ray cluster can run anything on it, since it asks for no token: start it with "
                "RAY_AUTH_MODE=token (docs/cluster.md), or say RAY_AUTH_MODE=disabled to use it as it is"
            )
        if not self._nodes.keys() - self.unfit.keys():
            raise ClusterError(f"No node of the cluster can take part: {next(iter(self.unfit.values()))}")

    def _look_at_nodes(self) -> None:
        """See who came and went, and ask those that are new what they have."""
        self._looked = time.monotonic()
        alive = {
            node["NodeID"]: Node(node["NodeManagerAddress"], node["Resources"]) for node in ray.nodes() if node["Alive"]
        }
        came, left = alive.keys() - self._nodes.keys(), self._nodes.keys() - alive.keys()
        self._news += [f"Node {self._nodes[node].host} has left the cluster" for node in left]
        if self._nodes:  # those of the beginning are no news
            self._news += [f"Node {alive[node].host} has joined the cluster" for node in came]
        for node in came:
            strategy = NodeAffinitySchedulingStrategy(node, soft=False)
            check = ray.remote(look_around).options(num_cpus=0, scheduling_strategy=strategy, max_retries=0)
            self._checks[check.remote(self.run.path, self._probe.word)] = Place(node, alive[node].host)
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
