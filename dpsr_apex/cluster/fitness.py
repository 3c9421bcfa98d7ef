"""Whether a node of a cluster can take part in a run: the same versions, and the same run directory. No Ray here."""

from __future__ import annotations

import importlib.metadata
import os
import secrets
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from dpsr_apex import __version__
from dpsr_apex.wire.codec import PROTOCOL

SHARE_SECONDS = 5.0  # for a file that was written on one machine to be seen on another


class NodeFacts(NamedTuple):
    """What a process on a node finds there."""

    version: str  # of dpsr_apex
    protocol: int
    emulator: str  # version of ale-py
    asks_for_token: bool  # whether Ray lets in only who has its token
    sees_run: bool  # whether the run directory is the one that is meant


class Probe:
    """An empty folder in the run directory by whose name nodes prove that it is the same directory."""

    def __init__(self, run: Path) -> None:
        self.word = secrets.token_hex(16)
        self._folder = _probe(run, self.word)

    def leave(self) -> None:
        """Leave it there, also before there is a run."""
        self._folder.mkdir(parents=True)

    def remove(self) -> None:
        """It is not needed any more."""
        with suppress(OSError):
            self._folder.rmdir()


def is_seen(run: Path, word: str) -> bool:
    """Whether a probe with this word is there, now or soon."""
    deadline = time.monotonic() + SHARE_SECONDS
    while not _probe(run, word).is_dir():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True


def _probe(run: Path, word: str) -> Path:
    return run / f".shared-{word}"


def look_around(run: Path, word: str) -> NodeFacts:
    """The facts of the machine that this is called on, for a run in that directory with that probe."""
    return NodeFacts(
        version=__version__,
        protocol=PROTOCOL,
        emulator=importlib.metadata.version("ale-py"),
        asks_for_token=os.environ.get("RAY_AUTH_MODE", "").lower() == "token",
        sees_run=is_seen(run, word),
    )


def why_unfit(here: NodeFacts, there: NodeFacts, run: Path) -> str:
    """Why the node `there` cannot take part in a run that is started `here`; empty if it can."""
    if (there.version, there.protocol) != (here.version, here.protocol):
        found, wanted = (f"{facts.version} (protocol {facts.protocol})" for facts in (there, here))
        return f"it has dpsr_apex {found} and this run has {wanted}: install the same version"
    if there.emulator != here.emulator:
        return f"it has ale-py {there.emulator} and this run has {here.emulator}: install the same version"
    if not there.sees_run:
        return f"it does not see {run}: put the run directory where all nodes see it at the same path (--run-dir)"
    return ""
