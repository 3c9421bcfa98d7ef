"""Messages as frames, and frames as messages. The one module that knows msgpack.

Frame 0 is a small msgpack array: the version of the protocol, the number of the message, then its numbers and texts in
the order of its fields, and for a field that may be None whether it is there. Bytes, arrays and transitions follow as
raw frames, little-endian. All this is derived from the type hints of the messages: a new one needs no code here.

Frames come from anyone who can reach the socket. Nothing is believed before it was checked, nothing is allocated that
is only announced, and whatever is wrong ends in `BadMessage`.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from types import NoneType
from typing import Any, NamedTuple, cast, get_args, get_origin, get_type_hints

import msgpack
import numpy as np
from numpy.typing import NDArray

from dpsr_apex.replay.transitions import Transitions, pack, unpack
from dpsr_apex.wire.messages import Message, Refused

PROTOCOL = 1
MAX_FRAME = 256 * 2**20  # bytes in any one frame
MAX_HEADER = 2**20  # bytes in frame 0, which holds all texts
MAX_ENTRIES = 64  # in frame 0; some more than needed, so that other versions are known for what they are
MAX_ROWS = 100_000  # in any one array, or transitions in any one message
MAX_PIECES = 40 * MAX_ROWS  # frames and snapshots that the transitions of one message name

Frame = bytes | memoryview


class BadMessage(Exception):
    """These frames are no message, and why."""


class WrongProtocol(BadMessage):
    """These frames are of another version of the protocol, `theirs`."""

    def __init__(self, theirs: int) -> None:
        super().__init__(f"the other side speaks version {theirs} of the protocol, this one speaks version {PROTOCOL}")
        self.theirs = theirs


def encode(message: Message) -> list[Frame]:
    """The message as 1 to MAX_PARTS frames, which nothing can change any more."""
    plan = _PLAN_OF[type(message)]
    header: list[Any] = [PROTOCOL, plan.number]
    frames: list[Frame] = []
    for field, value in zip(plan.fields, message, strict=True):
        if field.form is None:
            header.append(_AS_PYTHON[field.entry](value))
            continue
        if field.entry is bool:
            header.append(value is not None)
        if value is not None:
            frames += field.form.split(value)
    # A reason or a path may hold half a character, and is to arrive nevertheless.
    return [msgpack.packb(header, unicode_errors="replace"), *frames]


def decode(frames: Sequence[Frame]) -> Message:
    """The message that was encoded; its bytes and arrays are its own. Raises `BadMessage`.

    `Refused` is understood in every version of the protocol, so that a refused stranger can say why.
    """
    parts = [bytes(frame) for frame in frames]  # no copy where they are bytes already
    plan, header = _open(parts)
    entries = _entries(plan, header)
    expected = 1 + sum(
        field.form.frames for field, entry in zip(plan.fields, entries, strict=True) if field.form and entry
    )
    _require(len(parts) == expected, f"{plan.cls.__name__} has {expected} frames, but {len(parts)} came")
    behind = iter(parts[1:])
    values = {field.name: _value(field, entry, behind) for field, entry in zip(plan.fields, entries, strict=True)}
    for names in plan.together:
        _check_rows({name: len(values[name]) for name in names if values[name] is not None})
    return cast(Message, plan.cls(**values))


# How a message travels, by its type hints.


class _Form(NamedTuple):
    """How values of one type travel as raw frames: how many, the way there, and the way back, given a name for it."""

    frames: int
    split: Callable[[Any], list[Frame]]
    join: Callable[[str, list[bytes]], Any]


class _Field(NamedTuple):
    name: str
    entry: type | None  # of its entry in the header: the value itself, or of a form whether it is there
    form: _Form | None


class _Plan(NamedTuple):
    number: int
    cls: Callable[..., Any]
    fields: list[_Field]
    together: list[list[str]]  # names of fields that must have the same number of rows


_AS_PYTHON: dict[type | None, Callable[[Any], Any]] = {int: operator.index, float: float, str: str, bool: bool}
_ROWS_APART = {"failed", "scores", "lengths"}  # these are not about the transitions beside them


def _plan(number: int, cls: type) -> _Plan:
    hints = get_type_hints(cls)
    columns = [name for name, hint in hints.items() if _bare(hint) not in (*_AS_PYTHON, bytes)]
    together = [[name for name in columns if (name in _ROWS_APART) is apart] for apart in (False, True)]
    return _Plan(number, cls, [_field(name, hint) for name, hint in hints.items()], together)


def _field(name: str, hint: Any) -> _Field:
    bare = _bare(hint)
    if bare in _AS_PYTHON:
        return _Field(name, bare, None)
    return _Field(name, None if bare is hint else bool, _form(bare))


def _bare(hint: Any) -> Any:
    """X of `X | None`, else the hint itself."""
    options = get_args(hint)
    return next(option for option in options if option is not NoneType) if NoneType in options else hint


def _form(hint: Any) -> _Form:
    if hint is bytes:
        return _Form(1, lambda blob: [blob], lambda _name, frames: frames[0])
    if hint is Transitions:
        return _Form(len(_PACKED), _split_transitions, _join_transitions)
    if get_origin(hint) is np.ndarray:
        dtype = np.dtype(get_args(get_args(hint)[1])[0]).newbyteorder("<")
        return _Form(1, lambda array: [_raw(array, dtype)], lambda name, frames: _column(name, frames[0], dtype))
    raise TypeError(f"{hint} cannot travel")


# The header.


def _open(parts: list[bytes]) -> tuple[_Plan, list[Any]]:
    """What kind of message this is, and the rest of its header, still unchecked."""
    _require(parts != [], "there are no frames")
    _require(len(parts[0]) <= MAX_HEADER, f"its header has {len(parts[0])} bytes, more than {MAX_HEADER}")
    try:
        header = msgpack.unpackb(parts[0], max_array_len=MAX_ENTRIES, max_map_len=0, max_ext_len=0, max_bin_len=0)
    except (ValueError, msgpack.UnpackException) as error:
        raise BadMessage(f"its header is not msgpack as it should be: {type(error).__name__}") from None
    _require(type(header) is list and len(header) >= 2, "its header is no list of version, number and fields")
    protocol, number, *entries = header
    _require(type(protocol) is int and type(number) is int, "the version or the number in its header is no integer")
    if protocol != PROTOCOL and number != _PLAN_OF[Refused].number:
        raise WrongProtocol(protocol)
    _require(0 <= number < len(_PLANS), f"there is no message number {number}")
    return _PLANS[number], entries


def _entries(plan: _Plan, header: list[Any]) -> list[Any]:
    """For each field what the header says of it; True for those of which it says nothing."""
    named = sum(field.entry is not None for field in plan.fields)
    _require(len(header) == named, f"{plan.cls.__name__} has {named} entries in its header, but {len(header)} came")
    given = iter(header)
    return [field.entry is None or _entry(field.name, field.entry, next(given)) for field in plan.fields]


def _entry(name: str, kind: type, entry: Any) -> Any:
    found = type(entry)
    if found is not kind:  # a bool is no int here
        raise BadMessage(f"{name} is of type {found.__name__}, not {kind.__name__}")
    if kind is int and not -(2**63) <= entry < 2**63:
        raise BadMessage(f"{name} is {entry}, which is more than 64 bits")
    if kind is float and not math.isfinite(entry):
        raise BadMessage(f"{name} is {entry}")
    return entry


def _value(field: _Field, entry: Any, behind: Iterator[bytes]) -> Any:
    if field.form is None:
        return entry
    return field.form.join(field.name, list(islice(behind, field.form.frames))) if entry else None


# Arrays.


def _raw(array: NDArray[Any], dtype: np.dtype[Any]) -> bytes:
    return np.asarray(array, dtype=dtype).tobytes()


def _column(name: str, frame: bytes, dtype: np.dtype[Any]) -> NDArray[Any]:
    """The frame as an array of its own, writable, in the byte order of this machine."""
    return _array(name, frame, dtype, MAX_ROWS).astype(dtype.newbyteorder("="))


def _array(name: str, frame: bytes, dtype: np.dtype[Any], most: int) -> NDArray[Any]:
    """A view of the frame as at most so many numbers, all of them finite."""
    count, rest = divmod(len(frame), dtype.itemsize)
    if rest:
        raise BadMessage(f"{name} has {len(frame)} bytes, not a multiple of {dtype.itemsize}")
    if count > most:
        raise BadMessage(f"{name} has {count} items, more than {most}")
    array = np.frombuffer(frame, dtype=dtype)
    if dtype.kind == "f" and not (finite := np.isfinite(array)).all():
        row = int(np.argmin(finite))
        raise BadMessage(f"{name}[{row}] is {array[row]}")
    return array


def _check_rows(counts: dict[str, int]) -> None:
    if len(set(counts.values())) > 1:
        told = ", ".join(f"{name} {count}" for name, count in counts.items())
        raise BadMessage(f"these should have the same number of rows: {told}")


# Transitions, in the form in which they are also saved.

_PACKED: dict[str, tuple[np.dtype[Any], int]] = {  # type, and how many there may be
    "a_tm1": (np.dtype("<i8"), MAX_ROWS),
    "r_t": (np.dtype("<f4"), MAX_ROWS),
    "terminal": (np.dtype("u1"), MAX_ROWS),
    "n_steps": (np.dtype("u1"), MAX_ROWS),
    "stack_sizes": (np.dtype("u1"), 3 * MAX_ROWS),
    "references": (np.dtype("<u4"), MAX_PIECES),
    "piece_sizes": (np.dtype("<u4"), MAX_PIECES),
    "pieces": (np.dtype("u1"), MAX_FRAME),
}


def _split_transitions(transitions: Transitions) -> list[Frame]:
    arrays = pack(transitions)
    pieces = arrays.pop("pieces")  # by far the largest: not copied
    return [*(_raw(array, _PACKED[part][0]) for part, array in arrays.items()), pieces.data]


def _join_transitions(name: str, frames: list[bytes]) -> Transitions:
    arrays = {
        part: _array(f"{name}.{part}", frame, dtype, most)
        for frame, (part, (dtype, most)) in zip(frames, _PACKED.items(), strict=True)
    }
    _check_rows({f"{name}.{part}": len(arrays[part]) for part in ("a_tm1", "r_t", "terminal", "n_steps")})
    _check_pieces(name, arrays)
    _require((arrays["a_tm1"] >= 0).all(), f"an action in {name} is negative")
    _require((arrays["terminal"] <= 1).all(), f"a terminal in {name} is neither 0 nor 1")
    _require((arrays["n_steps"] >= 1).all(), f"a transition in {name} takes 0 steps")
    return unpack(arrays)


def _check_pieces(name: str, arrays: dict[str, NDArray[Any]]) -> None:
    """`unpack` would cut and index by these numbers without asking."""
    rows, stack_sizes, references = len(arrays["a_tm1"]), arrays["stack_sizes"], arrays["references"]
    pieces = len(arrays["piece_sizes"])
    _require(len(stack_sizes) == 3 * rows, f"{name} has {len(stack_sizes)} stacks for {rows} rows, not 3 for each")
    _require((stack_sizes[2 * rows :] == 1).all(), f"a transition in {name} has not exactly one snapshot")
    _require(stack_sizes.sum(dtype=np.int64) == len(references), f"the stacks of {name} do not add up")
    _require((references < pieces).all(), f"{name} names a piece that is not there")
    _require(pieces <= len(references), f"{name} has pieces that nobody names")
    _require(arrays["piece_sizes"].sum(dtype=np.int64) == len(arrays["pieces"]), f"the pieces of {name} do not add up")


def _require(holds: bool | np.bool_, reason: str) -> None:
    if not holds:
        raise BadMessage(reason)


_PLANS = [_plan(number, cls) for number, cls in enumerate(get_args(Message))]
_PLAN_OF = {plan.cls: plan for plan in _PLANS}
MAX_PARTS = 1 + max(sum(field.form.frames for field in plan.fields if field.form) for plan in _PLANS)
"""Frames of the longest message."""
