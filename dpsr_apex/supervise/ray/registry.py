"""A registry that every node of a Ray cluster can reach: a Ray actor on the node where the run was started."""

from __future__ import annotations

from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from dpsr_apex import timeouts
from dpsr_apex.processes.discovery import HeadRecord, MemoryRegistry


class RayRegistry:
    """A registry that every node reaches through Ray; raises OSError if it does not answer."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor

    def publish(self, record: HeadRecord) -> None:
        """Publish the record of a new head, replacing any earlier one."""
        self._ask(self._actor.publish.remote(record))

    def look_up(self) -> HeadRecord | None:
        """Return the newest record; None if there is none."""
        found: HeadRecord | None = self._ask(self._actor.look_up.remote())
        return found

    def withdraw(self) -> None:
        """Remove the record."""
        self._ask(self._actor.withdraw.remote())

    def _ask(self, answer: Any) -> Any:
        try:
            return ray.get(answer, timeout=timeouts.RAY_ANSWER)
        except RayError as error:
            raise OSError(f"the registry of the cluster does not answer: {error}") from error

    def __str__(self) -> str:
        return "the cluster"


def make_registry(node: str) -> RayRegistry:
    """Return a new registry, on the node with this id."""
    here = NodeAffinitySchedulingStrategy(node, soft=False)
    return RayRegistry(
        ray.remote(MemoryRegistry).options(num_cpus=0, max_restarts=-1, scheduling_strategy=here).remote()
    )
