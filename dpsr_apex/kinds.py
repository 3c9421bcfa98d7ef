"""Kinds of values that a setting may have: how they are checked and described. Nothing here names a setting.

A kind is a type, or names of which one or several are allowed.
"""

from __future__ import annotations

import math
import sys
from dataclasses import astuple
from types import NoneType, UnionType
from typing import Any, NamedTuple, get_args, get_origin

from dpsr_apex.imports import CLASS_NAME
from dpsr_apex.schedules import Schedule


class Range(NamedTuple):
    """The numbers from `low` to `high`, both included unless `above` excludes `low`.

    For a schedule it applies to both ends, for a list to every element.
    """

    low: float
    high: float = math.inf
    above: bool = False

    def __str__(self) -> str:
        lower = f"> {self.low}" if self.above else f">= {self.low}"
        if self.high == math.inf:
            return lower
        return f"{lower} and <= {self.high}" if self.above else f"between {self.low} and {self.high}"

    def holds(self, number: float) -> bool:
        """Whether `number` is in the range."""
        return self.low <= number <= self.high and not (self.above and number == self.low)


class OneOf(NamedTuple):
    """The names that a setting may have."""

    names: tuple[str, ...]

    def __str__(self) -> str:
        return "one of " + ", ".join(map(repr, self.names))


class SomeOf(OneOf):
    """The names of which a setting may list any, each once."""

    def __str__(self) -> str:
        return "a list of any of " + ", ".join(map(repr, self.names))


class NameOrClass(NamedTuple):
    """The names that a setting may have, or a user's own "package.module:Class"."""

    names: tuple[str, ...]

    def __str__(self) -> str:
        return f'{OneOf(self.names)} or "package.module:Class"'


def fits(kind: Any, value: Any) -> bool:
    """Whether `value` has this kind: like `isinstance`, except that a bool is not an int and NaN is not a float."""
    if isinstance(kind, SomeOf):
        return isinstance(value, tuple) and all(item in kind.names and value.count(item) == 1 for item in value)
    if isinstance(kind, OneOf):
        return isinstance(value, str) and value in kind.names
    if isinstance(kind, NameOrClass):
        return isinstance(value, str) and (value in kind.names or CLASS_NAME.fullmatch(value) is not None)
    if isinstance(kind, UnionType):
        return any(fits(option, value) for option in get_args(kind))
    if kind == tuple[str, ...]:
        return isinstance(value, tuple) and all(isinstance(name, str) and CLASS_NAME.fullmatch(name) for name in value)
    if get_origin(kind) is tuple:
        return isinstance(value, tuple) and len(value) > 0 and all(fits(int, item) for item in value)
    if get_origin(kind) is dict:
        return isinstance(value, dict) and _is_plain(value)
    if kind is Schedule:
        return isinstance(value, Schedule) and all(fits(float, number) for number in astuple(value))
    if kind is float:
        return is_number(value)
    if kind is str:
        return isinstance(value, str) and value != ""
    return isinstance(value, kind) and (kind is bool or not isinstance(value, bool))


def describe(kind: Any) -> str:
    """Describe in words the values that `fits(kind, value)` accepts."""
    if isinstance(kind, OneOf | NameOrClass):
        return str(kind)
    if isinstance(kind, UnionType):
        return " or ".join(describe(option) for option in get_args(kind))
    words = {
        NoneType: "left out",
        bool: "true or false",
        int: "an integer",
        float: "a finite number",
        str: "a non-empty string",
        tuple[str, ...]: 'a list of "package.module:Class"',
        tuple: "a list of one or more integers",
        dict: "a table of strings, finite numbers, booleans, and lists and tables of them",
        Schedule: "a finite number, or a schedule such as { start = 1.0, end = 0.1, over = 0.5 }",
    }
    return words[kind if kind in words else get_origin(kind)]


def is_number(value: Any) -> bool:
    """Whether `value` is an int or a float that a finite float can hold."""
    is_numeric = isinstance(value, int | float) and not isinstance(value, bool)
    return is_numeric and abs(value) <= sys.float_info.max


def _is_plain(value: Any) -> bool:
    """Whether `value` survives a round trip through TOML unchanged."""
    if isinstance(value, dict):
        return all(isinstance(key, str) and _is_plain(item) for key, item in value.items())
    if isinstance(value, list):
        return all(map(_is_plain, value))
    return isinstance(value, str | bool) or is_number(value)
