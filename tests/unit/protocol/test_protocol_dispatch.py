"""Candidates over actors: spread evenly, given a second time when an actor goes, and never a third."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpsr_apex.protocol.dispatch import Dispatch
from dpsr_apex.replay.transitions import from_lists
from dpsr_apex.wire.messages import Recycle
from dpsr_apex.wire.statistics import Traffic

DEADLINE = 10.0


def request(number: int, count: int) -> Recycle:
    """Candidates with the identities 100 * number, 100 * number + 1, ...; each start tells whose it is."""
    identities = 100 * number + np.arange(count)[::-1]  # not in ascending order
    starts = from_lists(
        s_tm1=[(f"state {name}".encode(),) for name in identities.tolist()],
        a_tm1=identities % 7,
        r_t=np.zeros(count, dtype=np.float32),
        s_t=[()] * count,
        terminal=np.zeros(count, dtype=np.bool_),
        n_steps=np.ones(count, dtype=np.uint8),
        snapshots=[f"snapshot {name}".encode() for name in identities.tolist()],
    )
    return Recycle(5, number, identities, starts)


def dispatch() -> tuple[Dispatch, Traffic]:
    traffic = Traffic()
    return Dispatch(DEADLINE, traffic), traffic


def names(tasks: list[tuple[str, Recycle]]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for actor, task in tasks:
        found.setdefault(actor, []).extend(task.identities.tolist())
    return found


@given(st.integers(1, 12), st.lists(st.integers(1, 20), min_size=1, max_size=4))
def test_candidates_are_spread_evenly_and_each_is_given_once(actors: int, counts: list[int]) -> None:
    registry, _ = dispatch()
    for number, count in enumerate(counts):
        registry.open(request(number, count), 0.0)
    shares = names(registry.assign([f"actor-{i}" for i in range(actors)]))
    given_out = [identity for share in shares.values() for identity in share]
    assert sorted(given_out) == sorted(100 * number + i for number, count in enumerate(counts) for i in range(count))
    sizes = [len(shares.get(f"actor-{i}", [])) for i in range(actors)]
    assert max(sizes) - min(sizes) <= 1
    assert registry.assign([f"actor-{i}" for i in range(actors)]) == []


def test_each_part_of_a_request_has_the_rows_of_its_candidates() -> None:
    registry, _ = dispatch()
    registry.open(request(3, 7), 0.0)
    for _, task in registry.assign(["a", "b", "c"]):
        assert (task.era, task.round_number) == (5, 3)
        assert len(task.starts) == task.identities.size
        for row, identity in enumerate(task.identities.tolist()):
            assert task.starts.s_tm1[row] == (f"state {identity}".encode(),)
            assert task.starts.snapshots[row] == f"snapshot {identity}".encode()
            assert task.starts.a_tm1[row] == identity % 7


def test_who_has_the_least_to_do_comes_first() -> None:
    registry, _ = dispatch()
    registry.open(request(0, 4), 0.0)
    registry.assign(["busy"])
    registry.open(request(1, 6), 0.0)
    shares = names(registry.assign(["busy", "idle"]))
    assert {name: len(share) for name, share in shares.items()} == {"idle": 5, "busy": 1}
    assert registry.outstanding() == Counter(busy=5, idle=5)


def test_a_round_without_an_actor_waits_for_one() -> None:
    registry, _ = dispatch()
    registry.open(request(0, 3), 0.0)
    assert registry.assign([]) == []
    assert registry.over(5.0) == []
    assert names(registry.assign(["late"])) == {"late": [2, 1, 0]}


def test_a_round_is_over_at_its_deadline_and_only_once() -> None:
    registry, _ = dispatch()
    registry.open(request(0, 3), 1.0)
    registry.open(request(1, 3), 2.0)
    assert registry.over(10.9) == []
    assert registry.over(11.0) == [0]
    assert registry.over(11.0) == []
    assert registry.over(12.0) == [1]


def test_a_round_is_over_when_every_candidate_is_answered_or_failed() -> None:
    registry, traffic = dispatch()
    registry.open(request(0, 4), 0.0)
    registry.assign(["a"])
    registry.answered(0, [0, 1])
    registry.failed(0, [2], "a")
    assert registry.over(0.0) == []
    assert registry.outstanding() == Counter(a=1)
    registry.answered(0, [3])
    assert registry.over(0.0) == [0]
    assert traffic.candidates_failed == 1


def test_what_a_gone_actor_held_goes_to_another_one_but_only_once() -> None:
    registry, traffic = dispatch()
    registry.open(request(0, 4), 0.0)
    registry.assign(["first", "other"])
    registry.release("first")
    again = names(registry.assign(["other", "second"]))
    assert sum(len(share) for share in again.values()) == 2
    assert traffic.candidates_reissued == 2
    registry.release("second")
    registry.release("other")
    assert registry.over(0.0) == []  # those that were only given to `other` may be given once more
    assert sum(len(share) for share in names(registry.assign(["third"])).values()) == 2
    registry.release("third")
    assert registry.assign(["fourth"]) == []
    assert registry.over(0.0) == [0]
    assert (traffic.candidates_reissued, traffic.candidates_given_up) == (4, 4)


def test_an_answer_counts_whoever_gives_it() -> None:
    registry, _ = dispatch()
    registry.open(request(0, 2), 0.0)
    registry.assign(["a"])
    registry.release("a")
    registry.answered(0, [0])  # from the one that went: it waits for another actor now
    assert names(registry.assign(["b"])) == {"b": [1]}
    registry.answered(0, [0, 1])
    assert registry.over(0.0) == [0]


def test_a_failure_counts_only_from_the_one_who_was_asked() -> None:
    registry, traffic = dispatch()
    registry.open(request(0, 1), 0.0)
    registry.assign(["a"])
    registry.failed(0, [0, 77], "b")
    assert registry.over(0.0) == []
    registry.release("a")
    registry.failed(0, [0], "a")
    assert names(registry.assign(["b"])) == {"b": [0]}
    assert traffic.candidates_failed == 0


@pytest.mark.parametrize("number", [0, 9])
def test_what_is_said_of_an_unknown_round_is_passed_over(number: int) -> None:
    registry, traffic = dispatch()
    registry.open(request(0, 1), 0.0)
    registry.clear()
    registry.answered(number, [1])
    registry.failed(number, [1], "a")
    registry.release("a")
    assert registry.assign(["a"]) == []
    assert registry.over(100.0) == []
    assert traffic == Traffic()


@given(st.lists(st.tuples(st.sampled_from(["assign", "release", "answer", "fail"]), st.integers(0, 3)), max_size=40))
def test_no_candidate_is_given_to_more_than_two_actors_and_none_is_forgotten(moves: list[tuple[str, int]]) -> None:
    registry, traffic = dispatch()
    registry.open(request(0, 6), 0.0)
    given_out: Counter[int] = Counter()
    answered: set[int] = set()
    actors = ["a0", "a1", "a2", "a3"]
    live = set(actors)
    for move, i in moves:
        if move == "assign":
            live.add(actors[i])
            given_out.update(
                identity for _, task in registry.assign(sorted(live)) for identity in task.identities.tolist()
            )
        elif move == "release":
            live.discard(actors[i])
            registry.release(actors[i])
        elif move == "answer":
            registry.answered(0, [i])
            answered.add(i)
        else:
            registry.failed(0, [i + 2], actors[i])
    for name in [*actors, *actors]:  # all of them go, twice
        registry.release(name)
        given_out.update(identity for _, task in registry.assign([name]) for identity in task.identities.tolist())
        registry.release(name)
    assert registry.over(0.0) == [0]
    assert max(given_out.values(), default=0) <= 2
    assert set(given_out) | answered == set(range(6))
    assert 6 - len(answered) <= traffic.candidates_failed + traffic.candidates_given_up <= 6


def test_candidates_of_an_expired_round_are_held_until_they_are_answered_or_their_actor_ends() -> None:
    registry, traffic = dispatch()
    registry.open(request(0, 6), 0.0)
    registry.assign(["a", "b"])
    assert registry.over(100.0) == [0]
    assert registry.outstanding() == Counter()
    registry.answered(0, [0])
    assert registry.failed(0, [2, 1], "a") == [1]
    assert registry.failed(0, [1], "a") == []
    registry.withdraw([3])
    assert (registry.release("a"), registry.release("b")) == ([5], [4, 2])
    assert (registry.release("a"), registry.release("b")) == ([], [])
    assert (traffic.candidates_failed, traffic.candidates_reissued, traffic.candidates_given_up) == (0, 0, 0)


def test_the_memory_of_expired_rounds_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dpsr_apex.protocol.dispatch.MOST_OVERDUE", 5)
    registry, _ = dispatch()
    for number in range(4):
        registry.open(request(number, 4 * number + 4), 0.0)
        registry.assign(["a"])
        registry.over(100.0)
    assert len(registry.release("a")) == 5
