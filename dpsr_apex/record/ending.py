"""How a run ended: one small file in the run directory, for reports and other programs.

The process that ends a run writes it: the single process, or the supervisor. The process that serves the run again
removes it. A run that is running or was killed has no such file.
"""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any, Literal, NamedTuple, get_args

from dpsr_apex.files import write_atomically
from dpsr_apex.record.run_directory import RunDirectory

Outcome = Literal["finished", "stopped", "failed"]  # stopped: by a signal, before it was finished

_LONGEST = 300  # characters of a cause


class Ending(NamedTuple):
    """How a run ended."""

    outcome: Outcome
    exit_code: int  # of the command that ran it
    t: int  # clock of the newest checkpoint, from which the run can be continued; 0 if there is none
    process: str = ""  # the one that failed, such as "learner"; empty for other outcomes
    cause: str = ""  # why it failed, in one line


def write_ending(run: RunDirectory, ending: Ending) -> None:
    """Write how a run ended; a full disk does not affect the exit code of the command."""
    ending = ending._replace(cause=" ".join(ending.cause.split())[:_LONGEST])
    with suppress(OSError):
        write_atomically(run.ending, json.dumps(ending._asdict(), indent=2) + "\n")


def remove_ending(run: RunDirectory) -> None:
    """Remove the ending of a run that is served again."""
    run.ending.unlink(missing_ok=True)


def read_ending(run: RunDirectory) -> Ending | None:
    """Return how a run ended; None if the file is missing, damaged or of another version."""
    try:
        found = json.loads(run.ending.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(found, dict):
        return None
    values: list[Any] = [found.get(name) for name in Ending._fields]
    return Ending(*values) if _is_valid(*values) else None


def _is_valid(outcome: Any, exit_code: Any, t: Any, process: Any, cause: Any) -> bool:
    has_numbers = type(exit_code) is int and type(t) is int
    return outcome in get_args(Outcome) and has_numbers and isinstance(process, str) and isinstance(cause, str)
