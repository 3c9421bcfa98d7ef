"""The keys of a run, for sockets that other machines can reach: files that only their owner may read.

The server's file stays where the replay runs. The client's file is all that another machine needs, and whoever has it
is in: it is carried over by hand. No secret is ever logged or sent.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import TypeVar

from dpsr_apex.wire.sockets import make_keypair, public_key_of

SERVER_FILE = "server.key"
CLIENT_FILE = "client.key"
_MOST = 4_096  # bytes; a key file has some 200


class BadKeyFile(Exception):
    """A key file that cannot be used: which, why, and what to do."""


@dataclass(frozen=True)
class ServerKeys:
    """What a server needs: its own pair, and the public key of those whom it lets in."""

    public: bytes
    secret: bytes = field(repr=False)
    client_public: bytes


@dataclass(frozen=True)
class ClientKeys:
    """What a client needs: the public key of the server that it means, and its own pair."""

    server_public: bytes
    public: bytes
    secret: bytes = field(repr=False)


_Keys = TypeVar("_Keys", ServerKeys, ClientKeys)


def make_keys(folder: Path) -> None:
    """Write new keys into the folder, unless they are there: a run that is resumed keeps its keys."""
    server_file, client_file = folder / SERVER_FILE, folder / CLIENT_FILE
    if server_file.exists() and client_file.exists():
        return
    if server_file.exists():
        raise BadKeyFile(f"{client_file} is missing: put it back, or remove {server_file} too to get new keys")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    server_public, server_secret = make_keypair()
    client_public, client_secret = make_keypair()
    # The server's goes last: without it nobody has used the client's yet, and both can be made anew.
    _write(client_file, ClientKeys(server_public, client_public, client_secret))
    _write(server_file, ServerKeys(server_public, server_secret, client_public))


def load_server_keys(folder: Path) -> ServerKeys:
    """The server's keys that `make_keys` put into the folder. Raises `BadKeyFile`."""
    return _read(folder / SERVER_FILE, ServerKeys)


def load_client_keys(file: Path) -> ClientKeys:
    """The client's keys in this file, which may have been carried to another place. Raises `BadKeyFile`."""
    return _read(file, ClientKeys)


def _write(file: Path, keys: ServerKeys | ClientKeys) -> None:
    text = json.dumps({name: key.decode() for name, key in asdict(keys).items()}, indent=2) + "\n"
    unfinished = file.with_suffix(".new")
    unfinished.unlink(missing_ok=True)
    # Private from the first moment on, whatever the umask is.
    with open(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="ascii") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())
    unfinished.rename(file)


def _read(file: Path, kind: type[_Keys]) -> _Keys:
    text = _read_private(file)
    try:
        written = json.loads(text)
        keys = {name: written[name].encode("ascii") for name in (field.name for field in fields(kind))}
        for key in keys.values():
            public_key_of(key)  # says whether it has the form of a key, public or secret
        matching = public_key_of(keys["secret"]) == keys["public"]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise BadKeyFile(f"{file} is not the key file of a {kind.__name__.removesuffix('Keys').lower()}") from None
    if not matching:
        raise BadKeyFile(f"{file} is damaged: its public key does not belong to its secret one")
    return kind(**keys)


def _read_private(file: Path) -> bytes:
    try:
        with file.open("rb") as stream:
            mode = os.fstat(stream.fileno()).st_mode
            text = stream.read(_MOST)
    except FileNotFoundError:
        raise BadKeyFile(f"{file} is missing") from None
    except OSError as error:
        raise BadKeyFile(f"{file} cannot be read: {error.strerror}") from error
    if mode & 0o077:
        raise BadKeyFile(f"{file} is open to other users of this machine, so it is no secret: chmod 600 {file}")
    return text
