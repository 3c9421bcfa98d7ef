"""Numbers, durations and commands as people read and type them."""

from __future__ import annotations

import math
import shlex
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpsr_apex.formatting import (
    DASH,
    counted,
    duration,
    evaluation_line,
    in_order,
    interval,
    number,
    pasteable,
    percent,
    probability,
    short,
    signed,
    whole,
)


@pytest.mark.parametrize(
    ("value", "digits", "text"),
    [
        (0.0123456, 4, "0.01235"),
        (0.0123456, 3, "0.0123"),
        (12.0, 4, "12"),
        (19.94, 3, "19.9"),
        (1e-6, 4, "1e-06"),
        (999.4, 3, "999"),
        (999.9, 3, "1,000"),
        (999.95, 4, "1,000"),
        (-999.999, 5, "-1,000"),
        (-1234.5, 3, "-1,234"),
        (123456.0, 4, "123,456"),
        (0, 3, "0"),
        (None, 3, DASH),
        (math.nan, 3, DASH),
        (-math.inf, 3, DASH),
    ],
)
def test_a_number_has_its_significant_digits_and_never_a_positive_power_of_ten(
    value: float | None, digits: int, text: str
) -> None:
    assert number(value, digits) == text


@given(st.floats(-1e12, 1e12), st.integers(2, 6))
def test_a_number_is_right_to_its_digits(value: float, digits: int) -> None:
    read = float(number(value, digits).replace(",", ""))
    assert math.isclose(read, value, rel_tol=0.51 * 10 ** (1 - digits), abs_tol=0.5 if abs(value) >= 1000 else 1e-300)


@given(st.floats(-1e9, 1e9))
def test_a_short_number_is_right_to_three_digits(value: float) -> None:
    text = short(value)
    scale = {"k": 1e3, "M": 1e6}.get(text[-1], 1.0)
    read = float(text.rstrip("kM").replace(",", "")) * scale
    assert math.isclose(read, value, rel_tol=0.0051, abs_tol=1e-300)


@pytest.mark.parametrize("value", [None, math.nan, math.inf, -math.inf])
def test_nan_and_infinity_are_a_dash_in_a_short_number(value: float | None) -> None:
    assert short(value) == DASH


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0:00:00"),
        (59.6, "0:01:00"),
        (3_599, "0:59:59"),
        (47 * 3_600 + 61, "47:01:01"),
        (51 * 3_600, "2 d 3 h"),
        (None, DASH),
        (math.nan, DASH),
        (math.inf, DASH),
    ],
)
def test_a_duration_is_in_hours_minutes_and_seconds_or_in_days(seconds: float | None, text: str) -> None:
    assert duration(seconds) == text


def test_shares_counts_and_intervals() -> None:
    assert (percent(0.126), percent(0.126, 1), percent(None)) == ("13%", "12.6%", DASH)
    assert (whole(1_234_567), whole(None)) == ("1,234,567", DASH)
    assert (counted(1, "run"), counted(2_000, "run")) == ("1 run", "2,000 runs")
    assert (signed(0.5), signed(-0.5)) == ("+0.5", "−0.5")
    assert (probability(0.5), probability(None)) == ("0.50", DASH)
    assert interval(1.5, 2_000.0) == "1.5 – 2,000"
    assert interval(0.5, 1.0, probability) == "0.50 – 1.00"
    assert interval(math.nan, 1.0) == DASH


@given(st.lists(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])), max_size=4))
def test_a_command_can_be_pasted_whatever_its_words_are(words: list[str]) -> None:
    assert shlex.split(pasteable(*words))[1:] == words


def test_a_command_is_the_one_that_was_typed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["/somewhere/dpsr_apex/cli/__main__.py"])
    assert pasteable("resume", "a b") == "python -m dpsr_apex.cli resume 'a b'"
    monkeypatch.setattr(sys, "argv", ["/no where/dpsr-apex"])
    assert shlex.split(pasteable("resume")) == ["/no where/dpsr-apex", "resume"]


def test_an_evaluation_is_one_line() -> None:
    assert evaluation_line(12_004, 2_800.0, 2_550.0, 4) == (
        "evaluation at t = 12,004: mean 2800.0, median 2550.0 over 4 episodes"
    )
    assert evaluation_line(300, -2.0, -2.0, 1).endswith("over 1 episode")


def test_names_are_sorted_by_the_numbers_in_them() -> None:
    names = ["Corridor (depth = 3)", "Corridor (depth = 10)", "Corridor (depth = 20)", "MinAtar/Breakout", "Pong"]
    assert sorted(["Pong", *names], key=in_order) == [*names, "Pong"]
    assert sorted(["p = 0.25", "p = 0.1", "p"], key=in_order) == ["p", "p = 0.1", "p = 0.25"]
