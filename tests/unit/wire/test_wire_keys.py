"""Key files: private from creation, kept when a run is resumed, and validated before use."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dpsr_apex.wire import keys
from dpsr_apex.wire.keys import BadKeyFile, load_client_keys, load_server_keys, make_keys
from dpsr_apex.wire.sockets import make_keypair, public_key_of


@pytest.fixture(params=[0o000, 0o022, 0o077])
def _umask(request: pytest.FixtureRequest) -> Iterator[None]:
    before = os.umask(request.param)
    yield
    os.umask(before)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    make_keys(tmp_path / "keys")
    return tmp_path / "keys"


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def rewrite(file: Path, change: Callable[[dict[str, str]], object]) -> None:
    written = json.loads(file.read_text())
    change(written)
    file.write_text(json.dumps(written))


def test_the_keys_of_both_sides_match(folder: Path) -> None:
    server, client = load_server_keys(folder), load_client_keys(folder / "client.key")
    assert client.server_public == server.public == public_key_of(server.secret)
    assert server.client_public == client.public == public_key_of(client.secret)
    assert server.secret != client.secret


@pytest.mark.usefixtures("_umask")
def test_only_the_owner_may_read_the_files(tmp_path: Path) -> None:
    make_keys(tmp_path / "new" / "keys")
    folder = tmp_path / "new" / "keys"
    assert mode(folder) == 0o700
    assert {file.name: mode(file) for file in folder.iterdir()} == {"server.key": 0o600, "client.key": 0o600}


def test_files_are_private_before_anything_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    modes: list[int] = []
    real = os.open

    def recording_open(path: Path, flags: int, permissions: int = 0o777) -> int:
        descriptor = real(path, flags, permissions)
        if flags & os.O_CREAT:
            modes.append(os.fstat(descriptor).st_mode & 0o777)
        return descriptor

    monkeypatch.setattr(os, "open", recording_open)
    make_keys(tmp_path)
    assert modes == [0o600, 0o600]


def test_existing_keys_are_kept(folder: Path) -> None:
    before = {file.name: file.read_bytes() for file in folder.iterdir()}
    make_keys(folder)
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == before


def test_every_run_has_its_own_keys(tmp_path: Path) -> None:
    make_keys(tmp_path / "a")
    make_keys(tmp_path / "b")
    assert load_server_keys(tmp_path / "a").secret != load_server_keys(tmp_path / "b").secret


def test_a_client_file_works_at_another_path(folder: Path, tmp_path: Path) -> None:
    copied = tmp_path / "from the replay's machine"
    (folder / "client.key").rename(copied)
    assert load_client_keys(copied).server_public == load_server_keys(folder).public


def test_incomplete_keys_are_recreated(folder: Path) -> None:
    abandoned = load_client_keys(folder / "client.key")
    (folder / "server.key").unlink()
    (folder / ".unfinished-0-server.key").write_text("half a ")
    make_keys(folder)
    assert load_client_keys(folder / "client.key") != abandoned
    assert load_client_keys(folder / "client.key").server_public == load_server_keys(folder).public


def test_a_missing_client_file_is_not_replaced(folder: Path) -> None:
    (folder / "client.key").unlink()
    with pytest.raises(BadKeyFile, match=r"client\.key is missing: restore it, or delete .*server\.key too"):
        make_keys(folder)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadKeyFile, match=r"server\.key is missing"):
        load_server_keys(tmp_path)
    with pytest.raises(BadKeyFile, match="none is missing"):
        load_client_keys(tmp_path / "none")


def test_an_unreadable_path_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadKeyFile, match="cannot be read: Is a directory"):
        load_client_keys(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(BadKeyFile, match="cannot be read: Not a directory"):
        load_client_keys(tmp_path / "file" / "client.key")


@pytest.mark.parametrize("open_to", [0o640, 0o604, 0o660, 0o601])
def test_a_file_accessible_to_others_is_refused(folder: Path, open_to: int) -> None:
    (folder / "client.key").chmod(open_to)
    with pytest.raises(BadKeyFile, match=r"accessible to other users: run chmod 600 .*client\.key"):
        load_client_keys(folder / "client.key")


def test_server_and_client_files_are_not_interchangeable(folder: Path) -> None:
    with pytest.raises(BadKeyFile, match="is not a client key file"):
        load_client_keys(folder / "server.key")
    (folder / "client.key").replace(folder / "server.key")
    with pytest.raises(BadKeyFile, match="is not a server key file"):
        load_server_keys(folder)


@pytest.mark.parametrize(
    "content",
    [b"", b"nonsense", b"\xff\xfe", b"[]", b"null", b"7", b"{}", b'{"public": 1}', b"[" * 4_000, b" " * 100_000],
)
def test_invalid_content_is_refused(folder: Path, content: bytes) -> None:
    (folder / "client.key").write_bytes(content)
    with pytest.raises(BadKeyFile, match="is not a client key file"):
        load_client_keys(folder / "client.key")


@pytest.mark.parametrize("broken", ["", "short", "ü" * 40, "~" * 40, "0" * 39, 7, None])
@pytest.mark.parametrize("name", ["server_public", "public", "secret"])
def test_an_invalid_key_is_refused(folder: Path, name: str, broken: str) -> None:
    rewrite(folder / "client.key", lambda written: written.update({name: broken}))
    with pytest.raises(BadKeyFile, match="is not a client key file"):
        load_client_keys(folder / "client.key")


def test_a_key_pair_that_does_not_match_is_refused(folder: Path) -> None:
    rewrite(folder / "client.key", lambda written: written.update(secret=make_keypair()[1].decode()))
    with pytest.raises(BadKeyFile, match="is damaged"):
        load_client_keys(folder / "client.key")


def test_repr_does_not_contain_secret_keys(folder: Path) -> None:
    server, client = load_server_keys(folder), load_client_keys(folder / "client.key")
    text = repr((server, client))
    assert server.public.decode() in text
    assert server.secret.decode() not in text
    assert client.secret.decode() not in text


def test_after_a_crash_between_the_files_keys_can_be_created(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = keys._write

    def crash(file: Path, written: keys.ServerKeys | keys.ClientKeys) -> None:
        if file.name == "server.key":
            raise OSError("no space")
        real(file, written)

    monkeypatch.setattr(keys, "_write", crash)
    with pytest.raises(OSError, match="no space"):
        make_keys(tmp_path)
    monkeypatch.undo()
    make_keys(tmp_path)
    assert load_client_keys(tmp_path / "client.key").server_public == load_server_keys(tmp_path).public
