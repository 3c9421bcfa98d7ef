"""CURVE key files of a run: one key pair per role, so that what a process may do depends on the file that it has.

All files are created by the replay in one folder, and only their owner may read them. `server.key` stays there; the
file of a role is copied to the machines whose processes have that role. Secret keys are never logged or sent.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from dpsr_apex.errors import UserError
from dpsr_apex.files import PRIVATE, PRIVATE_FOLDER, write_atomically
from dpsr_apex.wire.messages import ACTOR, EVALUATOR, LEARNER, OWNER, SERVER
from dpsr_apex.wire.sockets import make_keypair, public_key_of

ROLES: Final = (SERVER, ACTOR, LEARNER, EVALUATOR, OWNER)
SNAPSHOT_KEY_BYTES: Final = 32
_MAX_BYTES = 4_096  # a key file has about 600
_FORMER = "client.key"  # the one file of all clients, before there was one per role


class BadKeyFile(UserError):
    """Raised for a key file that cannot be used: its path, the reason, and what to do."""


@dataclass(frozen=True)
class Keys:
    """What one role of a run has: its own secret key, and the public keys of all roles."""

    role: str
    secret: bytes = field(repr=False)
    public: Mapping[str, bytes]  # by role
    snapshot_key: bytes = field(default=b"", repr=False)  # authenticates snapshots; only actors have it


def new_keys() -> dict[str, Keys]:
    """Return new keys of every role of one run."""
    pairs = {role: make_keypair() for role in ROLES}
    public = {role: pair[0] for role, pair in pairs.items()}
    snapshot_key = secrets.token_bytes(SNAPSHOT_KEY_BYTES)
    return {
        role: Keys(role, secret, public, snapshot_key if role == ACTOR else b"") for role, (_, secret) in pairs.items()
    }


def make_keys(folder: Path) -> None:
    """Create key files in the folder unless they exist: a resumed run keeps its keys. Raises `BadKeyFile`."""
    if (folder / f"{SERVER}.key").exists():
        _ensure_complete(folder)
        return
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(PRIVATE_FOLDER)
    keys = new_keys()
    # The server's file is written last: without it the others cannot have been used, and all can be recreated.
    for role in (*(role for role in ROLES if role != SERVER), SERVER):
        _write(folder / f"{role}.key", keys[role])


def load_keys(file: Path, role: str) -> Keys:
    """Read the keys of a role from a file of `make_keys`, or from a copy on another machine. Raises `BadKeyFile`."""
    try:
        keys = _parse(json.loads(_read_private(file)))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise BadKeyFile(f"{file} is not a key file of this version of dpsr_apex") from None
    if keys.role != role:
        raise BadKeyFile(f"{file} is the key file of the role {keys.role}: use {role}.key of the run")
    if keys.public[role] != public_key_of(keys.secret):
        raise BadKeyFile(f"{file} is damaged: its public key does not match its secret key")
    return keys


def _ensure_complete(folder: Path) -> None:
    for role in ROLES:
        file = folder / f"{role}.key"
        if not file.exists():
            old = (folder / _FORMER).exists()
            what = "was created by an earlier version of dpsr_apex" if old else f"lacks {file.name}: restore it, or"
            raise BadKeyFile(f"{folder} {what}{': ' if old else ' '}delete this folder and resume, to create new keys")


def _write(file: Path, keys: Keys) -> None:
    written = {
        "role": keys.role,
        "secret": keys.secret.decode(),
        "public": {role: key.decode() for role, key in keys.public.items()},
        "snapshot_key": keys.snapshot_key.hex(),
    }
    text = json.dumps(written, indent=2) + "\n"
    write_atomically(file, text, mode=PRIVATE)  # private from the first byte on, regardless of the umask


def _parse(written: Mapping[str, Any]) -> Keys:
    """Return the keys in the content of a file; raise ValueError, KeyError, TypeError or AttributeError if invalid."""
    role, secret = written["role"], written["secret"].encode("ascii")
    public = {name: written["public"][name].encode("ascii") for name in ROLES}
    snapshot_key = bytes.fromhex(written["snapshot_key"])
    for key in (secret, *public.values()):
        public_key_of(key)  # raises ValueError unless it has the format of a key, public or secret
    if role not in ROLES or len(snapshot_key) != (SNAPSHOT_KEY_BYTES if role == ACTOR else 0):
        raise ValueError("an unknown role, or a snapshot key of the wrong size")
    return Keys(role, secret, public, snapshot_key)


def _read_private(file: Path) -> bytes:
    try:
        with file.open("rb") as stream:
            mode = os.fstat(stream.fileno()).st_mode
            text = stream.read(_MAX_BYTES)
    except FileNotFoundError:
        raise BadKeyFile(f"{file} is missing") from None
    except OSError as error:
        raise BadKeyFile(f"{file} cannot be read: {error.strerror}") from error
    if mode & 0o077:
        raise BadKeyFile(f"{file} is accessible to other users: run chmod 600 {file}")
    return text
