"""Transitions at rest: values and sharing survive being packed, and a frame goes with the last that uses it."""

from __future__ import annotations

import gc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpsr_apex.config import Method
from dpsr_apex.replay.memory import DpsrReplay
from dpsr_apex.replay.transitions import blank, pack, read_rows, unpack, write_rows
from tests.unit.replay.naive import Row, rows_of, transitions_of
from tests.unit.replay.twins import METHODS, make_config, make_rows


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


def test_packed_arrays_hold_each_shared_frame_once() -> None:
    rows = make_rows(0, 100)
    frames = {frame for row in rows for frame in (*row[0], *row[3])}
    assert pack(transitions_of(rows))["piece_sizes"].size == len(frames) + 100


def test_rows_are_written_where_they_belong_and_the_last_stays() -> None:
    store = blank(5)
    rows = make_rows(0, 3)
    write_rows(store, np.array([4, 1, 4]), transitions_of(rows))
    assert rows_of(read_rows(store, np.array([1, 4]))) == [rows[1], rows[2]]
    assert rows_of(store)[0] == ((), 0, 0.0, (), False, 0, b"")
    assert rows_of(transitions_of(rows).rows(1, 3)) == rows[1:]


class Frame(bytes):
    """Bytes that count how many of them live (bytes take no weak references)."""

    alive = 0

    def __new__(cls, content: bytes) -> Frame:
        cls.alive += 1
        return super().__new__(cls, content)

    def __del__(self) -> None:
        type(self).alive -= 1


def insert_walk(replay: DpsrReplay, start: int, count: int) -> None:
    """One long episode: s_t of each transition is s_tm1 of the next, so each brings one new frame."""
    frames = [Frame(b"%d" % i) for i in range(start, start + count + 1)]
    rows: list[Row] = [((frames[i],), 0, 0.0, (frames[i + 1],), False, 1, Frame(b"snapshot")) for i in range(count)]
    replay.insert(transitions_of(rows))


@pytest.mark.parametrize("method", METHODS)
def test_a_frame_goes_with_the_last_transition_that_uses_it(method: Method) -> None:
    replay = DpsrReplay(make_config(method, capacity=10, recycle_period=0), 1_000, np.random.default_rng(0))
    assert Frame.alive == 0
    insert_walk(replay, 0, 10)
    assert Frame.alive == 11 + 10
    insert_walk(replay, 100, 300)
    gc.collect()
    stored = rows_of(replay.read(replay.identities))
    assert Frame.alive == len({id(piece) for row in stored for piece in (row[0][0], row[3][0], row[6])})
    if method in ("uniform", "per", "per_rank"):
        assert Frame.alive == 11 + 10
    del replay, stored
    gc.collect()
    assert Frame.alive == 0
