"""Ray as the engine of a run: which nodes are usable, which resources they have, and where each process runs.

Every process of a run has a runner, which is a Ray actor: Ray places it by the resources that it requests, and ends it
when the process that started the run has ended. A runner stays on its node when its process crashes, and the next
process of that name is started there; a runner that is lost with its node is replaced by a new one.
"""

from __future__ import annotations

import atexit
import contextlib
import math
import time
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Any, NamedTuple

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, NodeLabelSchedulingStrategy, NotIn

from dpsr_apex import timeouts
from dpsr_apex.processes.discovery import Address, HeadLocator, follow_head
from dpsr_apex.protocol.instructions import Resources
from dpsr_apex.record.run_directory import RunDirectory
from dpsr_apex.supervise.managed import ManagedProcess, Task
from dpsr_apex.supervise.ray import ClusterError
from dpsr_apex.supervise.ray.node_check import NodeFacts, Probe, inspect_node, wants_token, why_unusable
from dpsr_apex.supervise.ray.node_runner import NodeRef, Origin, UnusableNode
from dpsr_apex.supervise.ray.ray_process import RayNodeRunner, RayProcess
from dpsr_apex.supervise.ray.registry import make_registry
from dpsr_apex.wire.keys import make_keys
from dpsr_apex.wire.messages import OWNER

# Otherwise Ray kills the child processes of a runner together with the runner, and a replay could not save.
_RUNNER_ENVIRONMENT = {"env_vars": {"RAY_kill_child_processes_on_worker_exit": "0"}}


class Node(NamedTuple):
    """A live node of the cluster."""

    host: str  # its address
    resources: dict[str, float]  # total, by Ray's names


class Demands(NamedTuple):
    """The resources that the processes of a run request."""

    cpus_per_actor: float
    learner_cpus: int
    learner_gpus: float | None  # None: one if the cluster has any


def default_actors(demands: Demands) -> int:
    """Return the number of actors that fit on the CPUs left by the replay, the evaluator and the learner."""
    cpus = ray.cluster_resources().get("CPU", 0) - 2 - demands.learner_cpus
    return max(int(cpus / demands.cpus_per_actor), 1)


class RayCluster:
    """Starts the processes of one run on the nodes of the cluster that this process is connected to."""

    def __init__(self, address: str, path: Path, demands: Demands) -> None:
        self.flags = ("--cluster", address)
        self.run = RunDirectory(path)
        self.unusable: dict[str, str] = {}  # reason, by node id
        self._demands = demands
        self._driver = ray.get_runtime_context().get_node_id()
        self._probe = Probe(path)
        self._probe.create()
        atexit.register(self._probe.remove)  # also if this process ends with an exception
        self.origin = Origin(path, self._probe.name, inspect_node(path, self._probe.name), Path.cwd())
        self._runners: dict[str, Any] = {}  # by process name
        self._nodes: dict[str, Node] = {}  # by id
        self._free_now: dict[str, dict[str, float]] = {}  # resources, by node id
        self._free_read_at = 0.0
        self.nodes_of_processes: dict[str, NodeRef] = {}  # where each process last ran, by name
        self._checks: dict[Any, NodeRef] = {}  # nodes that have not answered yet, by pending check
        self._nodes_read_at = 0.0
        self._reports: list[str] = []
        self._is_open = False  # whether Ray accepts clients without a token
        self.registry = make_registry(self._driver)
        self._check_all()

    def arguments(self, role: str, actors: int) -> list[str]:  # noqa: ARG002 -- Ray reserves the CPUs
        """Return the arguments that do not depend on the node; runners add the addresses."""
        if role == "replay":
            return ["--former-seconds", f"{timeouts.RAY_LOCK_RELEASE:.0f}"]
        return ["--threads", str(self._demands.learner_cpus)] if role == "learner" else []

    def start(self, task: Task) -> ManagedProcess:
        """Start it in a runner as soon as there are resources."""
        return RayProcess(self, task)

    def find_head(self) -> HeadLocator | None:
        """Return a locator of the replay, from the registry of the cluster."""
        return follow_head(self.registry, self.run.key_of(OWNER), OWNER)

    def how_to_join(self, head: Address) -> str:
        """Return the command for machines that share the run directory."""
        return f"Serving at {head.endpoint}. To add actors, run\n  dpsr-apex actor --find {self.run.path}"

    def find_resources(self, roles: AbstractSet[str], actors: tuple[str, ...]) -> Resources:
        """Return which roles no node has resources for, and the fewest actors of one node to stop for them."""
        lacking = frozenset(role for role in roles if not self._has_resources(role))
        return Resources(lacking, {role: self._preemptible(role, actors) for role in lacking}, self._summary())

    def node_reports(self) -> list[str]:
        """Describe which nodes have joined, left or become unusable since the last call."""
        if time.monotonic() - self._nodes_read_at > timeouts.RAY_NODES_POLL:
            self._read_nodes()
            self._take_checks(0)
        reports, self._reports = self._reports, []
        return reports

    def withdraw_head(self) -> None:
        """Remove the published address, in the registry of the cluster and in the run directory."""
        with contextlib.suppress(OSError):
            self.registry.withdraw()
        self.run.connection.unlink(missing_ok=True)

    def close(self) -> None:
        """Leave the cluster, which ends everything that still runs there."""
        self.withdraw_head()
        self._probe.remove()
        ray.shutdown()

    def runner(self, task: Task) -> Any:
        """Return the existing runner of this process, or a new one, which waits for resources."""
        if task.name not in self._runners:
            if task.role == "replay":
                make_keys(self.run.keys)  # before any process reads them: a shared folder may lag behind
            requested = self._request(task.role)
            options = {
                "num_cpus": requested["CPU"],
                "num_gpus": requested.get("GPU", 0),
                "max_concurrency": 4,
                "runtime_env": _RUNNER_ENVIRONMENT,
                "scheduling_strategy": self._strategy(task.role),
            }
            self._runners[task.name] = ray.remote(RayNodeRunner).options(**options).remote(self.origin, self.registry)
        return self._runners[task.name]

    def remove_runner(self, task: Task, is_placed: bool) -> None:
        """End the runner of this process, and the process if it is running, without waiting for either."""
        runner = self._runners.pop(task.name, None)
        if runner is None:
            return
        if is_placed:
            runner.shut_down.remote()
        else:
            ray.kill(runner)

    def exclude(self, unusable: UnusableNode) -> None:
        """Stop using a node, and report that once."""
        node, reason = unusable
        if node.id not in self.unusable:
            self.unusable[node.id] = reason
            self._reports.append(f"Node {node.host} is not used: {reason}")

    def _has_resources(self, role: str) -> bool:
        """Whether one node has everything that this role requests."""
        requested = self._request(role)
        return any(all(free.get(kind, 0) >= requested[kind] for kind in requested) for free in self._free().values())

    def _preemptible(self, role: str, actors: Sequence[str]) -> list[str]:
        """Return the fewest actors to stop for enough CPUs on a node with all other resources; empty if impossible."""
        requested = self._request(role)
        best: list[str] = []
        for node, free in self._free().items():
            there = [name for name in actors if (on := self.nodes_of_processes.get(name)) and on.id == node]
            missing = math.ceil((requested["CPU"] - free.get("CPU", 0)) / self._demands.cpus_per_actor)
            has_everything_else = all(free.get(kind, 0) >= requested[kind] for kind in requested.keys() - {"CPU"})
            if has_everything_else and 0 < missing <= len(there) and (not best or missing < len(best)):
                best = there[-missing:]
        return best

    def _summary(self) -> str:
        """Describe the total and free resources of all usable nodes."""
        kinds = ["CPU", *(["GPU"] if self._learner_gpus else [])]
        free = {kind: sum(node.get(kind, 0) for node in self._free().values()) for kind in kinds}
        return " and ".join(f"{self._total(kind):g} {kind}s ({free[kind]:g} free)" for kind in kinds)

    def _free(self) -> dict[str, dict[str, float]]:
        """Return the free resources of each usable node, at most a second old."""
        if time.monotonic() - self._free_read_at > timeouts.RAY_NODES_POLL:
            self._free_read_at = time.monotonic()
            self._free_now = ray._private.state.available_resources_per_node()
        used = self._nodes.keys() - self.unusable.keys()
        return {node: free for node, free in self._free_now.items() if node in used}

    def _total(self, kind: str) -> float:
        """Return the total resources of the usable nodes, free or not."""
        return sum(node.resources.get(kind, 0) for name, node in self._nodes.items() if name not in self.unusable)

    @property
    def _learner_gpus(self) -> float:
        if self._demands.learner_gpus is not None:
            return self._demands.learner_gpus
        return 1 if self._total("GPU") >= 1 else 0

    def _request(self, role: str) -> dict[str, float]:
        """Return the resources that a process of this role requests, by Ray's names."""
        if role == "learner":
            return {"CPU": self._demands.learner_cpus, "GPU": self._learner_gpus}
        return {"CPU": self._demands.cpus_per_actor if role == "actor" else 1}

    def _strategy(self, role: str) -> Any:
        """Spread actors over the nodes; place other roles where the run was started, because batches are large."""
        if self.unusable:
            return NodeLabelSchedulingStrategy(hard={"ray.io/node-id": NotIn(*self.unusable)})
        if role == "actor":
            return "SPREAD"
        return NodeAffinitySchedulingStrategy(self._driver, soft=True, _spill_on_unavailable=True)

    def _check_all(self) -> None:
        """Check which nodes are usable; raise ClusterError if none is, or if the cluster requires no token."""
        self._read_nodes()
        deadline = time.monotonic() + timeouts.RAY_ANSWER
        while self._checks and time.monotonic() < deadline:
            self._take_checks(timeouts.RAY_CHECK_POLL)
        if any(node.id == self._driver for node in self._checks.values()):
            raise ClusterError(f"The cluster node of this machine did not answer within {timeouts.RAY_ANSWER:.0f} s")
        if self._is_open and wants_token():
            raise ClusterError(
                "Anyone who can reach this Ray cluster can run anything on it, because it requires no token: start it "
                "with RAY_AUTH_MODE=token (docs/cluster.md), or set RAY_AUTH_MODE=disabled to use it anyway"
            )
        if not self._nodes.keys() - self.unusable.keys():
            raise ClusterError(f"No node of the cluster can be used: {next(iter(self.unusable.values()))}")

    def _read_nodes(self) -> None:
        """Detect which nodes have joined and left, and start checks of the new ones."""
        self._nodes_read_at = time.monotonic()
        alive = {
            node["NodeID"]: Node(node["NodeManagerAddress"], node["Resources"]) for node in ray.nodes() if node["Alive"]
        }
        joined, left = alive.keys() - self._nodes.keys(), self._nodes.keys() - alive.keys()
        self._reports += [f"Node {self._nodes[node].host} has left the cluster" for node in left]
        if self._nodes:  # at the first call all nodes are new, but have not just joined
            self._reports += [f"Node {alive[node].host} has joined the cluster" for node in joined]
        for node in joined:
            strategy = NodeAffinitySchedulingStrategy(node, soft=False)
            check = ray.remote(inspect_node).options(num_cpus=0, scheduling_strategy=strategy, max_retries=0)
            self._checks[check.remote(self.run.path, self._probe.name)] = NodeRef(node, alive[node].host)
        self._nodes = alive

    def _take_checks(self, seconds: float) -> None:
        """Handle the answers of nodes that arrive within `seconds`."""
        if self._checks:
            for check in ray.wait(list(self._checks), timeout=seconds)[0]:
                self._take_check(self._checks.pop(check), check)

    def _take_check(self, node: NodeRef, check: Any) -> None:
        """Exclude a node whose answer shows that it is unusable, unless it has left in the meantime."""
        try:
            facts: NodeFacts = ray.get(check)
        except RayError as error:
            reason = f"dpsr_apex cannot be used there: {str(error).strip().splitlines()[-1]}"
        else:
            reason = why_unusable(self.origin.facts, facts, self.run.path)
            self._is_open |= not facts.asks_for_token
        if reason and node.id in self._nodes:
            self.exclude(UnusableNode(node, reason))
