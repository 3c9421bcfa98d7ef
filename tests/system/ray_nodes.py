"""A Ray cluster of several nodes on one machine, by Ray's own cluster utility, in a process of its own.

Run as a script it takes commands from standard input, one a line, and answers each with a line of JSON.
"""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


class Nodes:
    """The cluster, as a test sees it; nodes are numbered from 0, the head, in the order in which they were added."""

    def __init__(self, environment: dict[str, str]) -> None:
        self.environment = environment  # what a process needs that is to use the cluster
        self._process = subprocess.Popen(
            [sys.executable, __file__],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def add(self, cpus: int, gpus: int = 0, **environment: str) -> str:
        """One more node with so much, as it says, and these variables for what runs there; the cluster's address."""
        return str(self._ask({"add": {"num_cpus": cpus, "num_gpus": gpus}, "environment": environment}))

    def remove(self, number: int, *, suddenly: bool = False) -> None:
        """Let a node go in order, or as if its power had failed."""
        self._ask({"remove": number, "graceful": not suddenly})

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(60)
        self._process.stdout.close()

    def _ask(self, command: dict[str, Any]) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()
        for line in self._process.stdout:
            if line.startswith("answer "):
                return json.loads(line.removeprefix("answer "))
        raise AssertionError("the cluster has ended")


@contextmanager
def cluster(home: Path, *, token: bool = True) -> Iterator[Nodes]:
    """A cluster without nodes, which asks for a token; ended in the end with all that runs there."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    environment |= {"HOME": str(home), "RAY_AUTH_MODE": "token" if token else "disabled"}
    if token:
        environment["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
    nodes = Nodes(environment)
    try:
        yield nodes
    finally:
        nodes.close()


def main() -> None:
    from ray.cluster_utils import Cluster

    ray_cluster = Cluster(shutdown_at_exit=True)
    nodes: list[Any] = []
    for line in sys.stdin:
        command = json.loads(line)
        answer = None
        if "add" in command:
            variables = {"env_vars": command["environment"]} if command["environment"] else {}
            nodes.append(ray_cluster.add_node(**command["add"], include_dashboard=False, **variables))
            answer = ray_cluster.address
        else:
            ray_cluster.remove_node(nodes[command["remove"]], allow_graceful=command["graceful"])
        sys.stdout.write(f"answer {json.dumps(answer)}\n")
        sys.stdout.flush()
    ray_cluster.shutdown()


if __name__ == "__main__":
    main()
