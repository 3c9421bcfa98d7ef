"""Talking to a run that is going on from outside, by its run directory."""

from __future__ import annotations

import json
import sys

from dpsr_apex.processes.discovery import Address, FileBoard, find_head
from dpsr_apex.processes.link import RefusedByReplay, ask
from dpsr_apex.run.run_directory import RunDirectory, RunDirectoryError
from dpsr_apex.wire.messages import Refused, SetRate, Stats

ANSWER_SECONDS = 5.0


def address_of(run: RunDirectory) -> Address:
    """Where the run can be talked to; RunDirectoryError when it is not running."""
    found = find_head(FileBoard(run.connection), run.client_key)
    if found is None:
        raise RunDirectoryError(f"{run.path} is not running, or in one process")
    return found.address


def change_rate(run: RunDirectory, steps_per_update: int) -> int:
    """Let a run go on with another number of transitions per update; the exit code."""
    answer = ask(address_of(run), SetRate(steps_per_update), ANSWER_SECONDS)
    if isinstance(answer, Refused):
        raise RefusedByReplay(answer.reason)
    if isinstance(answer, Stats):
        t = json.loads(answer.facts)["t"]
        rate = f"{steps_per_update} transitions per update" if steps_per_update else "free running"
        sys.stdout.write(f"From t = {t:,} on: {rate}\n")
    return 0
