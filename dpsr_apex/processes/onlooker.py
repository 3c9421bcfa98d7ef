"""Talking to a run that is going on from outside, by its run directory."""

from __future__ import annotations

import json
import sys
from typing import Any

from dpsr_apex.processes.discovery import Address, FileBoard, find_head
from dpsr_apex.processes.link import RefusedByReplay, ReplayLost, ask
from dpsr_apex.run.run_directory import RunDirectory, RunDirectoryError
from dpsr_apex.wire.messages import Refused, SetActors, SetRate, Stats

ANSWER_SECONDS = 5.0


def address_of(run: RunDirectory) -> Address:
    """Where the run can be talked to; RunDirectoryError when it is not running."""
    found = find_head(FileBoard(run.connection), run.client_key)
    if found is None:
        raise RunDirectoryError(f"{run.path} is not running, or in one process")
    return found.address


def change_rate(run: RunDirectory, steps_per_update: int) -> int:
    """Let a run go on with another number of transitions per update; the exit code."""
    stats = _steer(run, SetRate(steps_per_update))
    rate = f"{steps_per_update} transitions per update" if steps_per_update else "free running"
    sys.stdout.write(f"From t = {stats['t']:,} on: {rate}\n")
    return 0


def change_actors(run: RunDirectory, actors: int) -> int:
    """Let a run go on with another number of actors, which its supervisor then starts or ends; the exit code."""
    stats = _steer(run, SetActors(actors))
    planned, there = stats["planned_actors"], len(stats["actors"])
    plan = f"{planned:,} {'actor' if planned == 1 else 'actors'} planned"
    sys.stdout.write(f"From t = {stats['t']:,} on: {plan}, {there:,} {'is' if there == 1 else 'are'} in the run\n")
    return 0


def _steer(run: RunDirectory, change: SetRate | SetActors) -> dict[str, Any]:
    """Have something changed in a run; how things are then."""
    address = address_of(run)
    answer = ask(address, change, ANSWER_SECONDS)
    if isinstance(answer, Refused):
        raise RefusedByReplay(answer.reason)
    if not isinstance(answer, Stats):
        raise ReplayLost(f"What answers at {address.endpoint} is not the head of a run")
    stats: dict[str, Any] = json.loads(answer.facts)
    return stats
