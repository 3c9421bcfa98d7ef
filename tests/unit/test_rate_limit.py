from __future__ import annotations

from dpsr_apex.rate_limit import RateLimit, with_left_out


def test_events_beyond_the_limit_are_left_out_and_counted() -> None:
    limit = RateLimit(2, seconds=60)
    assert [limit.admit(now) for now in (1_000.0, 1_001.0, 1_002.0, 1_059.9)] == [0, 0, None, None]
    assert [limit.admit(now) for now in (1_060.0, 1_060.0, 1_119.9)] == [2, 0, None]
    assert limit.admit(1_120.0) == 1
    assert limit.admit(5_000.0) == 0


def test_a_clock_that_goes_back_begins_a_new_period() -> None:
    limit = RateLimit(1)
    assert [limit.admit(now) for now in (100.0, 100.0, 50.0)] == [0, None, 1]


def test_a_line_says_how_many_were_left_out() -> None:
    assert with_left_out("text", 0) == "text"
    assert with_left_out("text", 1_234).startswith("text (1,234 ")
