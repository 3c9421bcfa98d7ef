"""Provenance: which command, versions and machine each part of a run comes from, and how each part ended.

`provenance.jsonl` has one row for every start or continuation of a run, and one for its end, which a killed run lacks.
They are written by the process that the user has started: the single process, the supervisor, or a head that was
started by hand. Rows are only appended, and nothing that a run computes depends on them.
"""

from __future__ import annotations

import importlib.metadata
import platform
import secrets
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from dpsr_apex import __version__
from dpsr_apex.files import BadLine, Row, append_row, read_rows
from dpsr_apex.formatting import counted
from dpsr_apex.machine import describe_machine
from dpsr_apex.record.ending import Ending
from dpsr_apex.record.run_directory import RunDirectory

PYTHON_API = "Python API"
"""The command of a run that was started by `dpsr_apex.train` or `dpsr_apex.resume`."""

PACKAGES = ("torch", "numpy", "gymnasium", "ale-py")  # whose versions can change results
GIT_SECONDS = 5.0  # for an answer of git, which may have to read a slow disk

_SHOWN = 3  # parts of a run that are described to people; the file has all
_PACKAGE = Path(__file__).parents[1]


class Commit(NamedTuple):
    """The commit of a git checkout."""

    name: str
    modified: bool  # whether tracked files differ from it


class Session:
    """Writes the provenance of one part of a run; a full disk does not affect the run."""

    def __init__(self, run: RunDirectory, command: str) -> None:
        self._run = run
        self._command = command
        self._name = ""  # set by `begin`

    def begin(self, t: int) -> None:
        """Record that the run starts, or continues at clock `t`."""
        self._name = secrets.token_hex(8)
        commit = commit_of(_PACKAGE.parent)
        self._append(
            {
                "t": t,
                "begin": self._name,
                "time": _now(),
                "command": self._command,
                "versions": versions(),
                "commit": commit._asdict() if commit else None,
                "machine": describe_machine(),
            }
        )

    def end(self, ending: Ending) -> None:
        """Record how this part of the run ended; nothing is recorded if it has not begun."""
        if self._name:
            self._append({"end": self._name, "time": _now(), **ending._asdict()})

    def _append(self, row: Row) -> None:
        with suppress(OSError):
            append_row(self._run.provenance, row)


class Part(NamedTuple):
    """One part of a run, from a start or a resume to its end, as read from the file; unknown text is empty."""

    t: int  # clock at which it began
    began: str  # time, in UTC
    command: str
    software: str  # versions, and the commit of a checkout
    machine: str
    ended: str  # time, in UTC; empty while it is running, and after a kill
    ended_t: int | None  # clock of the last checkpoint
    outcome: str


def versions() -> dict[str, str]:
    """Return the versions of this package, of Python, and of the packages that can change results."""
    found = {"dpsr_apex": __version__, "Python": platform.python_version()}
    for name in PACKAGES:
        with suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


def commit_of(root: Path) -> Commit | None:
    """Return the commit of the git checkout whose top folder is `root`; None if it is not one, or git is missing.

    A package that is installed inside another project's checkout is not part of that checkout.
    """
    if not (root / ".git").exists():
        return None
    name = _git(root, "rev-parse", "HEAD")
    changes = _git(root, "status", "--porcelain", "--untracked-files=no")
    return None if not name or changes is None else Commit(name, bool(changes))


def read_provenance(run: RunDirectory) -> list[Part]:
    """Return the parts of a run in the order of their start; [] for a run of a version that did not record them."""
    damaged: list[BadLine] = []
    rows = read_rows(run.provenance, damaged)
    ends = {str(row["end"]): row for row in rows if "end" in row}
    return [_part(row, ends.get(str(row["begin"]), {})) for row in rows if "begin" in row]


def provenance_lines(run: RunDirectory) -> list[str]:
    """Describe the newest parts of a run to people; no line if none is recorded."""
    parts = read_provenance(run)
    earlier = len(parts) - _SHOWN
    lines = [line for part in parts[-_SHOWN:] for line in describe_part(part)]
    return [f"{counted(earlier, 'earlier part')} of the run: see {run.provenance}", *lines] if earlier > 0 else lines


def describe_part(part: Part) -> list[str]:
    """Return the lines that describe one part of a run to people."""
    end = f"{part.outcome} {part.ended} at t = {part.ended_t:,}" if part.ended_t is not None else "no end recorded"
    return [
        f"from t = {part.t:,}, {part.began}: {part.command} ({end})",
        f"  {part.software}; {part.machine}",
    ]


def _part(row: Row, end: Row) -> Part:
    return Part(
        row["t"],
        _text(row, "time"),
        _text(row, "command"),
        _software(_table(row, "versions"), _table(row, "commit")),
        _machine(_table(row, "machine")),
        _text(end, "time"),
        end.get("t"),
        _text(end, "outcome"),
    )


def _software(versions: Mapping[str, Any], commit: Mapping[str, Any]) -> str:
    words = [f"{name} {version}" for name, version in versions.items()]
    if name := _text(commit, "name"):
        words.append(f"commit {name[:12]}{', modified' if commit.get('modified') else ''}")
    return ", ".join(words)


def _machine(machine: Mapping[str, Any]) -> str:
    cores, memory, gpus = machine.get("cores"), machine.get("memory"), machine.get("gpus")
    words = [
        _text(machine, "cpu"),
        f"{cores} cores" if isinstance(cores, int) else "",
        f"{memory / 2**30:.1f} GiB" if isinstance(memory, int) else "",
        *(map(str, gpus) if isinstance(gpus, list) else ()),
        _text(machine, "system"),
    ]
    return ", ".join(word for word in words if word)


def _text(row: Mapping[str, Any], key: str) -> str:
    value = row.get(key)
    return value if isinstance(value, str) else ""


def _table(row: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = row.get(key)
    return value if isinstance(value, dict) else {}


def _now() -> str:
    return f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC"


def _git(root: Path, *words: str) -> str | None:
    """Return the output of a git command without surrounding blanks; None if it failed."""
    command = ["git", "-C", str(root), "--no-optional-locks", *words]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=GIT_SECONDS, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
