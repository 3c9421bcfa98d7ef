"""Checksums find every changed bit, and bytes that never had one."""

from __future__ import annotations

from zlib import crc32

from hypothesis import given
from hypothesis import strategies as st

from dpsr_apex.checksums import CHECKSUM_BYTES, add_checksum, are_intact, is_intact


@given(st.lists(st.binary(max_size=50), max_size=4), st.data())
def test_a_changed_bit_in_any_piece_is_found(bodies: list[bytes], data: st.DataObject) -> None:
    pieces = [add_checksum(body) for body in bodies]
    for body, piece in zip(bodies, pieces, strict=True):
        assert piece == body + crc32(body).to_bytes(CHECKSUM_BYTES, "little")
    assert are_intact(pieces)
    if pieces:
        row = data.draw(st.integers(0, len(pieces) - 1))
        bit = data.draw(st.integers(0, 8 * len(pieces[row]) - 1))
        flipped = int.from_bytes(pieces[row], "little") ^ 1 << bit
        pieces[row] = flipped.to_bytes(len(pieces[row]), "little")
        assert not are_intact(pieces)


def test_bytes_without_a_checksum_are_not_intact() -> None:
    for length in range(CHECKSUM_BYTES):
        assert not are_intact([bytes(length)])
    assert not are_intact([b"a frame without one"])


@given(st.integers(0, 30).flatmap(lambda n: st.lists(st.binary(min_size=n, max_size=n), min_size=1)), st.data())
def test_one_checksum_finds_a_changed_bit_in_pieces_of_equal_length(bodies: list[bytes], data: st.DataObject) -> None:
    joined = b"".join(map(add_checksum, bodies))
    assert is_intact(joined, len(bodies))
    changed = int.from_bytes(joined, "little") ^ 1 << data.draw(st.integers(0, 8 * len(joined) - 1))
    assert not is_intact(changed.to_bytes(len(joined), "little"), len(bodies))
