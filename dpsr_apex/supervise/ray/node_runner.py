"""Run one process of a run on its node, and give it the address of the head. Does not import Ray.

When a process crashes, its runner survives and returns how it ended; when the runner is lost, its process detects that
and ends too.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import tempfile
from pathlib import Path
from typing import NamedTuple

from dpsr_apex import timeouts
from dpsr_apex.processes.discovery import FileRegistry, HeadRecord, Registry
from dpsr_apex.protocol.restarts import Exit
from dpsr_apex.record.run_directory import RunDirectory
from dpsr_apex.supervise.managed import LocalProcess, Task
from dpsr_apex.supervise.ray.node_check import NodeFacts, inspect_node, why_unusable

log = logging.getLogger(__name__)


class NodeRef(NamedTuple):
    """A reference to a node of the cluster."""

    id: str
    host: str  # its address


class Origin(NamedTuple):
    """Where a run was started, and what a node must have in common with that machine."""

    run: Path  # the run directory
    probe: str  # the name of the probe in the run directory
    facts: NodeFacts  # of the machine on which the run was started
    folder: Path  # the working directory of the command


class UnusableNode(NamedTuple):
    """A node on which nothing was started, and the reason."""

    node: NodeRef
    reason: str


class NodeRunner:
    """Runs one process on its node, each time it is started there."""

    def __init__(self, node: NodeRef, origin: Origin, registry: Registry) -> None:
        self._node = node
        self._origin = origin
        self._run = RunDirectory(origin.run)
        self._registry = registry
        self._process: LocalProcess | None = None
        self._signal: signal.Signals | None = None  # received before the process was started
        if origin.folder.is_dir():  # a user's own environment may be there
            os.chdir(origin.folder)

    def node(self) -> NodeRef:
        """Return the node of this runner."""
        return self._node

    def run(self, task: Task) -> Exit | UnusableNode:
        """Run a process to its end; return how it ended."""
        origin, self._process = self._origin, None
        if reason := why_unusable(origin.facts, inspect_node(origin.run, origin.probe), origin.run):
            return UnusableNode(self._node, reason)
        with tempfile.TemporaryDirectory(prefix="dpsr_apex-") as folder:
            if task.role == "replay":
                return self._run_replay(task)
            return self._run_member(task, RunDirectory(Path(folder)))

    def signal(self, number: int) -> None:
        """Send a signal to the process, now or as soon as it is started."""
        if self._process is None:
            self._signal = signal.Signals(number)
        else:
            self._process.signal(signal.Signals(number))

    def kill(self) -> None:
        """End the process at once."""
        if self._process is not None:
            self._process.kill()

    def _run_replay(self, task: Task) -> Exit:
        """Run the replay, which listens on this node's address, and publish that address to all nodes."""
        host = f"[{self._node.host}]" if ":" in self._node.host else self._node.host
        process = self._start(task, "--bind", f"{host}:0")
        own = FileRegistry(self._run.connection)
        while (exit := process.wait(timeouts.RAY_HEAD_POLL)) is None:
            # Published repeatedly, because a registry that was lost is restarted empty.
            if (record := own.look_up()) is not None:
                with contextlib.suppress(OSError):
                    self._registry.publish(record)
        return exit

    def _run_member(self, task: Task, private: RunDirectory) -> Exit:
        """Run any other process, which looks up the head in a private folder, to which its record is copied."""
        known = self._copy_record(private, None)
        process = self._start(task, "--find", str(private.path), "--key", str(self._run.key_of(task.role)))
        while (exit := process.wait(timeouts.RAY_REGISTRY_POLL)) is None:
            known = self._copy_record(private, known)
        return exit

    def _start(self, task: Task, *arguments: str) -> LocalProcess:
        process = LocalProcess(task._replace(arguments=[*task.arguments, *arguments]))
        self._process = process
        if self._signal is not None:
            process.signal(self._signal)
            self._signal = None
        return process

    def _copy_record(self, private: RunDirectory, known: HeadRecord | None) -> HeadRecord | None:
        """Copy the head's record to the private folder, and return the record that the process can look up now."""
        with contextlib.suppress(OSError):
            record = self._registry.look_up()
            if record is not None and record != known:
                FileRegistry(private.connection).publish(record)
                return record
        return known
