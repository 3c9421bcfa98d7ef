"""Resources for the processes of a run: who waits for them, and which actors are preempted for replay or learner.

A state machine without clock and engine: the shell reports the available resources on request.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from dpsr_apex import timeouts
from dpsr_apex.protocol.instructions import FindResources, Instruction, Report, Resources, Tell
from dpsr_apex.protocol.supervised_process import SupervisedProcess
from dpsr_apex.wire.messages import Gone

PREEMPTING_ROLES = ("replay", "learner")  # without these, actors cannot do anything


class Placement:
    """Tracks which processes wait for resources."""

    def __init__(self) -> None:
        self._reported: set[str] = set()  # names of processes that were waiting at the last check
        self._preempted_at = -math.inf

    def check(self, processes: Iterable[SupervisedProcess], now: float) -> list[Instruction]:
        """Ask for the resources of roles that have waited too long."""
        processes = list(processes)
        roles = frozenset(process.role for process in processes if process.waits_for_resources(now))
        if not roles:
            self._reported = set()
            return []
        return [FindResources(roles, tuple(actor.name for actor in _actors(processes) if actor.is_placed))]

    def answered(self, resources: Resources, processes: Iterable[SupervisedProcess], now: float) -> list[Instruction]:
        """Report who waits; preempt actors for the replay or the learner.

        A process for which there are resources is about to start, and is not waiting.
        """
        processes = list(processes)
        waiting = [
            process for process in processes if process.role in resources.lacking and process.waits_for_resources(now)
        ]
        urgent = [process for process in waiting if process.role in PREEMPTING_ROLES]
        reports = self._report([process.name for process in waiting], resources.summary)
        return reports + (self._preempt_for(urgent[0], resources, processes, now) if urgent else [])

    def _report(self, names: list[str], summary: str) -> list[Instruction]:
        new, self._reported = set(names) - self._reported, set(names)
        if not new:
            return []
        who = names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"
        return [Report(f"Waiting for resources: {who}. The cluster has {summary}")]

    def _preempt_for(
        self, urgent: SupervisedProcess, resources: Resources, processes: list[SupervisedProcess], now: float
    ) -> list[Instruction]:
        """Stop actors that hold enough resources, and start no other actor before these are in use."""
        names = list(resources.preemptible.get(urgent.role, ()))
        if not names or now - self._preempted_at < timeouts.PLACEMENT_WAIT:
            return []
        self._preempted_at = now
        instructions: list[Instruction] = []
        for actor in _actors(processes):
            if actor.name in names or not actor.is_placed:
                instructions += actor.preempt(now + 2 * timeouts.PLACEMENT_WAIT)
        instructions += [Tell(Gone(name)) for name in names]
        return [*instructions, Report(f"Preempted {', '.join(names)} to free resources for the {urgent.name}")]


def _actors(processes: Iterable[SupervisedProcess]) -> list[SupervisedProcess]:
    return [process for process in processes if process.role == "actor" and not process.is_leaving]
