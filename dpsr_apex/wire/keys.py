"""CURVE key files of a run, for sockets that other machines can reach; only their owner may read them.

The server's file stays on the replay's machine. The client's file is copied manually to other machines and grants
access to the run. Secret keys are never logged or sent.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import TypeVar

from dpsr_apex.errors import UserError
from dpsr_apex.files import PRIVATE, write_atomically
from dpsr_apex.wire.sockets import make_keypair, public_key_of

SERVER_FILE = "server.key"
CLIENT_FILE = "client.key"
_MAX_BYTES = 4_096  # a key file has about 200


class BadKeyFile(UserError):
    """Raised for a key file that cannot be used: its path, the reason, and what to do."""


@dataclass(frozen=True)
class ServerKeys:
    """Keys of a server: its own key pair, and the public key of the clients that it accepts."""

    public: bytes
    secret: bytes = field(repr=False)
    client_public: bytes


@dataclass(frozen=True)
class ClientKeys:
    """Keys of a client: the public key of its server, and its own key pair."""

    server_public: bytes
    public: bytes
    secret: bytes = field(repr=False)


_Keys = TypeVar("_Keys", ServerKeys, ClientKeys)


def make_keys(folder: Path) -> None:
    """Create key files in the folder unless they exist: a resumed run keeps its keys."""
    server_file, client_file = folder / SERVER_FILE, folder / CLIENT_FILE
    if server_file.exists() and client_file.exists():
        return
    if server_file.exists():
        raise BadKeyFile(f"{client_file} is missing: restore it, or delete {server_file} too to create new keys")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    server_public, server_secret = make_keypair()
    client_public, client_secret = make_keypair()
    # The server's file is written last: without it the client's cannot have been used, and both can be recreated.
    _write(client_file, ClientKeys(server_public, client_public, client_secret))
    _write(server_file, ServerKeys(server_public, server_secret, client_public))


def load_server_keys(folder: Path) -> ServerKeys:
    """Read the server's keys that `make_keys` wrote to the folder. Raises `BadKeyFile`."""
    return _read(folder / SERVER_FILE, ServerKeys)


def load_client_keys(file: Path) -> ClientKeys:
    """Read the client's keys from a file, which may be a copy on another machine. Raises `BadKeyFile`."""
    return _read(file, ClientKeys)


def _write(file: Path, keys: ServerKeys | ClientKeys) -> None:
    text = json.dumps({name: key.decode() for name, key in asdict(keys).items()}, indent=2) + "\n"
    write_atomically(file, text, mode=PRIVATE)  # private from the first byte on, regardless of the umask


def _read(file: Path, keys_type: type[_Keys]) -> _Keys:
    text = _read_private(file)
    try:
        content = json.loads(text)
        keys = {name: content[name].encode("ascii") for name in (field.name for field in fields(keys_type))}
        for key in keys.values():
            public_key_of(key)  # raises ValueError unless it has the format of a key, public or secret
        matching = public_key_of(keys["secret"]) == keys["public"]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise BadKeyFile(f"{file} is not a {keys_type.__name__.removesuffix('Keys').lower()} key file") from None
    if not matching:
        raise BadKeyFile(f"{file} is damaged: its public key does not match its secret key")
    return keys_type(**keys)


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
