"""A board for discovery that every node of a Ray cluster reaches: a Ray actor on the node where the run was started."""

from __future__ import annotations

from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from dpsr_apex.processes.discovery import MemoryBoard, Notice

ANSWER_SECONDS = 30.0


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


def make_board(node: str) -> RayBoard:
    """A new one, on the node with this id."""
    here = NodeAffinitySchedulingStrategy(node, soft=False)
    return RayBoard(ray.remote(MemoryBoard).options(num_cpus=0, max_restarts=-1, scheduling_strategy=here).remote())
