from __future__ import annotations

from dpsr_apex.protocol.memory_watch import GREEDY, HALVED, PAUSE, RESERVE, Greedy, MemoryWatch, Relief

MIB = 2**20
LIMIT = 1_000 * MIB


def watch(**sizes: int) -> MemoryWatch:
    """A watch to which this has come, by sender."""
    made = MemoryWatch(LIMIT, 0.0)
    for sender, size in sizes.items():
        made.came(sender.encode(), size)
    return made


def test_whoever_has_sent_the_most_is_dropped_when_the_process_takes_too_much() -> None:
    memory = watch(small=10, greedy=2 * GREEDY, other=GREEDY)
    assert memory.check(LIMIT, 1.0) is None
    assert memory.check(LIMIT + 1, 1.0) == Relief(Greedy(b"greedy", 2 * GREEDY), 0)


def test_the_next_one_is_dropped_after_a_pause() -> None:
    memory = watch(greedy=2 * GREEDY, other=GREEDY)
    memory.check(LIMIT + 1, 1.0)
    assert memory.check(LIMIT + 1, 1.0 + PAUSE - 0.1) is None
    relief = memory.check(LIMIT + 1, 1.0 + PAUSE)
    assert relief is not None
    assert relief.greedy == Greedy(b"other", GREEDY)


def test_nobody_is_dropped_who_has_sent_little_lately() -> None:
    assert watch(one=GREEDY - 1).check(2 * LIMIT, 1.0) == Relief(None, 0)
    assert watch().check(2 * LIMIT, 1.0) == Relief(None, 0)
    memory = watch(early=3 * GREEDY)
    for seconds in (HALVED, 2 * HALVED):
        assert memory.check(0, seconds) is None
    assert memory.check(2 * LIMIT, 2 * HALVED + 1) == Relief(None, 0)


def test_transitions_are_evicted_if_nothing_else_has_helped() -> None:
    memory = watch()
    assert memory.check(2 * LIMIT, 1.0) == Relief(None, 0)
    size = LIMIT + int(RESERVE * LIMIT)
    assert memory.check(2 * LIMIT, 1.0 + PAUSE) == Relief(None, size)
    assert memory.check(LIMIT, 1.0 + 2 * PAUSE) is None
    assert memory.check(LIMIT + 1, 1.0 + 2 * PAUSE) == Relief(None, 0), "it begins with dropping again"


def test_without_a_limit_nobody_is_dropped() -> None:
    memory = MemoryWatch(None, 0.0)
    memory.came(b"greedy", 100 * GREEDY)
    assert memory.check(100 * LIMIT, 1.0) is None
    assert watch(greedy=100 * GREEDY).check(None, 1.0) is None
