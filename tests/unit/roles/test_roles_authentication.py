"""Tags of snapshots: only a process with the key makes them, and every change of a snapshot is found."""

from __future__ import annotations

import numpy as np

from dpsr_apex.replay.transitions import Transitions
from dpsr_apex.roles.authentication import NOT_AUTHENTIC, SnapshotKey
from tests.unit.replay.naive import rows_of, transitions_of
from tests.unit.replay.twins import make_rows

KEY = SnapshotKey(bytes(range(32)))


def signed(count: int = 6) -> Transitions:
    return KEY.sign(transitions_of(make_rows(0, count)))


def test_signing_changes_the_tags_only() -> None:
    before, after = transitions_of(make_rows(0, 6)), signed()
    assert [row[:-1] for row in rows_of(after)] == [row[:-1] for row in rows_of(before)]
    assert len(set(after.snapshot_tags.tolist())) == 6
    assert KEY.faults(after) == {}
    assert len(KEY.sign(before.rows(0, 0))) == 0


def test_a_snapshot_that_was_changed_swapped_or_signed_with_another_key_is_found() -> None:
    stored = signed()
    stored.snapshots[1] = stored.snapshots[1][:-1] + b"?"
    stored.snapshots[3] = stored.snapshots[4]
    assert KEY.faults(stored) == dict.fromkeys((1, 3), NOT_AUTHENTIC)
    other = SnapshotKey(bytes(32))
    assert set(other.faults(signed())) == set(range(6))
    assert other.faults(other.sign(signed())) == {}


def test_a_transition_without_a_tag_is_found() -> None:
    stored = signed(3)
    stored.snapshot_tags[:] = np.zeros(3)
    assert set(KEY.faults(stored)) == {0, 1, 2}
