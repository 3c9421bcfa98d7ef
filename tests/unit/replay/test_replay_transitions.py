"""Transitions at rest: values and sharing survive being packed, and a frame goes with the last that uses it."""

from __future__ import annotations

import gc
import shutil
import subprocess
import sys
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dpsr_apex
from dpsr_apex.methods import METHODS
from dpsr_apex.replay.replay import Replay
from dpsr_apex.replay.store import Store
from dpsr_apex.replay.transitions import (
    COLUMNS,
    PACKED,
    PackedRows,
    concatenate,
    from_lists,
    pack,
    to_lists,
    unpack,
)
from tests.unit.replay.naive import Row, rows_of, transitions_of
from tests.unit.replay.twins import make_config, make_rows


@st.composite
def shared_rows(draw: st.DrawFn) -> list[Row]:
    """Transitions whose frames come from a small pool, so that many are one object; equal bytes need not be.

    No single bytes: Python makes those one object when they are sliced, which is as good.
    """
    contents = draw(st.lists(st.binary(min_size=2, max_size=4) | st.just(b""), min_size=1, max_size=6))
    pool = [bytes(bytearray(content)) for content in (*contents, *contents)]
    stack = st.lists(st.sampled_from(pool), max_size=4).map(tuple)
    row = st.tuples(
        stack,
        st.integers(-(2**63), 2**63 - 1),
        st.floats(width=32, allow_nan=False),
        stack,
        st.booleans(),
        st.integers(0, 255),
        st.sampled_from(pool),
        st.integers(0, 2**64 - 1),
        st.integers(0, 2**64 - 1),
        st.integers(0, 2**32 - 1),
        st.integers(0, 2**64 - 1),
    )
    return draw(st.lists(row, max_size=8))


def sharing(rows: list[Row]) -> list[int]:
    """For each piece of bytes the number of the first piece that is the same object."""
    pieces = [piece for row in rows for piece in (*row[0], *row[3], row[6])]
    return [next(i for i, other in enumerate(pieces) if other is piece) for piece in pieces]


@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(shared_rows())
def test_packing_keeps_values_and_sharing(rows: list[Row]) -> None:
    arrays = pack(transitions_of(rows))
    again = rows_of(unpack(arrays))
    assert again == rows
    assert sharing(again) == sharing(rows)
    assert all(array.dtype.kind in "biuf" for array in arrays.values())  # npz without objects


@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(shared_rows(), st.data())
def test_single_rows_are_read_from_the_packed_form(rows: list[Row], data: st.DataObject) -> None:
    arrays = pack(transitions_of(rows))
    content = arrays["pieces"].tobytes()
    wanted = data.draw(st.lists(st.integers(0, max(len(rows) - 1, 0)), max_size=5)) if rows else []
    found = PackedRows(arrays, lambda start, end: content[start:end]).read(wanted)
    assert rows_of(found) == [rows[row] for row in wanted]


def test_only_the_pieces_of_a_row_are_read_and_each_once() -> None:
    rows = make_rows(0, 50)
    arrays = pack(transitions_of(rows))
    content, read = arrays["pieces"].tobytes(), []

    def pieces(start: int, end: int) -> bytes:
        read.append(content[start:end])
        return content[start:end]

    assert rows_of(PackedRows(arrays, pieces).read([20])) == [rows[20]]
    assert sorted(read) == sorted({*rows[20][0], *rows[20][3], rows[20][6]})


def test_packed_arrays_hold_each_shared_frame_once() -> None:
    rows = make_rows(0, 100)
    frames = {frame for row in rows for frame in (*row[0], *row[3])}
    assert pack(transitions_of(rows))["piece_sizes"].size == len(frames) + 100


def test_rows_are_written_where_they_belong_and_the_last_stays() -> None:
    store = Store(5)
    rows = make_rows(0, 3)
    store.write(np.array([4, 1, 4]), transitions_of(rows))
    assert rows_of(store.read(np.array([1, 4]))) == [rows[1], rows[2]]
    assert rows_of(store.read(np.zeros(1, dtype=np.int64)))[0] == ((), 0, 0.0, (), False, 0, b"", 0, 0, 0, 0)
    assert rows_of(transitions_of(rows).rows(1, 3)) == rows[1:]


def test_rows_are_picked_sliced_and_joined_in_order() -> None:
    rows = make_rows(0, 6)
    transitions = transitions_of(rows)
    assert rows_of(transitions.pick(np.array([4, 0, 4]))) == [rows[4], rows[0], rows[4]]
    assert rows_of(transitions.rows(2, 5)) == rows[2:5]
    parts = [transitions.rows(3, 6), transitions.rows(0, 0), transitions.rows(0, 3)]
    assert rows_of(concatenate(parts)) == rows[3:] + rows[:3]


def test_lists_become_columns_of_their_types_and_what_is_left_out_is_blank() -> None:
    rows = make_rows(0, 3)
    lists = to_lists(transitions_of(rows))
    assert list(lists) == [column.name for column in COLUMNS]
    whole, part = from_lists(**lists), from_lists(a_tm1=[3, 1], snapshots=[b"x", b"y"])
    assert rows_of(whole) == rows
    assert rows_of(part) == [
        ((), 3, 0.0, (), False, 0, b"x", 0, 0, 0, 0),
        ((), 1, 0.0, (), False, 0, b"y", 0, 0, 0, 0),
    ]
    for transitions in (whole, part, from_lists(s_tm1=[])):
        dtypes = [getattr(transitions, column.name).dtype for column in COLUMNS if not column.dtype.hasobject]
        assert dtypes == [column.dtype for column in COLUMNS if not column.dtype.hasobject]
    with pytest.raises(KeyError, match="actions"):
        from_lists(actions=[1])


def test_the_numbers_of_the_packed_form_are_aligned() -> None:
    sizes = [part.dtype.itemsize for part in PACKED]
    assert sizes == sorted(sizes, reverse=True)
    assert {part.name for part in PACKED} == pack(transitions_of(make_rows(0, 2))).keys() - {"pieces"}


NEW_COLUMNS = (  # each is one line in the table, anywhere in it
    ("    a_tm1: ", "depth: NDArray[np.int16]", [-3, 4]),
    ("    s_tm1: ", "chance: Annotated[NDArray[np.float64], Numbers(least=0)]", [0.5, 0.25]),
    ("    snapshots: ", "goal: list[bytes]", [b"a goal", b""]),
    ("    r_t: ", "goals: list[Stack]", [(b"a", b"b", b"c"), ()]),
)
THERE_AND_BACK = """
import sys
import numpy as np
from dpsr_apex.replay.store import Store
from dpsr_apex.replay.transitions import concatenate, from_lists, to_lists, unpacked
from dpsr_apex.wire.codec import decode, encode
from dpsr_apex.wire.messages import Batch

name, rows = sys.argv[1], eval(sys.argv[2])
made = from_lists(**{name: rows}, s_tm1=[(b"x", b"y"), (b"y",)], n_steps=[1, 1], snapshots=[b"1", b"2"])
store = Store(5)
store.write(np.array([3, 1]), made)
stored = store.read(np.array([3, 1]))
joined = concatenate([stored.rows(1, 2), stored.pick(np.array([0]))])
sent = unpacked(decode(encode(Batch(0, 0, np.arange(2), np.ones(2, np.float32), joined))).transitions)
assert to_lists(sent.pick(np.array([1, 0]))) == to_lists(made)
assert to_lists(sent)[name] == rows[::-1]
"""


@pytest.mark.parametrize(("before", "line", "rows"), NEW_COLUMNS, ids=lambda given: str(given).strip())
def test_a_new_column_is_one_line(before: str, line: str, rows: list[Any], tmp_path: Path) -> None:
    """It is stored, gathered, sliced, joined and sent without a change anywhere else."""
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(Path(dpsr_apex.__file__).parent, tmp_path / "dpsr_apex", ignore=ignored)
    table = tmp_path / "dpsr_apex" / "replay" / "transitions.py"
    table.write_text(table.read_text().replace(before, f"    {line}\n{before}", 1))
    name = line.partition(":")[0]
    subprocess.run(
        [sys.executable, "-c", THERE_AND_BACK, name, repr(rows)], cwd=tmp_path, env={"PYTHONPATH": "."}, check=True
    )


class Frame(bytes):
    """Bytes that count how many of them live (bytes take no weak references)."""

    alive = 0

    def __new__(cls, content: bytes) -> Frame:
        cls.alive += 1
        return super().__new__(cls, content)

    def __del__(self) -> None:
        type(self).alive -= 1


def insert_walk(replay: Replay, start: int, count: int) -> None:
    """One long episode: s_t of each transition is s_tm1 of the next, so each brings one new frame."""
    frames = [Frame(b"%d" % i) for i in range(start, start + count + 1)]
    rows: list[Row] = [
        ((frames[i],), 0, 0.0, (frames[i + 1],), False, 1, Frame(b"snapshot"), 0, 0, 0, 0) for i in range(count)
    ]
    replay.insert(transitions_of(rows))


@pytest.mark.parametrize("method", ["per_rank", "dpsr"])  # the two removers, and the two ways to keep priorities
def test_a_frame_goes_with_the_last_transition_that_uses_it(method: str) -> None:
    replay = Replay(make_config(method, capacity=10, recycle_period=0), 1_000, np.random.default_rng(0))
    assert Frame.alive == 0
    insert_walk(replay, 0, 10)
    assert Frame.alive == 11 + 10
    insert_walk(replay, 100, 300)
    gc.collect()
    stored = rows_of(replay.read(replay.identities))
    assert Frame.alive == len({id(piece) for row in stored for piece in (row[0][0], row[3][0], row[6])})
    if METHODS[method].remover == "oldest":
        assert Frame.alive == 11 + 10
    del replay, stored
    gc.collect()
    assert Frame.alive == 0


@pytest.mark.parametrize("size", [0, 1, 29, 30, 31, 65, 66, 10_000])
def test_the_largest_transitions_are_those_with_most_bytes(size: int) -> None:
    lengths = [3, 30, 1, 35, 2]
    made = from_lists(
        s_tm1=[(b"",) for _ in lengths], s_t=[(b"",) for _ in lengths], snapshots=[bytes(length) for length in lengths]
    )
    replay = Replay(make_config("uniform", capacity=8), 100, np.random.default_rng(0))
    replay.insert(made)
    by_size = sorted(range(len(lengths)), key=lambda row: -lengths[row])
    needed = next((count for count in range(1, 6) if sum(sorted(lengths)[-count:]) >= size), 5)
    assert replay.largest(size).tolist() == [int(replay.identities[row]) for row in by_size[:needed]]
    assert replay.largest(size, least=30).tolist() == replay.largest(min(size, 65)).tolist()


@pytest.mark.parametrize(("frame_bytes", "sizes"), [(0, [0, 11, 0]), (4, [0, 3, 0])])
def test_all_that_is_not_in_the_record_of_a_slot_counts(frame_bytes: int, sizes: list[int]) -> None:
    store = Store(3, frame_bytes)
    store.write(np.array([1]), from_lists(s_tm1=[(b"1234",)], s_t=[(b"5678",)], snapshots=[b"890"]))
    assert store.sizes(np.arange(3)).tolist() == sizes


def test_a_copy_has_the_same_bytes_between_its_fields_too() -> None:
    store = Store(3)
    store._raw.view(np.uint8)[:] = 7
    assert deepcopy(store)._raw.tobytes() == store._raw.tobytes()
