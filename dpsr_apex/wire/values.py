"""Encode values inside a message as a flat sequence of numbers and strings by their type hints, and decode them.

A record (a NamedTuple or a dataclass) is encoded as its fields in order, a list as its length and its items, a dict as
its length and its keys and values, and a union as the index of the alternative and the value. So nothing is nested on
the wire, what comes next follows from the type hints, and memory is never allocated by announced sizes alone.
"""

from __future__ import annotations

import dataclasses
import math
import operator
from collections.abc import Callable
from types import NoneType, UnionType
from typing import Any, Protocol, Union, get_args, get_origin, get_type_hints

MAX_ITEMS = 100_000  # per list or dict

SCALARS: dict[type, Callable[[Any], Any]] = {int: operator.index, float: float, str: str, bool: bool}
"""Types that are encoded directly, with the conversion to Python's own type: numpy's numbers are accepted."""

Put = Callable[[Any], None]
"""Receives the next number or string of a value that is being written."""

Take = Callable[[], Any]
"""Returns the next number or string, not validated; raises BadValue if there is none."""


class BadValue(Exception):
    """Raised for a value that does not match its type hint; `place` is the position inside it, such as `[3].sent`."""

    def __init__(self, reason: str, place: str = "") -> None:
        super().__init__(f"{place} {reason}")
        self.reason = reason
        self.place = place

    def within(self, place: str) -> BadValue:
        """Return this error with its position relative to the enclosing value."""
        return BadValue(self.reason, place + self.place)


class Shape(Protocol):
    """Encoding of the values of one type hint."""

    def write(self, value: Any, put: Put) -> None:
        """Write the numbers and strings of a value."""

    def read(self, take: Take) -> Any:
        """Read and return a value; raise BadValue if it is invalid."""

    def fits(self, value: Any) -> bool:
        """Whether a value is of this type, for unions."""


def check_scalar(kind: type, entry: Any) -> Any:
    """Return the entry; raise BadValue unless it is of exactly this type, fits in 64 bits and is finite."""
    found = type(entry)
    if found is not kind:  # a bool is not an int here
        raise BadValue(f"is of type {found.__name__}, not {kind.__name__}")
    if kind is int and not -(2**63) <= entry < 2**63:
        raise BadValue(f"is {entry}, which is more than 64 bits")
    if kind is float and not math.isfinite(entry):
        raise BadValue(f"is {entry}")
    return entry


def check_count(entry: Any, most: int) -> int:
    """Return the entry; raise BadValue unless it is a valid count of items."""
    if type(entry) is not int:
        raise BadValue(f"is of type {type(entry).__name__}, not a count")
    if entry > most:
        raise BadValue(f"has {entry} items, more than {most}")
    if entry < 0:
        raise BadValue(f"has {entry} items")
    return entry


def shape_of(hint: Any) -> Shape:
    """Return the encoding of values of this type hint; raise TypeError if it is not supported."""
    origin, arguments = get_origin(hint), get_args(hint)
    if hint in SCALARS:
        return _Scalar(hint)
    if hint is NoneType:
        return _Nothing()
    if origin in (Union, UnionType):
        return _Alternatives([shape_of(option) for option in arguments])
    if origin is list:
        return _Items(shape_of(arguments[0]))
    if origin is dict and arguments[0] is str:
        return _Table(shape_of(arguments[1]))
    if isinstance(hint, type) and (dataclasses.is_dataclass(hint) or hasattr(hint, "_fields")):
        return _Record(hint, {name: shape_of(inner) for name, inner in get_type_hints(hint).items()})
    raise TypeError(f"{hint} cannot be encoded")


@dataclasses.dataclass(frozen=True)
class _Scalar:
    kind: type

    def write(self, value: Any, put: Put) -> None:
        put(SCALARS[self.kind](value))

    def read(self, take: Take) -> Any:
        return check_scalar(self.kind, take())

    def fits(self, value: Any) -> bool:
        return isinstance(value, self.kind) and (self.kind is bool or not isinstance(value, bool))


class _Nothing:
    """None, in a union."""

    def write(self, value: Any, put: Put) -> None:
        pass

    def read(self, take: Take) -> None:
        pass

    def fits(self, value: Any) -> bool:
        return value is None


@dataclasses.dataclass(frozen=True)
class _Alternatives:
    options: list[Shape]

    def write(self, value: Any, put: Put) -> None:
        for place, option in enumerate(self.options):
            if option.fits(value):
                put(place)
                option.write(value, put)
                return
        raise TypeError(f"{value!r} matches none of the allowed types")

    def read(self, take: Take) -> Any:
        place = check_count(take(), MAX_ITEMS)
        if place >= len(self.options):
            raise BadValue(f"has alternative {place}, but there are {len(self.options)}")
        return self.options[place].read(take)

    def fits(self, value: Any) -> bool:
        return any(option.fits(value) for option in self.options)


@dataclasses.dataclass(frozen=True)
class _Items:
    item: Shape

    def write(self, value: Any, put: Put) -> None:
        put(len(value))
        for item in value:
            self.item.write(item, put)

    def read(self, take: Take) -> list[Any]:
        items: list[Any] = []
        count = check_count(take(), MAX_ITEMS)
        try:
            for _ in range(count):
                items.append(self.item.read(take))  # noqa: PERF401 -- its length is in the error
        except BadValue as error:
            raise error.within(f"[{len(items)}]") from None
        return items

    def fits(self, value: Any) -> bool:
        return isinstance(value, list)


@dataclasses.dataclass(frozen=True)
class _Table:
    value: Shape

    def write(self, value: Any, put: Put) -> None:
        put(len(value))
        for key, item in value.items():
            put(str(key))
            self.value.write(item, put)

    def read(self, take: Take) -> dict[str, Any]:
        table: dict[str, Any] = {}
        for _ in range(check_count(take(), MAX_ITEMS)):
            key = check_scalar(str, take())
            if key in table:
                raise BadValue("is repeated", f"[{key!r}]")
            try:
                table[key] = self.value.read(take)
            except BadValue as error:
                raise error.within(f"[{key!r}]") from None
        return table

    def fits(self, value: Any) -> bool:
        return isinstance(value, dict)


@dataclasses.dataclass(frozen=True)
class _Record:
    cls: type
    fields: dict[str, Shape]

    def write(self, value: Any, put: Put) -> None:
        for name, shape in self.fields.items():
            shape.write(getattr(value, name), put)

    def read(self, take: Take) -> Any:
        values: list[Any] = []
        for name, shape in self.fields.items():
            try:
                values.append(shape.read(take))
            except BadValue as error:
                raise error.within(f".{name}") from None
        return self.cls(*values)

    def fits(self, value: Any) -> bool:
        return isinstance(value, self.cls)
