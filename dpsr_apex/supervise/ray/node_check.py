"""Check whether a cluster node is usable for a run: equal versions and a shared run directory. Does not import Ray."""

from __future__ import annotations

import importlib.metadata
import os
import secrets
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from dpsr_apex import __version__, timeouts
from dpsr_apex.wire.codec import PROTOCOL


class NodeFacts(NamedTuple):
    """Properties of a node, as found by a process there."""

    version: str  # of dpsr_apex
    protocol: int
    emulator: str  # version of ale-py
    asks_for_token: bool  # whether Ray accepts only clients with its token
    exposed_token: str  # the file with that token, if other users can read it; otherwise empty
    shares_run: bool  # whether the run directory is the same as on the other nodes


class Probe:
    """An empty folder with a random name in the run directory; a node that sees it shares the run directory."""

    def __init__(self, run: Path) -> None:
        self.name = secrets.token_hex(16)
        self._folder = _probe(run, self.name)

    def create(self) -> None:
        """Create the folder, and the run directory if it does not exist yet."""
        self._folder.mkdir(parents=True)

    def remove(self) -> None:
        """Remove the folder, if it exists."""
        with suppress(OSError):
            self._folder.rmdir()


def is_visible(run: Path, probe: str) -> bool:
    """Return whether the probe is visible, after waiting for a shared folder that lags behind."""
    deadline = time.monotonic() + timeouts.SHARED_FOLDER
    while not _probe(run, probe).is_dir():
        if time.monotonic() > deadline:
            return False
        time.sleep(timeouts.SHARED_FOLDER_POLL)
    return True


def _probe(run: Path, name: str) -> Path:
    return run / f".shared-{name}"


def inspect_node(run: Path, probe: str) -> NodeFacts:
    """Return the facts about this machine, for a run in this directory with this probe."""
    return NodeFacts(
        version=__version__,
        protocol=PROTOCOL,
        emulator=importlib.metadata.version("ale-py"),
        asks_for_token=wants_token(),
        exposed_token=exposed_token(),
        shares_run=is_visible(run, probe),
    )


def wants_token() -> bool:
    """Return whether Ray accepts only clients with its token here."""
    return os.environ.get("RAY_AUTH_MODE", "").lower() == "token"


def exposed_token() -> str:
    """Return the file with Ray's token if other users can read it; otherwise, or without such a file, an empty text."""
    if not wants_token() or os.environ.get("RAY_AUTH_TOKEN"):
        return ""
    file = Path(os.environ.get("RAY_AUTH_TOKEN_PATH") or Path.home() / ".ray" / "auth_token")
    with suppress(OSError):
        return str(file) if file.stat().st_mode & 0o077 else ""
    return ""


def about_exposed_token(file: str) -> str:
    """Return what is wrong with a token in this file, and what to do about it."""
    return f"{file} lets other users run anything on the cluster: run chmod 600 {file}"


def why_unusable(here: NodeFacts, there: NodeFacts, run: Path) -> str:
    """Return why the node `there` cannot be used by a run that is started `here`; empty if it can."""
    if (there.version, there.protocol) != (here.version, here.protocol):
        found, wanted = (f"{facts.version} (protocol {facts.protocol})" for facts in (there, here))
        return f"it has dpsr_apex {found} and this run has {wanted}: install the same version"
    if there.emulator != here.emulator:
        return f"it has ale-py {there.emulator} and this run has {here.emulator}: install the same version"
    if there.exposed_token:
        return about_exposed_token(there.exposed_token)
    if not there.shares_run:
        return f"it does not see {run}: put the run directory where all nodes see it at the same path (--run-dir)"
    return ""
