"""Encode messages as frames, and decode frames to messages. The only module that imports msgpack.

Frame 0, the header, is a small msgpack array: the protocol version, the number of the message type, then its fields in
order. A number or string is stored there directly; an array is represented by its length, transitions by three counts,
and optional bytes by whether they are present. In a message with arrays or transitions, frame 1 contains all their
numbers, column by column, little-endian. In a message with records or lists, the next frame contains all their numbers
and strings as consecutive msgpack values (`values.py`). Then follows one frame per field of bytes, and one for the
pieces of transitions: a few large frames are cheapest. All this is derived from the type hints of the messages: a new
message needs no code here.

Anyone who can reach the socket can send frames. Everything is validated before it is used, memory is never allocated
by announced sizes alone, and every violation raises `BadMessage`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any, NamedTuple, cast, get_args, get_type_hints

import msgpack

from dpsr_apex.wire.fields import BadMessage as BadMessage
from dpsr_apex.wire.fields import Blob, Column, Draft, Field, Inner, Reading, Rows, field_of, require
from dpsr_apex.wire.fields import Frame as Frame
from dpsr_apex.wire.messages import Chunk, Message, Recycled, Refused
from dpsr_apex.wire.values import BadValue

PROTOCOL = 9
MAX_FRAME = 2**20  # bytes in any one frame, and in all frames of a message; `fragments` sends larger ones
MAX_HEADER = 2**20  # bytes in frame 0, which contains all strings
MAX_ENTRIES = 64  # in frame 0; more than needed, so that messages of other versions can be recognized
MAX_PARTS = 16  # frames per message; more than needed, for the same reason

_REPLACE = "replace"  # a reason or a path may contain invalid Unicode, and must still be delivered
_NO_MORE = {"max_map_len": 0, "max_ext_len": 0, "max_bin_len": 0}  # msgpack types that are never used


class WrongProtocol(BadMessage):
    """Raised for frames of another protocol version, `theirs`."""

    def __init__(self, theirs: int) -> None:
        super().__init__(f"the other side speaks version {theirs} of the protocol, this side speaks version {PROTOCOL}")
        self.theirs = theirs


def encode(message: Message) -> list[Frame]:
    """Return the message as a few frames; later changes to the message do not affect them."""
    return _MESSAGES.encode(message)


def decode(frames: Sequence[Frame]) -> Message:
    """Return the encoded message with its own copies of bytes and arrays; raise `BadMessage` if it is invalid.

    `Refused` is understood in every version of the protocol, so that a refused process can print the reason.
    """
    return cast(Message, _MESSAGES.decode(frames))


class Codec:
    """The encoding of a set of record types, which are numbered in their order.

    All have the version of the protocol; only those of `constant` are understood in every version.
    """

    def __init__(self, types: Sequence[type], constant: Sequence[type] = ()) -> None:
        self._plans = [_plan(number, cls) for number, cls in enumerate(types)]
        self._plan_of = {plan.cls: plan for plan in self._plans}
        self._constant = [self._plan_of[cls].number for cls in constant]

    def encode(self, record: Any) -> list[Frame]:
        """Return the record as a few frames; later changes to it do not affect them."""
        plan = self._plan_of[type(record)]
        draft = Draft([PROTOCOL, plan.number], [], [], [])
        for field, value in zip(plan.fields, record, strict=True):
            field.write(value, draft)
        columns = [b"".join(draft.columns)] if plan.has_columns else []
        values = [_pack_all(draft.values)] if plan.has_values else []
        return [msgpack.packb(draft.header, unicode_errors=_REPLACE), *columns, *values, *draft.blobs]

    def adopt(self, cls: type, frames: Sequence[Frame]) -> list[Frame]:
        """Return the frames of a record that another codec has encoded as this one would have; they must be valid."""
        header = msgpack.unpackb(frames[0])
        header[1] = self._plan_of[cls].number
        return [msgpack.packb(header, unicode_errors=_REPLACE), *frames[1:]]

    def decode(self, frames: Sequence[Frame]) -> Any:
        """Return the encoded record with its own copies of bytes and arrays; raise `BadMessage` if it is invalid."""
        parts = [bytes(frame) for frame in frames]  # no copy if they are bytes already
        plan, entries = self._open(parts)
        name = plan.cls.__name__
        if len(entries) != plan.entries:
            raise BadMessage(f"{name} has {plan.entries} entries in its header, but {len(entries)} were received")
        expected = plan.frames - sum(entries[place] is False for place in plan.flags)
        if len(parts) != expected:
            raise BadMessage(f"{name} has {expected} frames, but {len(parts)} were received")
        later = iter(parts[1:])
        columns, packed = (next(later) if there else b"" for there in (plan.has_columns, plan.has_values))
        reading = Reading(entries, columns, _Values(packed) if packed else None, later)
        values: list[Any] = [field.read(reading) for field in plan.fields]
        reading.check_end(name)
        for places in plan.together:
            _check_rows({plan.fields[place].name: len(values[place]) for place in places if values[place] is not None})
        return plan.cls(*values)

    def _open(self, parts: list[bytes]) -> tuple[_Plan, list[Any]]:
        """Return the plan of the record and the rest of its header, not yet validated."""
        require(parts != [], "there are no frames")
        require(len(parts[0]) <= MAX_HEADER, f"its header has {len(parts[0])} bytes, more than {MAX_HEADER}")
        try:
            header = msgpack.unpackb(parts[0], max_array_len=MAX_ENTRIES, **_NO_MORE)
        except (ValueError, msgpack.UnpackException) as error:
            raise BadMessage(f"its header is not valid msgpack: {type(error).__name__}") from None
        require(type(header) is list and len(header) >= 2, "its header is not a list of version, number and fields")
        protocol, number, *entries = header
        is_integer = type(protocol) is int and type(number) is int
        require(is_integer, "the version or the number in its header is not an integer")
        if protocol != PROTOCOL and number not in self._constant:
            raise WrongProtocol(protocol)
        require(0 <= number < len(self._plans), f"there is no message number {number}")
        return self._plans[number], entries


class _Values:
    """A frame of numbers and strings, unpacked one by one: a list or map in it is rejected."""

    def __init__(self, frame: bytes) -> None:
        self._size = len(frame)
        self._unpacker = msgpack.Unpacker(max_buffer_size=self._size, max_array_len=0, **_NO_MORE)
        self._unpacker.feed(frame)

    def take(self) -> Any:
        """Return the next one; raise BadValue if there is none."""
        try:
            return self._unpacker.unpack()
        except (ValueError, msgpack.UnpackException) as error:
            raise BadValue(f"cannot be decoded ({type(error).__name__})") from None

    @property
    def left(self) -> int:
        """Number of unread bytes."""
        return self._size - int(self._unpacker.tell())


def _pack_all(values: list[Any]) -> bytes:
    packer = msgpack.Packer(unicode_errors=_REPLACE, autoreset=False)
    for value in values:
        packer.pack(value)
    packed: bytes = packer.bytes()
    return packed


def _check_rows(counts: dict[str, int]) -> None:
    if len(set(counts.values())) > 1:
        found = ", ".join(f"{name} {count}" for name, count in counts.items())
        raise BadMessage(f"these must have the same number of rows: {found}")


# The plans of all types.


class _Plan(NamedTuple):
    number: int
    cls: Callable[..., Any]
    fields: list[Field]
    entries: int  # in the header, after version and number
    flags: list[int]  # indices of entries that state whether a frame is present
    has_columns: bool
    has_values: bool
    frames: int  # total, if all optional ones are present
    together: list[list[int]]  # indices of fields that must have the same number of rows


_TOGETHER: dict[type, list[set[str]]] = {  # fields with the same number of rows; in other messages, all of them
    Recycled: [{"identities", "lengths", "rewards"}, {"transitions", "td_errors"}],
    Chunk: [{"transitions", "td_errors"}, {"scores", "lengths"}],
}


def _plan(number: int, cls: type) -> _Plan:
    fields = [field_of(name, hint) for name, hint in get_type_hints(cls).items()]
    tall = [place for place, field in enumerate(fields) if isinstance(field, Column | Rows)]
    groups = _TOGETHER.get(cls, [{fields[place].name for place in tall}])
    together = [[place for place in tall if fields[place].name in group] for group in groups]
    starts = accumulate((field.entries for field in fields), initial=0)
    flags = [start for start, field in zip(starts, fields, strict=False) if isinstance(field, Blob) and field.may_miss]
    has_values = any(isinstance(field, Inner) for field in fields)
    return _Plan(
        number,
        cls,
        fields,
        entries=sum(field.entries for field in fields),
        flags=flags,
        has_columns=bool(tall),
        has_values=has_values,
        frames=1 + bool(tall) + has_values + sum(field.frames for field in fields),
        together=[places for places in together if len(places) > 1],
    )


_MESSAGES = Codec(get_args(Message), constant=[Refused])
