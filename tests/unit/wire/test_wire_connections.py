"""Which connections are closed: those that take too much, rather than those that are served."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dpsr_apex.wire.connections import (
    FAULTS,
    HEARTBEATS,
    MOST_PER_HOST,
    MOST_SILENT,
    MOST_SILENT_PER_HOST,
    QUIET,
    UNREAD,
    UNREAD_SILENT,
    UNREAD_SILENT_TOTAL,
    UNREAD_TOTAL,
    Closing,
    Connections,
)

HERE, FAR = "127.0.0.1", "192.0.2.1"


def numbers(closings: list[Closing]) -> list[int]:
    return [closing.number for closing in closings]


def opened(count: int, host: str = HERE, first: int = 0, most: int = 10_000, heard: bool = True) -> Connections:
    """Return a table with this number of connections of one host, accepted one by one."""
    found = Connections(most)
    open_more(found, count, host, first, heard)
    return found


def open_more(found: Connections, count: int, host: str = HERE, first: int = 0, heard: bool = True) -> list[int]:
    """The numbers of the connections that are closed meanwhile."""
    closed = []
    for number in range(first, first + count):
        closed += numbers(found.accepted(number, host, float(number)))
        if heard:
            found.delivered(number, 10, float(number))
    return closed


def test_silent_connections_of_one_host_are_limited_and_the_oldest_are_closed() -> None:
    found = opened(100)
    assert open_more(found, MOST_SILENT_PER_HOST + 3, first=100, heard=False) == [100, 101, 102]
    assert open_more(found, 3, FAR, first=1_000, heard=False) == []
    found.ended(103)
    assert open_more(found, 1, first=2_000, heard=False) == []


def test_silent_connections_of_all_hosts_are_limited() -> None:
    found = Connections()
    closed = [n for host in range(MOST_SILENT + 5) for n in open_more(found, 1, f"host {host}", host, heard=False)]
    assert closed == [0, 1, 2, 3, 4]


def test_a_client_that_is_served_is_not_closed_for_a_new_one() -> None:
    found = opened(MOST_PER_HOST)
    new = MOST_PER_HOST
    for number in range(MOST_PER_HOST):
        found.delivered(number, 10, float(new))
    assert numbers(found.accepted(new, HERE, float(new))) == [new]
    assert found.accepted(new + 1, FAR, float(new)) == []


def test_one_that_has_been_quiet_is_closed_for_a_new_one() -> None:
    found = opened(MOST_PER_HOST, first=1_000)
    now = 1_000.0 + MOST_PER_HOST + QUIET + 1
    for number in range(1_001, 1_000 + MOST_PER_HOST):
        found.delivered(number, 10, now)
    assert numbers(found.accepted(1, HERE, now)) == [1_000]


def test_all_connections_together_are_limited() -> None:
    found = opened(10, most=10)
    assert open_more(found, 1, FAR, first=10, heard=False) == [10]
    found.ended(3)
    assert open_more(found, 1, FAR, first=11, heard=False) == []
    assert open_more(found, 1, FAR, first=12, heard=False) == [11], "the silent one that is older"
    assert len(found) == 10


def test_invalid_messages_close_a_connection_once() -> None:
    found = opened(2)
    closed = [numbers(found.fault(1)) for _ in range(FAULTS + 5)]
    assert closed == [[]] * (FAULTS - 1) + [[1]] + [[]] * 5
    assert found.fault(99) == []


# What was received and not read.


def measured(found: Connections, received: dict[int, int], now: float = 0.0) -> list[int]:
    return numbers(found.measure(received.get, now))


@pytest.mark.parametrize(("heard", "limit"), [(True, UNREAD), (False, UNREAD_SILENT)])
def test_a_connection_with_too_much_unread_is_closed(heard: bool, limit: int) -> None:
    found = opened(3, heard=heard)
    read = 10 if heard else 0
    assert measured(found, {0: 0, 1: limit + read, 2: 5}) == []
    assert measured(found, {0: 0, 1: limit + read + 1, 2: 5}) == [1]
    assert measured(found, {0: 0, 1: 2**60, 2: 5}) == []
    assert len(found) == 2


def test_what_was_read_and_heartbeats_do_not_count() -> None:
    found = opened(1)
    found.delivered(0, 2**40, 1.0)
    assert measured(found, {0: 2**40 + UNREAD}) == []
    day = 86_400
    assert measured(found, {0: 2**40 + UNREAD + HEARTBEATS * day}, now=day) == []
    assert found.unread <= UNREAD
    assert measured(found, {0: 2**40 + 2 * UNREAD + HEARTBEATS * day}, now=day) == [0]


def test_messages_of_a_former_connection_with_the_same_number_give_no_credit() -> None:
    found = opened(1)
    found.ended(0)
    found.accepted(0, HERE, 1.0)
    found.delivered(0, 2**40, 1.0)  # sent before the former one was closed
    assert measured(found, {0: 100}) == []
    assert measured(found, {0: 100 + UNREAD + 1}) == [0]


@pytest.mark.parametrize(
    ("heard", "total", "each"), [(True, UNREAD_TOTAL, UNREAD), (False, UNREAD_SILENT_TOTAL, UNREAD_SILENT)]
)
def test_the_greediest_are_closed_until_all_together_are_within_the_limit(heard: bool, total: int, each: int) -> None:
    count = total // each + 2
    found = opened(count, heard=heard)
    received = {number: each - 1_000 * number for number in range(count)}
    assert measured(found, received) == [0, 1]
    assert found.unread <= total


def test_without_a_measure_nothing_is_closed() -> None:
    found = opened(3)
    unknown: Callable[[int], int | None] = lambda _: None  # noqa: E731 -- typed
    assert found.measure(unknown, 0.0) == []
