"""Messages as frames: all of them come back as they were, and nothing else than a message comes out of any bytes."""

from __future__ import annotations

import math
import tracemalloc
from collections.abc import Iterable, Sequence
from typing import Any, cast, get_args

import msgpack
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from dpsr_apex.config import MOST_IN_BATCH, ROUND_STEPS
from dpsr_apex.replay.transitions import Transitions, pack
from dpsr_apex.wire import codec
from dpsr_apex.wire.codec import (
    MAX_HEADER,
    MAX_PARTS,
    PROTOCOL,
    BadMessage,
    Frame,
    WrongProtocol,
    decode,
    encode,
)
from dpsr_apex.wire.fields import MAX_PIECES, MAX_ROWS, field_of
from dpsr_apex.wire.messages import (
    Batch,
    Chunk,
    Gone,
    Heartbeat,
    Hello,
    Learning,
    Message,
    Priorities,
    Recycled,
    Refused,
    Stats,
    Weights,
    Welcome,
)
from dpsr_apex.wire.values import MAX_ITEMS
from tests.unit.replay.naive import Row, transitions_of
from tests.unit.wire.examples import ALL, CHUNK_WITH_ERRORS, EXAMPLES, STATS, assert_same, walk

NUMBER = {cls: number for number, cls in enumerate(get_args(Message))}


def raw(message: Message) -> list[bytes]:
    return [bytes(frame) for frame in encode(message)]


def header(*entries: Any) -> list[bytes]:
    return [msgpack.packb(list(entries))]


def packed(*values: Any) -> bytes:
    return b"".join(map(msgpack.packb, values))


def scalars(frame: bytes) -> list[Any]:
    unpacker = msgpack.Unpacker()
    unpacker.feed(frame)
    return list(unpacker)


def decode_or_none(frames: Sequence[Frame]) -> Message | None:
    """Any other error than BadMessage fails the test."""
    try:
        return decode(frames)
    except BadMessage:
        return None


def name_of(message: Message) -> str:
    return type(message).__name__


# There and back.


def test_every_message_has_an_example() -> None:
    assert [type(example) for example in EXAMPLES] == list(get_args(Message))


@pytest.mark.parametrize("message", ALL, ids=name_of)
def test_a_message_comes_back_as_it_was(message: Message) -> None:
    assert_same(message, decode(encode(message)))
    assert_same(message, decode([memoryview(frame) for frame in encode(message)]))


@st.composite
def rows(draw: st.DrawFn) -> list[Row]:
    """Transitions whose frames come from a small pool, so that many are one object; equal bytes need not be."""
    contents = draw(st.lists(st.binary(min_size=2, max_size=4) | st.just(b""), min_size=1, max_size=6))
    pool = [bytes(bytearray(content)) for content in (*contents, *contents)]
    stack = st.lists(st.sampled_from(pool), max_size=4).map(tuple)
    row = st.tuples(
        stack,
        st.integers(0, 2**63 - 1),
        st.floats(width=32, allow_nan=False, allow_infinity=False),
        stack,
        st.booleans(),
        st.integers(1, 255),
        st.sampled_from(pool),
        st.integers(0, 2**64 - 1),
        st.integers(0, 2**64 - 1),
        st.integers(0, 2**32 - 1),
        st.integers(0, 2**64 - 1),
    )
    return draw(st.lists(row, max_size=8))


@settings(max_examples=100, deadline=None, derandomize=True, database=None)
@given(rows(), st.booleans())
def test_any_transitions_come_back_as_they_were(rows: list[Row], with_errors: bool) -> None:
    td_errors = np.arange(len(rows), dtype=np.float64) if with_errors else None
    chunk = Chunk(1, transitions_of(rows), td_errors, np.zeros(1), np.ones(1, dtype=np.int64), 0.0)
    assert_same(chunk, decode(encode(chunk)))


def test_what_is_decoded_is_its_own() -> None:
    buffers = [bytearray(frame) for frame in raw(CHUNK_WITH_ERRORS)]
    message = decode([memoryview(buffer) for buffer in buffers])
    for buffer in buffers:
        buffer[:] = bytes(len(buffer))
    assert_same(message, CHUNK_WITH_ERRORS)
    assert isinstance(message, Chunk)
    assert message.td_errors is not None
    for array in (message.td_errors, message.scores, message.transitions.r_t, message.transitions.terminal):
        assert array.base is None
        assert array.flags.writeable
    assert all(type(piece) is bytes for stack in message.transitions.s_tm1 for piece in stack)


def test_frames_do_not_change_with_the_message_they_were_made_from() -> None:
    message = Priorities(0, np.arange(3), np.ones(3))
    frames = encode(message)
    message.identities[:] = 9
    message.td_errors[:] = math.nan
    assert_same(decode(frames), Priorities(0, np.arange(3), np.ones(3)))


def test_numbers_and_arrays_of_other_types_travel_as_the_messages_say() -> None:
    learning = Learning(np.int64(3), np.int32(1), np.float32(0.5), 1, np.float64(2), 0)  # type: ignore[arg-type]  # numpy's
    assert_same(decode(encode(learning)), Learning(3, 1, 0.5, 1.0, 2.0, 0.0))
    rows = np.arange(6, dtype=np.int32)[::2]
    priorities = Priorities(0, rows, rows.astype(np.float32))  # type: ignore[arg-type]  # narrower, with gaps
    assert_same(decode(encode(priorities)), Priorities(0, np.array([0, 2, 4]), np.array([0.0, 2.0, 4.0])))


def test_a_text_with_half_a_character_arrives() -> None:
    assert decode(encode(Gone("no \udcff"))) == Gone("no ?")


def test_no_message_has_more_parts_than_allowed() -> None:
    assert max(len(encode(message)) for message in ALL) <= MAX_PARTS
    assert max(len(msgpack.unpackb(raw(message)[0])) for message in ALL) <= codec.MAX_ENTRIES


def test_numbers_of_messages_stay_what_they_are() -> None:
    assert (NUMBER[Hello], NUMBER[Refused]) == (5, 9)
    assert [msgpack.unpackb(raw(message)[0])[1] for message in EXAMPLES] == list(range(len(EXAMPLES)))


# Versions.


@pytest.mark.parametrize("theirs", [0, 1, PROTOCOL + 1, -1, 2**40])
def test_another_version_is_named(theirs: int) -> None:
    with pytest.raises(WrongProtocol, match=f"version {theirs} ") as caught:
        decode([*header(theirs, 1_000, "new", 1.5, *range(40)), b"frame"])
    assert caught.value.theirs == theirs


@pytest.mark.parametrize("theirs", [0, 1, PROTOCOL, PROTOCOL + 1])
def test_a_refusal_is_understood_in_any_version(theirs: int) -> None:
    assert decode(header(theirs, NUMBER[Refused], "too old")) == Refused("too old")


def test_a_refusal_of_another_version_is_checked_like_any() -> None:
    for entries in ([1], ["why", "else"], []):
        with pytest.raises(BadMessage):
            decode(header(PROTOCOL + 1, NUMBER[Refused], *entries))


# Frames that are no messages.

ONE_HEARTBEAT = NUMBER[Heartbeat]
ONE_LEARNING = NUMBER[Learning]


@pytest.mark.parametrize(
    ("frames", "reason"),
    [
        ([], "no frames"),
        ([b""], "not valid msgpack"),
        ([b"\xc1"], "not valid msgpack"),  # never used by msgpack
        ([msgpack.packb([PROTOCOL, 5]) + b"\x00"], "not valid msgpack"),
        ([msgpack.packb({1: 2})], "not valid msgpack"),
        ([msgpack.packb([PROTOCOL, ONE_HEARTBEAT, msgpack.ExtType(1, b"x")])], "not valid msgpack"),
        ([msgpack.packb([PROTOCOL, ONE_HEARTBEAT, msgpack.Timestamp(1)])], "not valid msgpack"),
        ([msgpack.packb([PROTOCOL, ONE_HEARTBEAT, b"x"])], "not valid msgpack"),
        ([msgpack.packb([PROTOCOL, NUMBER[Gone]])[:-1] + b"\x09\xa1\xff"], "not valid msgpack"),
        ([b"\x91" * 100_000 + b"\x00"], "not valid msgpack"),  # lists in lists in lists
        (header(*range(codec.MAX_ENTRIES + 1)), "not valid msgpack"),
        ([b"\x00" * (MAX_HEADER + 1)], "more than"),
        (header(), "not a list of"),
        (header(PROTOCOL), "not a list of"),
        ([msgpack.packb(7)], "not a list of"),
        ([msgpack.packb("text")], "not a list of"),
        ([msgpack.packb({})], "not a list of"),
        (header(True, 5), "not an integer"),
        (header(PROTOCOL, "5"), "not an integer"),
        (header(PROTOCOL, 5.0), "not an integer"),
        (header(PROTOCOL, len(NUMBER)), "no message number"),
        (header(PROTOCOL, -1), "no message number"),
        (header(PROTOCOL, ONE_HEARTBEAT), "1 entries in its header, but 0 were received"),
        (header(PROTOCOL, ONE_HEARTBEAT, 1, 2), "1 entries in its header, but 2 were received"),
        (header(PROTOCOL, ONE_HEARTBEAT, True), "sent is of type bool, not int"),
        (header(PROTOCOL, ONE_HEARTBEAT, None), "sent is of type NoneType"),
        (header(PROTOCOL, ONE_HEARTBEAT, [1]), "sent is of type list"),
        (header(PROTOCOL, ONE_HEARTBEAT, {}), "sent is of type dict"),
        (header(PROTOCOL, ONE_HEARTBEAT, b""), "sent is of type bytes"),
        (header(PROTOCOL, ONE_HEARTBEAT, 2**63), "sent is 9223372036854775808, which is more than 64 bits"),
        (header(PROTOCOL, ONE_LEARNING, 1, 1, math.nan, 0.0, 0.0, 0.0), "loss is nan"),
        (header(PROTOCOL, ONE_LEARNING, 1, 1, 0.0, -math.inf, 0.0, 0.0), "mean_q is -inf"),
        (header(PROTOCOL, ONE_LEARNING, 1, 1, 0, 0.0, 0.0, 0.0), "loss is of type int, not float"),
        ([*header(PROTOCOL, ONE_HEARTBEAT, 1), b""], "1 frames, but 2 were received"),
        (raw(EXAMPLES[0])[:-1], "3 frames, but 2 were received"),
    ],
)
def test_what_is_wrong_with_frames_is_said(frames: list[bytes], reason: str) -> None:
    with pytest.raises(BadMessage, match=reason):
        decode(frames)


def test_a_missing_frame_must_be_announced_as_missing() -> None:
    number, (_, *behind) = NUMBER[Weights], raw(Weights(1, 2, 3, 4, b"online", b"target"))
    for flag in (None, 0, 1, "yes"):
        with pytest.raises(BadMessage, match="online is of type"):
            decode([*header(PROTOCOL, number, 1, 2, 3, 4, flag, True), *behind])
    with pytest.raises(BadMessage, match="2 frames, but 3 were received"):
        decode([*header(PROTOCOL, number, 1, 2, 3, 4, False, True), *behind])
    assert decode([*header(PROTOCOL, number, 1, 2, 3, 4, False, True), behind[1]]) == Weights(
        1, 2, 3, 4, None, b"target"
    )


def test_a_missing_array_must_be_announced_as_missing() -> None:
    first, *behind = raw(CHUNK_WITH_ERRORS)
    entries = msgpack.unpackb(first)
    place = 3 + 3  # behind version, number and sequence, and the three counts of the transitions
    assert entries[place] == 3
    for count in (True, "3", 3.0, [3]):
        with pytest.raises(BadMessage, match="td_errors is of type"):
            decode([msgpack.packb([*entries[:place], count, *entries[place + 1 :]]), *behind])
    for few, reason in ((None, "columns of Chunk have"), (0, "columns of Chunk have"), (4, "end within td_errors")):
        with pytest.raises(BadMessage, match=reason):
            decode([msgpack.packb([*entries[:place], few, *entries[place + 1 :]]), *behind])
    none = Priorities(0, np.arange(0), np.zeros(0))
    with pytest.raises(BadMessage, match="identities is of type NoneType"):
        decode([*header(PROTOCOL, NUMBER[Priorities], 0, None, 0), *raw(none)[1:]])


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_number_in_an_array_that_is_none_is_named_by_field_and_row(bad: float) -> None:
    def spoilt(count: int, row: int, dtype: type[np.floating[Any]] = np.float64) -> NDArray[Any]:
        array = np.zeros(count, dtype=dtype)
        array[row] = bad
        return array

    none, ends, games = np.zeros(0, dtype=np.int64), np.arange(2), np.ones(3, dtype=np.int64)
    messages: list[tuple[Message, str]] = [
        (Priorities(0, np.arange(5), spoilt(5, 3)), "td_errors[3]"),
        (Recycled(0, 0, ends, np.array([2, 3]), np.zeros(2), walk(5), spoilt(5, 1), none, []), "td_errors[1]"),
        (Recycled(0, 0, ends, np.array([2, 3]), spoilt(2, 1), walk(5), np.zeros(5), none, []), "rewards[1]"),
        (Batch(0, 0, np.arange(5), spoilt(5, 0, np.float32), walk(5)), "weights[0]"),
        (Chunk(0, walk(5), spoilt(5, 2), np.zeros(0), none, 0.0), "td_errors[2]"),
        (Chunk(0, walk(5), None, spoilt(3, 2), games, 0.0), "scores[2]"),
    ]
    for message, place in messages:
        with pytest.raises(BadMessage) as caught:
            decode(encode(message))
        assert str(caught.value) == f"{place} is {bad}"


def test_a_transition_that_is_bad_does_not_take_the_others_of_its_message_along() -> None:
    transitions = walk(5)
    transitions.r_t[4] = np.nan
    decoded = decode(encode(Chunk(0, transitions, None, np.zeros(0), np.zeros(0, dtype=np.int64), 0.0)))
    assert isinstance(decoded, Chunk)
    np.testing.assert_array_equal(decoded.transitions.r_t, transitions.r_t)


def with_one_more(message: Message, name: str) -> Message:
    """The message with one row more in this field."""
    values = dict(zip(message._fields, message, strict=True))
    value: Any = values[name]
    more = walk(len(value) + 1) if isinstance(value, Transitions) else np.zeros(len(value) + 1, dtype=value.dtype)
    cls: Any = type(message)
    return cast(Message, cls(**{**values, name: more}))


@pytest.mark.parametrize(
    ("example", "name", "agree"),
    [
        (EXAMPLES[0], "identities", False),
        (EXAMPLES[0], "starts", False),
        (EXAMPLES[1], "identities", False),
        (EXAMPLES[1], "lengths", False),
        (EXAMPLES[1], "rewards", False),
        (EXAMPLES[1], "transitions", False),
        (EXAMPLES[1], "td_errors", False),
        (EXAMPLES[1], "failed", True),
        (EXAMPLES[3], "identities", False),
        (EXAMPLES[3], "weights", False),
        (EXAMPLES[3], "transitions", False),
        (EXAMPLES[4], "identities", False),
        (EXAMPLES[4], "td_errors", False),
        (EXAMPLES[16], "transitions", True),
        (EXAMPLES[16], "scores", False),
        (EXAMPLES[16], "lengths", False),
        (CHUNK_WITH_ERRORS, "transitions", False),
        (CHUNK_WITH_ERRORS, "td_errors", False),
    ],
)
def test_columns_have_the_same_number_of_rows(example: Message, name: str, agree: bool) -> None:
    frames = encode(with_one_more(example, name))
    if agree:
        decode(frames)
        return
    with pytest.raises(BadMessage, match=f"same number of rows: .*{name} "):
        decode(frames)


# Transitions that do not fit together.


COLUMNS = (  # in their order
    *("a_tm1", "state_keys", "episodes", "snapshot_tags", "r_t", "episode_steps", "references", "piece_sizes"),
    *("terminal", "n_steps", "stack_sizes"),
)


def chunk_of(**changes: Any) -> list[bytes]:
    """A chunk of three transitions, some of its packed arrays replaced.

    It says of itself what is true of its actions, references and sizes of pieces, or else what `rows`,
    `references_said` and `pieces_said` say.
    """
    said = {name: changes.pop(name, None) for name in ("rows", "references_said", "pieces_said")}
    arrays = {part: np.asarray(array) for part, array in pack(walk(3)).items()}
    arrays["terminal"] = arrays["terminal"].astype(np.uint8)
    for part, change in changes.items():
        dtype = arrays[part].dtype
        changed = change(arrays[part].copy()) if callable(change) else change
        arrays[part] = np.array(changed).astype(dtype)
    counts = [
        len(arrays[part]) if count is None else count
        for part, count in zip(("a_tm1", "references", "piece_sizes"), said.values(), strict=True)
    ]
    first = header(PROTOCOL, NUMBER[Chunk], 5, *counts, None, 0, 0, 0.0)
    return [*first, b"".join(arrays[part].tobytes() for part in COLUMNS), arrays["pieces"].tobytes()]


def put(place: int, value: int) -> Any:
    def change(array: NDArray[Any]) -> NDArray[Any]:
        array[place] = value
        return array

    return change


def longer(array: NDArray[Any]) -> NDArray[Any]:
    return np.append(array, array[-1:])


def shorter(array: NDArray[Any]) -> NDArray[Any]:
    return array[:-1]


SHIFTED = "the columns of Chunk have|transitions"  # too much in one column shifts all that follow


def test_a_chunk_made_by_hand_is_sound() -> None:
    decode(chunk_of())


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"a_tm1": longer}, "the columns end within transitions"),
        ({"a_tm1": longer, "rows": 3}, SHIFTED),
        ({"r_t": shorter}, "the columns end within transitions.stack_sizes"),
        ({"terminal": longer}, SHIFTED),
        ({"n_steps": shorter}, "the columns end within transitions.stack_sizes"),
        ({"a_tm1": [], "r_t": [], "terminal": [], "n_steps": []}, SHIFTED),
        ({"stack_sizes": longer}, SHIFTED),
        ({"stack_sizes": shorter}, "the columns end within transitions.stack_sizes"),
        ({"rows": 2}, SHIFTED),
        ({"rows": 4}, "the columns end within"),
        ({"rows": -1}, "transitions has -1 items"),
        ({"references_said": -1}, "transitions.references has -1 items"),
        ({"references_said": 26, "pieces_said": 11}, "the stacks of transitions do not add up"),
        ({"pieces_said": -1}, "transitions.piece_sizes has -1 items"),
        ({"rows": True}, "transitions is of type bool"),
        ({"references_said": "27"}, "transitions.references is of type str"),
        ({"pieces_said": [10]}, "transitions.piece_sizes is of type list"),
        ({"stack_sizes": put(8, 0)}, "exactly one snapshot"),
        ({"stack_sizes": put(8, 2)}, "exactly one snapshot"),
        ({"stack_sizes": put(0, 5)}, "the stacks of transitions do not add up"),
        ({"stack_sizes": put(0, 3)}, "the stacks of transitions do not add up"),
        ({"references": longer}, "the stacks of transitions do not add up"),
        ({"references": shorter}, "the stacks of transitions do not add up"),
        ({"references": put(0, 10)}, "refers to a piece that does not exist"),
        ({"references": put(5, 2**32 - 1)}, "refers to a piece that does not exist"),
        ({"piece_sizes": [], "pieces": []}, "refers to a piece that does not exist"),
        ({"piece_sizes": [0] * 28, "pieces": []}, "pieces that are not referenced"),
        ({"piece_sizes": lambda sizes: np.append(sizes, 1)}, "the pieces of transitions do not add up"),
        ({"piece_sizes": put(0, 2**32 - 1)}, "the pieces of transitions do not add up"),
        ({"pieces": shorter}, "the pieces of transitions do not add up"),
        ({"pieces": longer}, "the pieces of transitions do not add up"),
        ({"terminal": put(1, 2)}, r"transitions.terminal must be <= 1 \(got 2\)"),
        ({"n_steps": put(2, 0)}, r"transitions.n_steps must be >= 1 \(got 0\)"),
        ({"a_tm1": put(0, -1)}, r"transitions.a_tm1 must be >= 0 \(got -1\)"),
    ],
)
def test_transitions_must_fit_together(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(BadMessage, match=reason):
        decode(chunk_of(**changes))


# Much ado.

COUNTED = len(raw(STATS._replace(actors=[], learner=None, waiting=[], notes=[], row={}))[1]) - 5  # bytes before actors
ANNOUNCED = [
    raw(STATS)[1][:COUNTED] + packed(MAX_ROWS),  # actors that do not follow
    raw(STATS)[1][:COUNTED] + packed(1) + b"\xdb\x0f\xff\xff\xff",  # a name of 256 MB
    b"\xdd\x0f\xff\xff\xff",  # a list
    b"\x91" * 100_000,
]


@pytest.mark.parametrize(
    ("part", "said", "name", "count"),
    [
        ("a_tm1", "rows", "transitions", MAX_ROWS + 1),
        ("references", "references_said", "transitions.references", MAX_PIECES + 1),
        ("piece_sizes", "pieces_said", "transitions.piece_sizes", MAX_PIECES + 1),
    ],
)
def test_too_many_rows_are_refused(part: str, said: str, name: str, count: int) -> None:
    for frames in (chunk_of(**{part: np.zeros(count)}), chunk_of(**{said: count}), chunk_of(**{said: 2**64 - 1})):
        with pytest.raises(BadMessage, match=rf"^{name} has \d+ items, more than"):
            decode(frames)


def test_the_largest_batch_and_the_largest_round_of_a_config_fit_in_a_message() -> None:
    assert max(MOST_IN_BATCH, ROUND_STEPS) <= MAX_ROWS


def test_too_long_an_array_is_refused() -> None:
    frames = encode(Priorities(0, np.zeros(MAX_ROWS + 1, dtype=np.int64), np.zeros(MAX_ROWS + 1)))
    with pytest.raises(BadMessage, match="identities has 100001 items, more than 100000"):
        decode(frames)


@pytest.mark.parametrize(
    "frames",
    [
        [b"\xdd\xff\xff\xff\xff"],  # a list of 4 billion
        [b"\xdc\xff\xff" + b"\x01" * 100],
        [b"\x93\x03\x09\xdb\xff\xff\xff\xff"],  # a text of 4 GB
        [b"\x93\x03\x09\xdb\x00\x0f\xff\xff"],
        [b"\x93\x03\x0b\xc6\xff\xff\xff\xff"],  # bytes of 4 GB
        [b"\xdf\xff\xff\xff\xff"],  # a dictionary of 4 billion
        [b"\xc9\xff\xff\xff\xff\x01"],  # an extension of 4 GB
        chunk_of(piece_sizes=lambda sizes: np.full_like(sizes, 2**32 - 1)),
        chunk_of(stack_sizes=[255] * 6 + [1] * 3),
        chunk_of(rows=MAX_ROWS, references_said=MAX_PIECES, pieces_said=MAX_PIECES),
        [*header(PROTOCOL, NUMBER[Priorities], 0, MAX_ROWS, MAX_ROWS), b""],
        *([raw(STATS)[0], announced] for announced in ANNOUNCED),
    ],
)
def test_what_is_only_announced_is_not_allocated(frames: list[bytes]) -> None:
    tracemalloc.start()
    try:
        assert decode_or_none(frames) is None
        assert tracemalloc.get_traced_memory()[1] < 200_000
    finally:
        tracemalloc.stop()


def test_memory_stays_in_proportion_to_the_message() -> None:
    """The smallest things on the wire that become objects: empty stacks, and pieces of one byte."""
    many = 20_000
    arrays = {
        "a_tm1": [0] * many,
        "r_t": [0] * many,
        "terminal": [0] * many,
        "n_steps": [1] * many,
        **dict.fromkeys(("state_keys", "episodes", "episode_steps", "snapshot_tags"), [0] * many),
        "stack_sizes": [0] * (2 * many) + [1] * many,
        "references": np.arange(many),
        "piece_sizes": [2] * many,
        "pieces": [7] * (2 * many),
    }
    frames = chunk_of(**arrays)
    tracemalloc.start()
    try:
        decode(frames)
        assert tracemalloc.get_traced_memory()[1] < 20 * sum(map(len, frames))
    finally:
        tracemalloc.stop()


# Records.


def test_the_values_of_records_are_one_frame_of_numbers_and_texts() -> None:
    first, values = raw(STATS)
    assert len(first) < 100
    assert packed(*scalars(values)) == values
    assert {type(value) for value in scalars(values)} == {int, float, str}


@pytest.mark.parametrize("bad", [None, True, [], {}, b"", "1", 1.5, math.nan, math.inf, 2**63, -1], ids=repr)
def test_a_value_of_a_record_that_is_not_what_it_should_be_is_refused_or_another_message(bad: Any) -> None:
    first, values = raw(STATS)
    entries = scalars(values)
    refused = 0
    for place in range(len(entries)):
        changed = packed(*entries[:place], bad, *entries[place + 1 :])
        survivor = decode_or_none([first, changed])
        refused += survivor is None
        if survivor is not None:
            assert bytes(encode(survivor)[1]) == changed  # it is exactly what was sent
    numbers = sum(type(entry) is int for entry in entries)
    assert refused >= (len(entries) - numbers if type(bad) is int else len(entries) // 2)
    if not isinstance(bad, int | float | str) or isinstance(bad, bool) or bad != bad or abs(float(bad)) == math.inf:
        assert refused == len(entries)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"actors": 3}, r"actors\[2\]\.name is of type int, not str"),
        ({"actors": MAX_ITEMS + 1}, r"actors has 100001 items, more than 100000"),
        ({"actors": -1}, r"actors has -1 items"),
        ({"waiting": 9}, r"waiting\[0\] has alternative 9, but there are 7"),
    ],
    ids=str,
)
def test_what_is_wrong_with_a_record_is_said_by_its_place(change: dict[str, int], reason: str) -> None:
    no_actors = raw(STATS._replace(actors=[], waiting=[], learner=None, heard={}, notes=[], row={}))
    first, values = raw(STATS)
    entries = scalars(values)
    before = len(scalars(no_actors[1])) - 6  # numbers before the count of actors
    places = {"actors": before, "waiting": before + 1 + 2 * 8 + 9 + (1 + 2 * 2) + 1}
    assert entries[places["actors"]] == 2
    assert entries[places["waiting"] - 1] == 6
    ((name, value),) = change.items()
    changed = [*entries[: places[name]], value, *entries[places[name] + 1 :]]
    with pytest.raises(BadMessage, match=f"^{reason}"):
        decode([first, packed(*changed)])


def test_what_comes_behind_the_last_value_is_refused() -> None:
    first, values = raw(STATS)
    for more in (b"\x00", b"\xa1", b"\xd9"):
        with pytest.raises(BadMessage, match="followed by"):
            decode([first, values + more])


def test_a_key_of_a_table_comes_once() -> None:
    first, values = raw(STATS._replace(row={"a": 1, "b": 2}))
    with pytest.raises(BadMessage, match=r"row\['a'\] is repeated"):
        decode([first, values.replace(b"\xa1b", b"\xa1a")])


def test_ten_thousand_actors_travel() -> None:
    name, host = "🕹" * 100, "machine.with.a.long.name.example"
    actors = [STATS.actors[0]._replace(name=f"{place}{name}"[:100], place=place, host=host) for place in range(10_000)]
    stats = STATS._replace(actors=actors)
    assert decode(encode(stats)) == stats


# Any bytes.


def mutations(frames: list[bytes], count: int, rng: np.random.Generator) -> Iterable[list[bytes]]:
    """The frames with bytes flipped, cut, grown or gone, and frames lost, doubled or exchanged."""
    for _ in range(count):
        mutated = list(frames)
        for _ in range(int(rng.integers(1, 4))):
            place = int(rng.integers(len(mutated))) if mutated else 0
            victim = bytearray(mutated[place]) if mutated else bytearray()
            kind = int(rng.integers(8))
            if not mutated or kind == 0:
                mutated.insert(place, rng.bytes(int(rng.integers(20))))
            elif kind == 1:
                del mutated[place]
            elif kind == 2:
                other = int(rng.integers(len(mutated)))
                mutated[place], mutated[other] = mutated[other], mutated[place]
            elif kind == 3:
                mutated[place] = bytes(victim[: int(rng.integers(len(victim) + 1))])
            elif kind == 4:
                mutated[place] = bytes(victim) + rng.bytes(int(rng.integers(1, 9)))
            elif victim:
                victim[int(rng.integers(len(victim)))] = int(rng.choice([0, 1, 127, 128, 255]))
                mutated[place] = bytes(victim)
        yield mutated


@pytest.mark.parametrize("message", ALL, ids=name_of)
def test_a_damaged_message_is_bad_or_a_message(message: Message) -> None:
    rng = np.random.default_rng(NUMBER[type(message)])
    for frames in mutations(raw(message), 400, rng):
        survivor = decode_or_none(frames)
        if survivor is not None:
            assert_same(survivor, decode(encode(survivor)))


@pytest.mark.parametrize("message", ALL, ids=name_of)
def test_a_message_cut_short_is_bad(message: Message) -> None:
    frames = raw(message)
    for kept in range(len(frames)):
        assert decode_or_none(frames[:kept]) is None
    for place, frame in enumerate(frames):
        if place and not isinstance(message, Stats):
            break  # a shorter frame of bytes may be a message too
        for length in range(len(frame)):
            assert decode_or_none([*frames[:place], frame[:length], *frames[place + 1 :]]) is None


def test_random_bytes_are_bad_or_a_message() -> None:
    rng = np.random.default_rng(0)
    for _ in range(5_000):
        decode_or_none([rng.bytes(int(rng.integers(40))) for _ in range(int(rng.integers(MAX_PARTS + 2)))])


SCALARS = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text() | st.binary(max_size=9)
ENTRIES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=2)
)


@settings(max_examples=200, deadline=None, derandomize=True, database=None)
@given(
    st.integers(0, len(NUMBER)), st.lists(ENTRIES, max_size=10), st.lists(st.binary(max_size=40), max_size=MAX_PARTS)
)
def test_random_headers_are_bad_or_a_message(number: int, entries: list[Any], frames: list[bytes]) -> None:
    decode_or_none([*header(PROTOCOL, number, *entries), *frames])


def test_a_message_that_cannot_travel_is_noticed_at_once() -> None:
    with pytest.raises(TypeError, match="cannot be encoded"):
        field_of("anything", dict[int, str])


def test_a_welcome_with_its_numbers_as_texts_is_bad() -> None:
    entries = [1, 2, 3, 4, 5, ""]
    assert decode([*header(PROTOCOL, NUMBER[Welcome], *entries)]) == Welcome(1, 2, 3, 4, 5, "")
    for place in range(len(entries)):
        wrong = [*entries[:place], "1" if place < 5 else 1, *entries[place + 1 :]]
        assert decode_or_none([*header(PROTOCOL, NUMBER[Welcome], *wrong)]) is None
