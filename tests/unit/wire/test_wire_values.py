"""Values by their type hints: any value comes back as it was, and nothing else than a value of the hint comes out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpsr_apex.wire.values import BadValue, check_count, check_scalar, shape_of


class Point(NamedTuple):
    x: int
    y: float | None


@dataclass
class Path:
    name: str
    points: list[Point]
    closed: bool = False


class Circle(NamedTuple):
    centre: Point
    radius: float


Drawing = dict[str, Path | Circle | list[int | float] | None]

INTS = st.integers(-(2**63), 2**63 - 1)
FLOATS = st.floats(allow_nan=False, allow_infinity=False)
POINTS = st.builds(Point, INTS, st.none() | FLOATS)
PATHS = st.builds(Path, st.text(), st.lists(POINTS, max_size=3), st.booleans())
DRAWINGS = st.dictionaries(
    st.text(),
    PATHS | st.builds(Circle, POINTS, FLOATS) | st.lists(INTS | FLOATS, max_size=4) | st.none(),
    max_size=4,
)


def written(value: Any, hint: Any) -> list[Any]:
    scalars: list[Any] = []
    shape_of(hint).write(value, scalars.append)
    return scalars


def read(scalars: list[Any], hint: Any) -> Any:
    left = iter(scalars)

    def take() -> Any:
        try:
            return next(left)
        except StopIteration:
            raise BadValue("is missing") from None

    value = shape_of(hint).read(take)
    assert list(left) == []
    return value


def typed(value: Any) -> Any:
    """The value with the type of every number in it: 1 and 1.0 are equal, and are not the same."""
    if isinstance(value, list):
        return [typed(item) for item in value]
    if isinstance(value, dict):
        return {key: typed(item) for key, item in value.items()}
    return type(value), repr(value)


@given(DRAWINGS)
def test_any_value_comes_back_as_it_was(drawing: dict[str, Any]) -> None:
    scalars = written(drawing, Drawing)
    assert {type(scalar) for scalar in scalars} <= {int, float, str, bool}
    assert typed(read(scalars, Drawing)) == typed(drawing)


@given(DRAWINGS, st.data())
def test_a_value_that_is_cut_short_is_bad(drawing: dict[str, Any], data: st.DataObject) -> None:
    scalars = written(drawing, Drawing)
    kept = data.draw(st.integers(0, len(scalars) - 1))
    with pytest.raises(BadValue):
        read(scalars[:kept], Drawing)


@given(st.lists(st.none() | st.booleans() | st.integers(-5, 5) | st.floats() | st.text(max_size=2), max_size=20))
def test_any_scalars_are_bad_or_a_value(scalars: list[Any]) -> None:
    shape = shape_of(Drawing)
    left = iter(scalars)

    def take() -> Any:
        try:
            return next(left)
        except StopIteration:
            raise BadValue("is missing") from None

    try:
        value = shape.read(take)
    except BadValue:
        return
    used = len(scalars) - len(list(left))
    assert written(value, Drawing) == scalars[:used]


@pytest.mark.parametrize(
    ("scalars", "error"),
    [
        ([1, "a", 0, "line", 1, 4, 7], "['a'].points[0].y has alternative 7, but there are 2"),
        ([1, "a", 0, "line", 2, 4, 1, True], "['a'].points[1].x is of type bool, not int"),
        ([1, "a", 1, 4, 0, float("nan")], "['a'].centre.y is nan"),
        ([1, "a", 2, 2, 1, 0.5], "['a'][1] is missing"),
        ([1, 5], " is of type int, not str"),
        ([2, "a", 3, "a", 3], "['a'] is repeated"),
        (["1"], " is of type str, not a count"),
    ],
)
def test_the_place_of_what_is_wrong_is_named(scalars: list[Any], error: str) -> None:
    with pytest.raises(BadValue) as caught:
        read(scalars, Drawing)
    assert str(caught.value) == error


@pytest.mark.parametrize("hint", [object, bytes, dict[int, int], set[int], list[bytes], tuple[int, ...], Any])
def test_a_hint_that_cannot_travel_is_refused_at_once(hint: Any) -> None:
    with pytest.raises(TypeError, match="cannot be encoded"):
        shape_of(hint)


def test_a_value_of_no_alternative_is_refused_by_the_sender() -> None:
    with pytest.raises(TypeError, match="none of the allowed types"):
        written({"a": b"bytes"}, Drawing)


@pytest.mark.parametrize(("kind", "entry"), [(int, True), (int, 2**63), (float, 1), (float, float("inf")), (str, b"")])
def test_a_scalar_is_of_exactly_its_kind(kind: type, entry: Any) -> None:
    with pytest.raises(BadValue):
        check_scalar(kind, entry)


def test_a_count_is_an_integer_within_its_bounds() -> None:
    assert check_count(0, 3) == 0
    assert check_count(3, 3) == 3
    for entry in (4, -1, True, 1.0, "1", None):
        with pytest.raises(BadValue):
            check_count(entry, 3)
