"""What is kept of quarantined transitions: every fact, the transition itself, and not too much of either."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from dpsr_apex.protocol.quarantine import Quarantine, Quarantined, Refusal
from dpsr_apex.record import quarantine
from dpsr_apex.record.quarantine import QuarantineFolder, quarantine_lines, read_quarantine, read_refusals
from dpsr_apex.replay.replay import Replay
from dpsr_apex.replay.transitions import unpack
from tests.unit.replay.naive import rows_of, transitions_of
from tests.unit.replay.twins import make_config, make_rows


def evicted(count: int, reason: str = "damaged frame") -> list[Quarantined]:
    """The oldest transitions of a replay, evicted one by one."""
    replay = Replay(make_config("per", capacity=500), 1_000, np.random.default_rng(0))
    replay.insert(transitions_of(make_rows(0, 500)))
    made = Quarantine(replay)
    for identity in replay.identities[:count].tolist():
        made.evict([identity], reason)
    return made.drain()


def test_a_quarantined_transition_is_kept_with_all_facts(tmp_path: Path) -> None:
    folder = QuarantineFolder(tmp_path / "quarantine")
    assert not (tmp_path / "quarantine").exists()
    (first, second) = evicted(2)
    second.rows.transitions.r_t[0] = np.nan
    for record in (first, second):
        folder.keep(record)
    rows = read_quarantine(tmp_path / "quarantine")
    assert [(row["t"], row["identity"], row["birth"], row["reason"]) for row in rows] == [
        (500, 0, 1, "damaged frame"),
        (500, 501, 2, "damaged frame"),
    ]
    assert (rows[0]["action"], rows[0]["reward"], rows[0]["gain"], rows[1]["reward"]) == (0, 0.0, None, None)
    arrays = load_file(tmp_path / "quarantine" / "0.safetensors")
    assert rows_of(unpack(arrays)) == rows_of(first.rows.transitions)


def test_a_recovered_replay_that_quarantines_again_adds_nothing(tmp_path: Path) -> None:
    for _ in range(2):
        folder = QuarantineFolder(tmp_path)
        for record in evicted(3):
            folder.keep(record)
            folder.keep(record)
    assert [row["identity"] for row in read_quarantine(tmp_path)] == [0, 501, 1_002]


def test_the_folder_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quarantine, "MOST_ROWS", 7)
    monkeypatch.setattr(quarantine, "MOST_FILES", 4)
    for _ in range(2):
        folder = QuarantineFolder(tmp_path)
        for record in evicted(9):
            folder.keep(record)
    assert len(read_quarantine(tmp_path)) == 7
    assert len(list(tmp_path.glob("*.safetensors"))) == 4


def test_large_transitions_are_not_kept_beyond_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    records = evicted(3)
    records[1].rows.transitions.snapshots[0] = bytes(10_000)
    monkeypatch.setattr(quarantine, "MOST_BYTES", 9_000)
    folder = QuarantineFolder(tmp_path)
    for record in records:
        folder.keep(record)
    assert sorted(path.name for path in tmp_path.glob("*.safetensors")) == ["0.safetensors", "1002.safetensors"]
    assert len(read_quarantine(tmp_path)) == 3


def test_reasons_are_counted_for_the_user(tmp_path: Path) -> None:
    folder = QuarantineFolder(tmp_path)
    assert quarantine_lines(tmp_path) == []
    for number, record in enumerate(evicted(4)):
        folder.keep(record._replace(reason="crash" if number == 2 else "frame"))
    assert quarantine_lines(tmp_path) == ["quarantined: 4 transitions (3 × frame; 1 × crash)"]
    for kind in "abcd":
        folder.keep_refusal(Refusal(7, "actor-0", kind, f"reason {kind}", 2 + (kind == "c")))
    assert quarantine_lines(tmp_path)[1] == "refused: 9 transitions (3 × reason c; 2 × reason a; 2 × reason b; …)"


def test_refusals_are_kept_with_their_sender_up_to_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quarantine, "MOST_ROWS", 3)
    for _ in range(2):
        folder = QuarantineFolder(tmp_path)
        for t in range(2):
            folder.keep_refusal(Refusal(t, "actor-0", "rewards", "the reward inf", 2))
    rows = read_refusals(tmp_path)
    assert [row["t"] for row in rows] == [0, 1, 0]
    assert rows[0] == Refusal(0, "actor-0", "rewards", "the reward inf", 2)._asdict()
