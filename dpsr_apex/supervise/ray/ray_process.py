"""A process on a Ray cluster, from the supervisor's side: it was started by a runner, a Ray actor on some node."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from typing import Any, Protocol

import ray
from ray.exceptions import RayError, RayTaskError

from dpsr_apex import timeouts
from dpsr_apex.processes.discovery import Registry
from dpsr_apex.protocol.restarts import Exit
from dpsr_apex.supervise.managed import Task, cause_of
from dpsr_apex.supervise.ray.node_runner import NodeRef, NodeRunner, Origin, UnusableNode


class Runners(Protocol):
    """The owner of the runners of all processes."""

    nodes_of_processes: dict[str, NodeRef]

    def runner(self, task: Task) -> Any:
        """Return the existing runner of this process, or a new one, which waits for resources."""

    def remove_runner(self, task: Task, is_placed: bool) -> None:
        """End the runner of this process, and the process if it is running, without waiting for either."""

    def exclude(self, unusable: UnusableNode) -> None:
        """Stop using a node, and report that once."""


class RayNodeRunner(NodeRunner):
    """A runner as a Ray actor, on a node chosen by Ray."""

    def __init__(self, origin: Origin, registry: Registry) -> None:
        node = NodeRef(ray.get_runtime_context().get_node_id(), ray.util.get_node_ip_address())
        super().__init__(node, origin, registry)

    def shut_down(self) -> None:
        """End its process and itself, at once."""
        self.kill()
        os._exit(0)


class RayProcess:
    """A process on some node of the cluster."""

    def __init__(self, runners: Runners, task: Task) -> None:
        self._runners = runners
        self._task = task
        self._exit: Exit | None = None
        self._killed_at: float | None = None
        self._is_placed = False
        self._runner: Any = None
        self._node: Any = None  # pending answer of the runner
        self._result: Any = None
        self._submit()

    @property
    def is_placed(self) -> bool:
        """Whether its runner has been started on a node."""
        if not self._is_placed and ray.wait([self._node], timeout=0)[0]:
            self._is_placed = True
            with contextlib.suppress(RayError):
                node: NodeRef = ray.get(self._node)
                self._runners.nodes_of_processes[self._task.name] = node
        return self._is_placed

    def poll(self) -> Exit | None:
        """Return how it ended; None while it runs or waits for resources."""
        if self._exit is None and ray.wait([self._result], timeout=0)[0]:
            self._take_result()
        elif self._exit is None and self._is_kill_overdue:
            self._exit = self._killed()
        return self._exit

    def signal(self, number: signal.Signals) -> None:
        """Send a signal, if it runs; a process that waits for resources ends instead."""
        if self.poll() is not None:
            return
        if self.is_placed:
            self._runner.signal.remote(int(number))
        else:
            self._runners.remove_runner(self._task, is_placed=False)
            self._exit = Exit(0, "was not started", 0.0)

    def kill(self) -> None:
        """End it at once if it runs, and release its resources."""
        self.release()
        self._killed_at = time.monotonic()

    def release(self) -> None:
        """Release the resources reserved for the next process of its name."""
        self._runners.remove_runner(self._task, self.is_placed)

    @property
    def _seconds(self) -> float:
        return time.monotonic() - self._submitted_at

    @property
    def _is_kill_overdue(self) -> bool:
        """Whether Ray has not confirmed in time that it was killed: its node does not answer."""
        return self._killed_at is not None and time.monotonic() - self._killed_at > timeouts.RAY_KILL

    def _killed(self) -> Exit:
        return Exit(-signal.SIGKILL, cause_of(-signal.SIGKILL), self._seconds)

    def _submit(self) -> None:
        """Run it as soon as there are resources for it."""
        self._submitted_at = time.monotonic()
        self._is_placed = False
        self._runner = self._runners.runner(self._task)
        self._node = self._runner.node.remote()
        self._result = self._runner.run.remote(self._task)

    def _take_result(self) -> None:
        try:
            result: Exit | UnusableNode = ray.get(self._result)
        except RayTaskError as error:  # the runner exists but could not run the process
            self._exit = Exit(1, "could not be run", self._seconds, output=str(error))
            return
        except RayError:
            if self._killed_at is not None:
                self._exit = self._killed()
                return
            self._runners.remove_runner(self._task, is_placed=False)
            node = self._runners.nodes_of_processes.get(self._task.name) if self.is_placed else None
            cause = f"was lost with its node {node.host}" if node else "was lost"
            self._exit = Exit(-signal.SIGKILL, cause, self._seconds, is_lost=True)
            return
        if isinstance(result, UnusableNode):
            self._runners.exclude(result)
            self._runners.remove_runner(self._task, is_placed=True)
            self._submit()
            return
        self._exit = result
