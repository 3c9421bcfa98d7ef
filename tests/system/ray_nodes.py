"""A Ray cluster of several nodes on one machine, made by Ray's cluster utility in a separate process.

Run as a script, it reads commands from standard input, one per line, and answers each with a line of JSON.
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

NODE = "DPSR_APEX_TEST_NODE"  # tells a process on which node it runs


class Nodes:
    """The cluster, as a test sees it; nodes are numbered from 0, the head, in the order in which they were added."""

    def __init__(self, environment: dict[str, str]) -> None:
        self.environment = environment  # of a process that uses the cluster
        self._process = subprocess.Popen(
            [sys.executable, __file__],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def add(self, cpus: int, name: str = "", *, gpus: int = 0, path: str = "") -> str:
        """Add a node with these resources and this name; return the address of the cluster."""
        environment = {NODE: name, **({"PYTHONPATH": path} if path else {})}
        return str(self._ask({"add": {"num_cpus": cpus, "num_gpus": gpus}, "environment": environment}))

    def remove(self, number: int, *, suddenly: bool = False) -> None:
        """Remove a node gracefully, or as if its power had failed."""
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
    """Start a cluster without nodes, which requires a token unless `token` is False; stop it in the end."""
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
            settings = {**command["add"], "env_vars": command["environment"]}
            nodes.append(ray_cluster.add_node(include_dashboard=False, **settings))
            answer = ray_cluster.address
        else:
            ray_cluster.remove_node(nodes[command["remove"]], allow_graceful=command["graceful"])
        sys.stdout.write(f"answer {json.dumps(answer)}\n")
        sys.stdout.flush()
    ray_cluster.shutdown()


if __name__ == "__main__":
    main()
