"""Key files: private from creation, kept when a run is resumed, and validated before use."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from dpsr_apex.wire import keys
from dpsr_apex.wire.keys import ROLES, BadKeyFile, Keys, load_keys, make_keys
from dpsr_apex.wire.messages import ACTOR, LEARNER, SERVER
from dpsr_apex.wire.sockets import make_keypair, public_key_of

FILES = sorted(f"{role}.key" for role in ROLES)


@pytest.fixture(params=[0o000, 0o022, 0o077])
def _umask(request: pytest.FixtureRequest) -> Iterator[None]:
    before = os.umask(request.param)
    yield
    os.umask(before)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    make_keys(tmp_path / "keys")
    return tmp_path / "keys"


def load_all(folder: Path) -> dict[str, Keys]:
    return {role: load_keys(folder / f"{role}.key", role) for role in ROLES}


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def rewrite(file: Path, change: Callable[[dict[str, Any]], object]) -> None:
    written = json.loads(file.read_text())
    change(written)
    file.write_text(json.dumps(written))


def test_every_role_has_its_own_pair_and_the_public_keys_of_all(folder: Path) -> None:
    loaded = load_all(folder)
    public = {role: public_key_of(own.secret) for role, own in loaded.items()}
    assert len(set(public.values())) == len(ROLES)
    assert all((own.role, own.public) == (role, public) for role, own in loaded.items())


def test_a_file_contains_no_secret_of_another_role(folder: Path) -> None:
    loaded = load_all(folder)
    for one, other in combinations(loaded.values(), 2):
        for holder, secret in ((one, other.secret), (other, one.secret)):
            assert secret.decode() not in (folder / f"{holder.role}.key").read_text()


def test_only_actors_have_the_key_of_snapshots(folder: Path) -> None:
    found = {role: own.snapshot_key for role, own in load_all(folder).items()}
    key = found.pop(ACTOR)
    assert len(key) == 32
    assert not any(found.values())
    assert not any(key.hex() in (folder / f"{role}.key").read_text() for role in found)


@pytest.mark.usefixtures("_umask")
def test_only_the_owner_may_read_the_files(tmp_path: Path) -> None:
    make_keys(tmp_path / "new" / "keys")
    folder = tmp_path / "new" / "keys"
    assert mode(folder) == 0o700
    assert {file.name: mode(file) for file in folder.iterdir()} == dict.fromkeys(FILES, 0o600)


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
    assert modes == [0o600] * len(ROLES)


def test_a_folder_that_others_could_enter_is_closed(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    make_keys(tmp_path)
    assert mode(tmp_path) == 0o700


def test_existing_keys_are_kept(folder: Path) -> None:
    before = {file.name: file.read_bytes() for file in folder.iterdir()}
    make_keys(folder)
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == before


def test_every_run_has_its_own_keys(tmp_path: Path) -> None:
    make_keys(tmp_path / "a")
    make_keys(tmp_path / "b")
    for one, other in zip(load_all(tmp_path / "a").values(), load_all(tmp_path / "b").values(), strict=True):
        assert one.secret != other.secret
        assert one.snapshot_key != other.snapshot_key or not one.snapshot_key


def test_a_file_works_at_another_path(folder: Path, tmp_path: Path) -> None:
    copied = tmp_path / "from the replay's machine"
    (folder / "actor.key").rename(copied)
    assert load_keys(copied, ACTOR).public == load_keys(folder / "server.key", SERVER).public


def test_incomplete_keys_are_recreated(folder: Path) -> None:
    abandoned = load_keys(folder / "actor.key", ACTOR)
    (folder / "server.key").unlink()
    (folder / ".unfinished-0-server.key").write_text("half a ")
    make_keys(folder)
    assert load_keys(folder / "actor.key", ACTOR) != abandoned
    assert len({tuple(own.public.values()) for own in load_all(folder).values()}) == 1


@pytest.mark.parametrize("role", sorted(set(ROLES) - {SERVER}))
def test_a_missing_file_is_not_replaced(folder: Path, role: str) -> None:
    (folder / f"{role}.key").unlink()
    with pytest.raises(BadKeyFile, match=rf"keys lacks {role}\.key: restore it, or delete this folder and resume"):
        make_keys(folder)


def test_the_files_of_an_earlier_version_are_refused_with_the_way_out(folder: Path) -> None:
    for role in set(ROLES) - {SERVER}:
        (folder / f"{role}.key").unlink()
    (folder / "client.key").touch()
    with pytest.raises(BadKeyFile, match="by an earlier version of dpsr_apex: delete this folder and resume"):
        make_keys(folder)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadKeyFile, match="none is missing"):
        load_keys(tmp_path / "none", ACTOR)


def test_an_unreadable_path_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadKeyFile, match="cannot be read: Is a directory"):
        load_keys(tmp_path, ACTOR)
    (tmp_path / "file").touch()
    with pytest.raises(BadKeyFile, match="cannot be read: Not a directory"):
        load_keys(tmp_path / "file" / "actor.key", ACTOR)


@pytest.mark.parametrize("open_to", [0o640, 0o604, 0o660, 0o601])
def test_a_file_accessible_to_others_is_refused(folder: Path, open_to: int) -> None:
    (folder / "actor.key").chmod(open_to)
    with pytest.raises(BadKeyFile, match=r"accessible to other users: run chmod 600 .*actor\.key"):
        load_keys(folder / "actor.key", ACTOR)


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("wanted", ROLES)
def test_the_files_of_two_roles_are_not_interchangeable(folder: Path, role: str, wanted: str) -> None:
    file = folder / f"{role}.key"
    if role == wanted:
        assert load_keys(file, wanted).role == role
        return
    with pytest.raises(BadKeyFile, match=rf"is the key file of the role {role}: use {wanted}\.key"):
        load_keys(file, wanted)


@pytest.mark.parametrize(
    "content",
    [b"", b"nonsense", b"\xff\xfe", b"[]", b"null", b"7", b"{}", b'{"role": 1}', b"[" * 4_000, b" " * 100_000],
)
def test_invalid_content_is_refused(folder: Path, content: bytes) -> None:
    (folder / "actor.key").write_bytes(content)
    with pytest.raises(BadKeyFile, match="is not a key file of this version"):
        load_keys(folder / "actor.key", ACTOR)


@pytest.mark.parametrize("broken", ["", "short", "ü" * 40, "~" * 40, "0" * 39, 7, None, {}, [], "0" * 64])
@pytest.mark.parametrize("name", ["role", "secret", "public", "server", "snapshot_key"])
def test_an_invalid_entry_is_refused(folder: Path, name: str, broken: object) -> None:
    def damage(written: dict[str, Any]) -> None:
        (written["public"] if name == "server" else written)[name] = broken

    if name == "snapshot_key" and broken == "0" * 64:
        return
    rewrite(folder / "actor.key", damage)
    with pytest.raises(BadKeyFile, match="is not a key file of this version"):
        load_keys(folder / "actor.key", ACTOR)


def test_a_key_pair_that_does_not_match_is_refused(folder: Path) -> None:
    rewrite(folder / "actor.key", lambda written: written.update(secret=make_keypair()[1].decode()))
    with pytest.raises(BadKeyFile, match="is damaged"):
        load_keys(folder / "actor.key", ACTOR)


def test_a_key_of_snapshots_in_another_file_is_refused(folder: Path) -> None:
    rewrite(folder / "learner.key", lambda written: written.update(snapshot_key="0" * 64))
    with pytest.raises(BadKeyFile, match="is not a key file of this version"):
        load_keys(folder / "learner.key", LEARNER)


def test_repr_does_not_contain_secret_keys(folder: Path) -> None:
    for own in load_all(folder).values():
        assert own.public[own.role].decode() in repr(own)
        assert own.secret.decode() not in repr(own)
        assert "snapshot_key" not in repr(own)


def test_after_a_crash_between_the_files_keys_can_be_created(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = keys._write

    def crash(file: Path, written: Keys) -> None:
        if file.name == "server.key":
            raise OSError("no space")
        real(file, written)

    monkeypatch.setattr(keys, "_write", crash)
    with pytest.raises(OSError, match="no space"):
        make_keys(tmp_path)
    monkeypatch.undo()
    make_keys(tmp_path)
    assert len({tuple(own.public.values()) for own in load_all(tmp_path).values()}) == 1
