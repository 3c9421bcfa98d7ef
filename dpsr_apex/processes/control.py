"""Change a running run from outside, given its run directory: `dpsr-apex rate` and `dpsr-apex scale`."""

from __future__ import annotations

import sys

from dpsr_apex import timeouts
from dpsr_apex.formatting import counted
from dpsr_apex.processes.discovery import Address, FileRegistry, find_head
from dpsr_apex.processes.statistics import ask_stats
from dpsr_apex.record.run_directory import RunDirectory, RunDirectoryError
from dpsr_apex.wire.messages import OWNER, SetActors, SetRate


def address_of(run: RunDirectory) -> Address:
    """Return the address of the run's head; raise RunDirectoryError if it has none."""
    found = find_head(FileRegistry(run.connection), run.key_of(OWNER), OWNER)
    if found is None:
        raise RunDirectoryError(f"{run.path} is not running, or is a single-process run, which has no head")
    return found.address


def change_rate(run: RunDirectory, steps_per_update: int) -> int:
    """Change the number of transitions per update of a running run; return the exit code."""
    stats = ask_stats(address_of(run), SetRate(steps_per_update), timeouts.CONTROL_ANSWER)
    rate = f"{counted(steps_per_update, 'transition')} per update" if steps_per_update else "free running"
    sys.stdout.write(f"From t = {stats.t:,} on: {rate}\n")
    return 0


def change_actors(run: RunDirectory, actors: int) -> int:
    """Change the number of actors of a running run, whose supervisor starts or stops them; return the exit code."""
    stats = ask_stats(address_of(run), SetActors(actors), timeouts.CONTROL_ANSWER)
    plan = f"{counted(stats.planned_actors, 'actor')} planned, {len(stats.actors):,} in the run now"
    sys.stdout.write(f"From t = {stats.t:,} on: {plan}\n")
    return 0
