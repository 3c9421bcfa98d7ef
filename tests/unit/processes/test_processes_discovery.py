from __future__ import annotations

import json
from pathlib import Path

import pytest

from dpsr_apex.processes.discovery import (
    Address,
    FileRegistry,
    Found,
    HeadLocator,
    HeadRecord,
    find_head,
    wait_for_head,
)
from dpsr_apex.wire.addresses import BadAddress, advertised_endpoint
from dpsr_apex.wire.keys import BadKeyFile, load_keys, make_keys, new_keys
from dpsr_apex.wire.messages import ACTOR, SERVER

HERE = HeadRecord("tcp://127.0.0.1:5555", "key", 1)


@pytest.fixture
def registry(tmp_path: Path) -> FileRegistry:
    return FileRegistry(tmp_path / "connection.json")


def record_of(folder: Path, endpoint: str = "tcp://10.0.0.1:5555", incarnation: int = 1) -> HeadRecord:
    """The record of a head with the keys in this folder, which are created if they do not exist."""
    make_keys(folder)
    public = load_keys(folder / "actor.key", ACTOR).public[SERVER].decode()
    return HeadRecord(endpoint, public, incarnation)


def test_what_is_published_is_found_and_the_newest_wins(registry: FileRegistry, tmp_path: Path) -> None:
    assert registry.look_up() is None
    registry.publish(HERE)
    assert registry.look_up() == HERE
    moved = record_of(tmp_path / "keys")
    registry.publish(moved)
    assert registry.look_up() == moved
    assert {file.name for file in tmp_path.iterdir()} == {"connection.json", "keys"}, "nothing is left lying about"
    registry.withdraw()
    registry.withdraw()
    assert registry.look_up() is None


@pytest.mark.parametrize("endpoint", ["tcp://127.0.0.1:5555", "tcp://0.0.0.0:5555", "tcp://10.0.0.1:5555"])
def test_a_head_is_not_published_without_its_key(endpoint: str) -> None:
    with pytest.raises(ValueError, match="has no public key"):
        HeadRecord(endpoint, "", 1)


@pytest.mark.parametrize("endpoint", ["", "nowhere", "tcp://127.0.0.1", "ipc:///tmp/x", "tcp://127.0.0.1:99999"])
def test_an_invalid_address_is_not_published(endpoint: str) -> None:
    with pytest.raises(BadAddress):
        HeadRecord(endpoint, "key", 1)


@pytest.mark.parametrize(
    "written",
    [
        "",
        "{",
        "[]",
        "null",
        '"tcp://127.0.0.1:5555"',
        json.dumps({"endpoint": "tcp://127.0.0.1:5555"}),
        json.dumps({"endpoint": "nowhere", "public_key": "key", "incarnation": 1, "machine": "here"}),
        json.dumps({"endpoint": "tcp://10.0.0.1:5555", "public_key": "", "incarnation": 1, "machine": "here"}),
        json.dumps({"endpoint": "tcp://127.0.0.1:5555", "public_key": "key", "incarnation": "one", "machine": "here"}),
        "\N{SNOWMAN}",
    ],
)
def test_what_is_no_notice_counts_as_none(registry: FileRegistry, tmp_path: Path, written: str) -> None:
    (tmp_path / "connection.json").write_text(written, encoding="utf-8")
    assert registry.look_up() is None


@pytest.mark.parametrize("endpoint", ["tcp://127.0.0.1:5555", "tcp://10.0.0.1:5555"])
def test_a_head_is_found_with_its_key_alone(registry: FileRegistry, tmp_path: Path, endpoint: str) -> None:
    keys = tmp_path / "keys"
    registry.publish(record_of(keys, endpoint, incarnation=7))
    address = Address(endpoint, load_keys(keys / "actor.key", ACTOR))
    assert find_head(registry, keys / "actor.key", ACTOR) == Found(address, 7)
    with pytest.raises(BadKeyFile, match="is missing"):
        find_head(registry, tmp_path / "actor.key", ACTOR)
    with pytest.raises(BadKeyFile, match="of the role learner"):
        find_head(registry, keys / "learner.key", ACTOR)
    make_keys(tmp_path / "others")
    with pytest.raises(BadKeyFile, match="does not belong to the run whose head is published in"):
        find_head(registry, tmp_path / "others" / "actor.key", ACTOR)


def test_a_head_that_listens_for_another_machine_alone_is_not_looked_for_here(
    registry: FileRegistry, tmp_path: Path
) -> None:
    registry.publish(HeadRecord("tcp://127.0.0.1:5555", "key", 1, machine="elsewhere"))
    with pytest.raises(BadAddress, match="is on elsewhere and accepts only connections from that machine"):
        find_head(registry, tmp_path / "actor.key", ACTOR)


def test_a_head_is_waited_for_and_looked_up_again(registry: FileRegistry, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    key, here = keys / "actor.key", record_of(keys, HERE.endpoint)
    assert wait_for_head(registry, key, ACTOR, 0.0) is None
    registry.publish(here)
    head = wait_for_head(registry, key, ACTOR, 0.0)
    assert head is not None
    assert head.address == Address(HERE.endpoint, load_keys(key, ACTOR))
    assert not head.look_again(), "it is where it was"
    registry.withdraw()
    assert not head.look_again(), "nothing better is known"
    registry.publish(record_of(keys, HERE.endpoint, 2))
    assert head.look_again(), "another process at the same place"
    registry.publish(record_of(keys, incarnation=3))
    assert head.look_again()
    assert head.address.endpoint == "tcp://10.0.0.1:5555"
    assert not head.look_again()


def test_a_fixed_address_is_not_looked_up() -> None:
    head = HeadLocator(Address("tcp://10.0.0.1:1", new_keys()[ACTOR]))
    assert not head.may_move
    assert not head.look_again()


def test_an_address_that_stands_for_all_is_published_as_one_that_others_can_use() -> None:
    for everywhere in ("tcp://0.0.0.0:5555", "tcp://[::]:5555"):
        endpoint = advertised_endpoint(everywhere)
        assert endpoint.endswith(":5555")
        assert endpoint != everywhere
    assert advertised_endpoint("tcp://10.0.0.1:5555") == "tcp://10.0.0.1:5555"
