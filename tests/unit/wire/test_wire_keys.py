"""Key files: private from the beginning, kept by a run for its life, and checked before they are used."""

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


def test_both_sides_get_keys_that_fit(folder: Path) -> None:
    server, client = load_server_keys(folder), load_client_keys(folder / "client.key")
    assert client.server_public == server.public == public_key_of(server.secret)
    assert server.client_public == client.public == public_key_of(client.secret)
    assert server.secret != client.secret


@pytest.mark.usefixtures("_umask")
def test_only_the_owner_may_read_them(tmp_path: Path) -> None:
    make_keys(tmp_path / "new" / "keys")
    folder = tmp_path / "new" / "keys"
    assert mode(folder) == 0o700
    assert {file.name: mode(file) for file in folder.iterdir()} == {"server.key": 0o600, "client.key": 0o600}


def test_they_are_private_before_anything_is_in_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    real = os.open

    def watched(path: Path, flags: int, permissions: int) -> int:
        descriptor = real(path, flags, permissions)
        seen.append(os.fstat(descriptor).st_mode & 0o777)
        return descriptor

    monkeypatch.setattr(os, "open", watched)
    make_keys(tmp_path)
    assert seen == [0o600, 0o600]


def test_keys_that_are_there_are_kept(folder: Path) -> None:
    before = {file.name: file.read_bytes() for file in folder.iterdir()}
    make_keys(folder)
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == before


def test_every_run_has_keys_of_its_own(tmp_path: Path) -> None:
    make_keys(tmp_path / "a")
    make_keys(tmp_path / "b")
    assert load_server_keys(tmp_path / "a").secret != load_server_keys(tmp_path / "b").secret


def test_a_client_file_works_anywhere(folder: Path, tmp_path: Path) -> None:
    carried = tmp_path / "from the replay's machine"
    (folder / "client.key").rename(carried)
    assert load_client_keys(carried).server_public == load_server_keys(folder).public


def test_keys_that_were_never_finished_are_made_anew(folder: Path) -> None:
    abandoned = load_client_keys(folder / "client.key")
    (folder / "server.key").unlink()
    (folder / "server.new").write_text("half a ")
    make_keys(folder)
    assert load_client_keys(folder / "client.key") != abandoned
    assert load_client_keys(folder / "client.key").server_public == load_server_keys(folder).public
    assert not (folder / "server.new").exists()


def test_a_run_whose_client_file_was_taken_away_is_not_given_another(folder: Path) -> None:
    (folder / "client.key").unlink()
    with pytest.raises(BadKeyFile, match=r"client\.key is missing: put it back, or remove .*server\.key too"):
        make_keys(folder)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadKeyFile, match=r"server\.key is missing"):
        load_server_keys(tmp_path)
    with pytest.raises(BadKeyFile, match="none is missing"):
        load_client_keys(tmp_path / "none")


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadKeyFile, match="cannot be read: Is a directory"):
        load_client_keys(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(BadKeyFile, match="cannot be read: Not a directory"):
        load_client_keys(tmp_path / "file" / "client.key")


@pytest.mark.parametrize("open_to", [0o640, 0o604, 0o660, 0o601])
def test_a_file_that_others_may_touch_is_refused(folder: Path, open_to: int) -> None:
    (folder / "client.key").chmod(open_to)
    with pytest.raises(BadKeyFile, match=r"open to other users.*: chmod 600 .*client\.key"):
        load_client_keys(folder / "client.key")


def test_one_side_cannot_use_the_file_of_the_other(folder: Path) -> None:
    with pytest.raises(BadKeyFile, match="is not the key file of a client"):
        load_client_keys(folder / "server.key")
    (folder / "client.key").replace(folder / "server.key")
    with pytest.raises(BadKeyFile, match="is not the key file of a server"):
        load_server_keys(folder)


@pytest.mark.parametrize(
    "content",
    [b"", b"nonsense", b"\xff\xfe", b"[]", b"null", b"7", b"{}", b'{"public": 1}', b"[" * 4_000, b" " * 100_000],
)
def test_what_is_no_key_file_is_refused(folder: Path, content: bytes) -> None:
    (folder / "client.key").write_bytes(content)
    with pytest.raises(BadKeyFile, match="is not the key file of a client"):
        load_client_keys(folder / "client.key")


@pytest.mark.parametrize("broken", ["", "short", "ü" * 40, "~" * 40, "0" * 39, 7, None])
@pytest.mark.parametrize("name", ["server_public", "public", "secret"])
def test_what_is_no_key_is_refused(folder: Path, name: str, broken: str) -> None:
    rewrite(folder / "client.key", lambda written: written.update({name: broken}))
    with pytest.raises(BadKeyFile, match="is not the key file of a client"):
        load_client_keys(folder / "client.key")


def test_halves_that_do_not_belong_together_are_noticed(folder: Path) -> None:
    rewrite(folder / "client.key", lambda written: written.update(secret=make_keypair()[1].decode()))
    with pytest.raises(BadKeyFile, match="is damaged"):
        load_client_keys(folder / "client.key")


def test_no_secret_is_shown(folder: Path) -> None:
    server, client = load_server_keys(folder), load_client_keys(folder / "client.key")
    shown = repr((server, client))
    assert server.public.decode() in shown
    assert server.secret.decode() not in shown
    assert client.secret.decode() not in shown


def test_a_crash_between_the_files_leaves_nothing_that_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
