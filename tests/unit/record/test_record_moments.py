"""Files of moments: they come back whole, and a file that is damaged or something else is refused with the reason."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load, save

from dpsr_apex.record import moments as module
from dpsr_apex.record.moments import (
    BadMoments,
    Fact,
    Moments,
    decode_moments,
    encode_moments,
    no_moments,
    read_moments,
    write_moments,
)
from tests.unit.replay.naive import rows_of, transitions_of
from tests.unit.replay.twins import make_rows

ENVIRONMENT = "Walk, float32(1, 2), 4 actions"


def fact(identity: int, **changes: Any) -> Fact:
    return Fact(identity, 900, 0.25, None, 0, 0, f"note {identity} ✓")._replace(**changes)


def made(count: int = 5) -> Moments:
    facts = [fact(100 + row, gain=-0.5 if row % 2 else None) for row in range(count)]
    return Moments(ENVIRONMENT, facts, transitions_of(make_rows(0, count)))


def assert_equal(found: Moments, expected: Moments) -> None:
    assert (found.environment, list(found.facts)) == (expected.environment, list(expected.facts))
    assert rows_of(found.transitions) == rows_of(expected.transitions)


@pytest.mark.parametrize("count", [0, 1, 5])
def test_moments_are_read_as_they_were_written(count: int, tmp_path: Path) -> None:
    write_moments(tmp_path / "file.safetensors", made(count))
    assert_equal(read_moments(tmp_path / "file.safetensors"), made(count))
    assert [path.name for path in tmp_path.iterdir()] == ["file.safetensors"]


def test_moments_are_added_replaced_and_removed() -> None:
    rows = make_rows(50, 3)
    chosen = no_moments(ENVIRONMENT)
    for row, identity in enumerate((7, 9, 7)):
        chosen = chosen.with_one(fact(identity, note=f"row {row}"), transitions_of(rows[row : row + 1]))
    assert [(one.identity, one.note) for one in chosen.facts] == [(9, "row 1"), (7, "row 2")]
    assert rows_of(chosen.transitions) == [rows[1], rows[2]]
    assert_equal(chosen.without(9), chosen.only([7, 1_000]))
    assert chosen.without(9).without(7).facts == []


def changed(content: bytes, name: str, change: Callable[[NDArray[Any]], NDArray[Any]]) -> bytes:
    arrays = load(content)
    return save(arrays | {name: change(arrays[name])})


def with_facts(content: bytes, repair: bool = True, **changes: Any) -> bytes:
    """Change facts, or arrays whose checksum is then made to fit: what is left is the check of the content."""
    arrays = load(content)
    facts = json.loads(arrays.pop("facts").tobytes())
    arrays |= {name: value for name, value in changes.items() if isinstance(value, np.ndarray)}
    facts |= {name: value for name, value in changes.items() if not isinstance(value, np.ndarray)}
    if repair:
        facts["checksum"] = module._checksum(arrays)
    return save(arrays | {"facts": np.frombuffer(json.dumps(facts).encode(), np.uint8)})


def missing(content: bytes) -> bytes:
    arrays = load(content)
    del arrays["a_tm1"]
    return save(arrays)


SPOILED: dict[str, Callable[[bytes], bytes]] = {
    "not a file of moments (SafetensorError": lambda content: content[: len(content) // 2],
    "not a file of moments (SafetensorError: ": lambda _: b"",
    "not a file of moments (JSONDecodeError": lambda content: changed(content, "facts", lambda array: array[:-3]),
    "damaged: its checksum": lambda content: changed(content, "pieces", lambda array: array ^ 1),
    "damaged: its checksum does": missing,
    "has format 2": lambda content: with_facts(content, format=2),
    "KeyError": lambda content: save({"facts": load(content)["a_tm1"].view(np.uint8)} | {}),
    "TypeError: a_tm1 is float64": lambda content: with_facts(content, a_tm1=np.zeros(5)),
    "TypeError: its columns": lambda content: with_facts(content, a_tm1=np.zeros(4, np.int64)),
    "refers to a piece": lambda content: with_facts(content, references=np.full(25, 99, np.uint32)),
    "TypeError: note is 7": lambda content: with_facts(content, moments=[fact(1, note=7)._asdict()] * 5),
    "3 notes for 5 moments": lambda content: with_facts(content, moments=[fact(1)._asdict()] * 3),
}


@pytest.mark.parametrize(("reason", "spoil"), SPOILED.items(), ids=SPOILED.keys())
def test_anything_else_is_refused(reason: str, spoil: Callable[[bytes], bytes]) -> None:
    content = encode_moments(made())
    decode_moments(content, "the file")
    if reason == "KeyError":
        reason = "not a file of moments"
    with pytest.raises(BadMoments, match="the file") as refused:
        decode_moments(spoil(content), "the file")
    assert reason in str(refused.value)


def test_files_are_limited_in_size_and_must_exist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "file.safetensors"
    with pytest.raises(BadMoments, match="No such file"):
        read_moments(file)
    write_moments(file, made())
    monkeypatch.setattr(module, "MOST_BYTES", 500)
    with pytest.raises(BadMoments, match="more than 500 bytes"):
        read_moments(file)
    before = file.read_bytes()
    with pytest.raises(BadMoments, match="5 moments are too many"):
        write_moments(file, made())
    assert file.read_bytes() == before
