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
from dpsr_apex.wire.keys import BadKeyFile, load_client_keys, make_keys

HERE = HeadRecord("tcp://127.0.0.1:5555", "", 1)


@pytest.fixture
def registry(tmp_path: Path) -> FileRegistry:
    return FileRegistry(tmp_path / "connection.json")


def guarded_notice(folder: Path, incarnation: int = 1) -> HeadRecord:
    make_keys(folder)
    public = load_client_keys(folder / "client.key").server_public.decode()
    return HeadRecord("tcp://10.0.0.1:5555", public, incarnation)


def test_what_is_published_is_found_and_the_newest_wins(registry: FileRegistry, tmp_path: Path) -> None:
    assert registry.look_up() is None
    registry.publish(HERE)
    assert registry.look_up() == HERE
    moved = guarded_notice(tmp_path / "keys")
    registry.publish(moved)
    assert registry.look_up() == moved
    assert {file.name for file in tmp_path.iterdir()} == {"connection.json", "keys"}, "nothing is left lying about"
    registry.withdraw()
    registry.withdraw()
    assert registry.look_up() is None


@pytest.mark.parametrize("endpoint", ["tcp://0.0.0.0:5555", "tcp://10.0.0.1:5555", "tcp://[::]:5555"])
def test_what_others_can_reach_is_not_published_without_a_key(endpoint: str) -> None:
    with pytest.raises(ValueError, match="cannot be published without a key"):
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
        json.dumps({"endpoint": "nowhere", "public_key": "", "incarnation": 1, "machine": "here"}),
        json.dumps({"endpoint": "tcp://10.0.0.1:5555", "public_key": "", "incarnation": 1, "machine": "here"}),
        json.dumps({"endpoint": "tcp://127.0.0.1:5555", "public_key": "", "incarnation": "one", "machine": "here"}),
        "\N{SNOWMAN}",
    ],
)
def test_what_is_no_notice_counts_as_none(registry: FileRegistry, tmp_path: Path, written: str) -> None:
    (tmp_path / "connection.json").write_text(written, encoding="utf-8")
    assert registry.look_up() is None


def test_a_head_beyond_this_machine_is_found_with_its_key_alone(registry: FileRegistry, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    registry.publish(guarded_notice(keys, incarnation=7))
    address = Address("tcp://10.0.0.1:5555", load_client_keys(keys / "client.key"))
    assert find_head(registry, keys / "client.key") == Found(address, 7)
    with pytest.raises(BadKeyFile, match="is missing"):
        find_head(registry, tmp_path / "client.key")
    make_keys(tmp_path / "others")
    with pytest.raises(BadKeyFile, match="does not belong to the run whose head is published in"):
        find_head(registry, tmp_path / "others" / "client.key")


def test_a_head_that_listens_for_another_machine_alone_is_not_looked_for_here(
    registry: FileRegistry, tmp_path: Path
) -> None:
    registry.publish(HeadRecord("tcp://127.0.0.1:5555", "", 1, machine="elsewhere"))
    with pytest.raises(BadAddress, match="is on elsewhere and accepts only connections from that machine"):
        find_head(registry, tmp_path / "client.key")


def test_a_head_is_waited_for_and_looked_up_again(registry: FileRegistry, tmp_path: Path) -> None:
    key = tmp_path / "keys" / "client.key"
    assert wait_for_head(registry, key, 0.0) is None
    registry.publish(HERE)
    head = wait_for_head(registry, key, 0.0)
    assert head is not None
    assert head.address == Address(HERE.endpoint, None)
    assert not head.look_again(), "it is where it was"
    registry.withdraw()
    assert not head.look_again(), "nothing better is known"
    registry.publish(HeadRecord(HERE.endpoint, "", 2))
    assert head.look_again(), "another life at the same place"
    registry.publish(guarded_notice(tmp_path / "keys", 3))
    assert head.look_again()
    assert head.address.endpoint == "tcp://10.0.0.1:5555"
    assert not head.look_again()


def test_who_was_told_where_the_head_is_does_not_look() -> None:
    head = HeadLocator(Address("tcp://10.0.0.1:1", None))
    assert not head.may_move
    assert not head.look_again()


def test_an_address_that_stands_for_all_is_published_as_one_that_others_can_use() -> None:
    for everywhere in ("tcp://0.0.0.0:5555", "tcp://[::]:5555"):
        endpoint = advertised_endpoint(everywhere)
        assert endpoint.endswith(":5555")
        assert endpoint != everywhere
    assert advertised_endpoint("tcp://10.0.0.1:5555") == "tcp://10.0.0.1:5555"
