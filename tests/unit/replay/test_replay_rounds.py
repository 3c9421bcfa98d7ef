"""Recycling rounds: Algorithm 1 step by step, answers that are late or missing, and what check_valid notices."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from dpsr_apex.replay.records import Round
from dpsr_apex.replay.replay import Replay
from tests.unit.replay.naive import Row, rows_of, stratified, transitions_of
from tests.unit.replay.twins import Twins, make_config, make_rows, single_steps, stored_rows

FLOOR = 0.5


def just_before_a_round(at_max: bool = False, seed: int = 0) -> Replay:
    """Nine transitions in nine slots, t = 9, priorities 1 to 9; the tenth opens a round of four candidates."""
    config = make_config(
        capacity=9,
        recycle_candidates=4,
        recycle_period=10,
        priority_floor=FLOOR,
        recycle_at_max_priority=at_max,
        gamma=1.0,
    )
    replay = Replay(config, 100, np.random.default_rng(seed))
    replay.insert(transitions_of(make_rows(0, 9)), np.arange(1.0, 10.0) - FLOOR)
    return replay


def open_round(replay: Replay, td_error: float | None = None) -> tuple[Round, Row]:
    (newcomer,) = make_rows(500, 1)
    (round_,) = replay.insert(transitions_of([newcomer]), None if td_error is None else np.array([td_error]))
    return round_, newcomer


@pytest.mark.parametrize("at_max", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_a_round_is_algorithm_1_step_by_step(at_max: bool, seed: int) -> None:
    replay = just_before_a_round(at_max, seed)
    before = dict(zip(replay.identities.tolist(), stored_rows(replay), strict=True))
    uniforms = np.random.default_rng(seed)

    # Step 1: candidates by p ** -gamma, until four distinct ones are held. Until the round ends, nothing is replaced.
    round_, newcomer = open_round(replay)
    masses, slots = 1 / np.arange(1.0, 10.0), list[int]()
    while len(slots) < 4:
        slots += [
            slot for slot in dict.fromkeys(stratified(masses, uniforms.random(4 - len(slots)))) if slot not in slots
        ]
        masses[slots] = 0.0
    assert replay.t == 10
    assert round_.candidates.tolist() == [replay.identities[slot] for slot in slots]
    assert rows_of(round_.stored) == [before[name] for name in round_.candidates.tolist()]
    assert stored_rows(replay) == list(before.values())

    # Steps 2 and 3 happen outside: each candidate's state is entered again, another action is taken, |delta'| is found.
    recycled = make_rows(600, 4)
    td_errors = np.array([3.0, 0.25, 7.0, 20.0])
    replay.answer(round_.number, single_steps(round_.candidates, transitions_of(recycled), td_errors))

    # Steps 4 and 5: three recycled ones take their candidates' slots, the newcomer that of the least |delta'|.
    expected = list(before.values())
    priorities = np.arange(1.0, 10.0)
    for row, slot in enumerate(slots):
        is_weakest = row == 1
        expected[slot] = newcomer if is_weakest else recycled[row]
        priorities[slot] = 9.0 if is_weakest or at_max else td_errors[row] + FLOOR  # 9: the greatest before the round
    assert stored_rows(replay) == expected
    assert replay.priorities.tolist() == priorities.tolist()
    assert replay.births[slots].tolist() == [10] * 4
    untouched = np.setdiff1d(np.arange(9), slots)
    assert replay.births[untouched].tolist() == (untouched + 1).tolist()
    assert not set(replay.identities[slots]) & set(before)
    assert replay.t == 10
    assert not replay.rounds
    assert replay.counters.recycled == 3
    assert replay.counters.replaced == 4
    assert replay.check_valid() == (True, "")


def test_rounds_are_due_at_multiples_of_the_period_once_the_replay_is_full() -> None:
    twins = Twins(make_config(capacity=9, recycle_period=4), seed=1)
    opened = {number: twins.fast.t for _ in range(30) for number in twins.insert(1)}
    assert list(opened.values()) == [12, 16, 20, 24, 28]
    chunked = Twins(make_config(capacity=9, recycle_period=4), seed=1)
    assert chunked.insert(30) == list(opened)
    waiting = [round_.waiting.births.tolist() for round_ in chunked.fast.rounds.values()]
    assert waiting == [[12], [16], [20], [24], [28]]


def test_the_newcomers_own_td_error_is_kept_while_it_waits() -> None:
    replay = just_before_a_round()
    round_, newcomer = open_round(replay, td_error=2.0)
    td_errors = np.array([3.0, 1.0, 7.0, 20.0])
    replay.answer(0, single_steps(round_.candidates, transitions_of(make_rows(600, 4)), td_errors))
    slot = stored_rows(replay).index(newcomer)
    assert replay.priorities[slot] == 2.0 + FLOOR
    assert replay.births[slot] == 10


def test_the_first_of_equally_weak_ones_is_replaced() -> None:
    replay = just_before_a_round()
    round_, newcomer = open_round(replay)
    replay.answer(0, single_steps(round_.candidates, transitions_of(make_rows(600, 4)), np.zeros(4)))
    assert stored_rows(replay)[round_.candidates[0] % 9] == newcomer


def test_an_expired_round_ends_with_what_arrived() -> None:
    replay = just_before_a_round()
    round_, newcomer = open_round(replay)
    answered = round_.candidates[[2, 0]]
    recycled = make_rows(600, 2)
    replay.answer(0, single_steps(answered, transitions_of(recycled), np.array([5.0, 2.0])))
    assert replay.rounds
    replay.expire(0)
    assert stored_rows(replay)[answered[0] % 9] == recycled[0]
    assert stored_rows(replay)[answered[1] % 9] == newcomer
    counters = replay.counters
    assert (counters.candidates_applied, counters.candidates_lost, counters.rounds_expired) == (2, 2, 1)
    assert replay.check_valid() == (True, "")


def test_the_newcomer_of_an_unanswered_round_is_not_lost() -> None:
    replay = just_before_a_round()
    _, newcomer = open_round(replay)
    replay.expire(0)
    assert stored_rows(replay).count(newcomer) == 1
    assert replay.births.max() == 10
    assert (replay.counters.recycled, replay.counters.replaced, replay.counters.candidates_lost) == (0, 1, 4)


def test_a_candidate_replaced_meanwhile_is_dropped_and_counted() -> None:
    """All of them, here: the newcomer then goes through a common replacement, and every answer is stale."""
    replay = just_before_a_round()
    round_, newcomer = open_round(replay)
    rows = iter(make_rows(600, 400))
    while np.isin(round_.candidates, replay.identities).any():
        replay.insert(transitions_of([next(rows)]))
    open_rounds = len(replay.rounds)
    recycled = make_rows(2000, 4)
    replay.answer(0, single_steps(round_.candidates, transitions_of(recycled), np.ones(4)))
    stored = stored_rows(replay)
    assert newcomer in stored
    assert not any(row in stored for row in recycled)
    assert (replay.counters.candidates_stale, replay.counters.recycled) == (4, 0)
    assert len(replay.rounds) == open_rounds - 1
    assert replay.check_valid() == (True, "")


def test_the_weakest_is_sought_among_the_candidates_still_present() -> None:
    """Round 1 takes candidates that it shares with round 0, whatever round 0's answers to those are."""
    config = make_config(capacity=4, recycle_candidates=4, recycle_period=1, priority_floor=FLOOR)
    twins = Twins(config)
    twins.insert(4)
    twins.insert(2)
    first, second = (twins.naive.rounds[number].candidates for number in (0, 1))
    assert set(first) == set(second)
    twins.answer(0, first[:3], [0.0, 1.0, 2.0])
    twins.answer(1, [first[0]], [5.0])
    twins.expire(1)  # its newcomer takes the slot of first[0], whose |delta'| in round 0 is the least
    twins.answer(0, [first[3]], [3.0])
    assert twins.fast.counters.candidates_stale == 1
    assert twins.fast.counters.recycled == 2


def test_stored_candidates_are_as_they_were_when_the_round_was_opened() -> None:
    replay = just_before_a_round()
    before = stored_rows(replay)
    chunk = make_rows(500, 300)  # opens a round with its first, and continues by common replacement
    round_ = replay.insert(transitions_of(chunk))[0]
    assert rows_of(round_.stored) == [before[name % 9] for name in round_.candidates.tolist()]
    assert not np.isin(round_.candidates, replay.identities).all()


def set_counter(name: str) -> Callable[[Replay], None]:
    def corrupt(replay: Replay) -> None:
        setattr(replay.counters, name, getattr(replay.counters, name) + 1)

    return corrupt


def assign(column: str, index: int, value: int) -> Callable[[Replay], None]:
    def corrupt(replay: Replay) -> None:
        getattr(replay._table.slots, column)[index] = value

    return corrupt


def tick(replay: Replay) -> None:
    replay.t += 1


def set_number(name: str, change: int) -> Callable[[Replay], None]:
    def corrupt(replay: Replay) -> None:
        setattr(replay._table, name, getattr(replay._table, name) + change)

    return corrupt


def forget_state(replay: Replay) -> None:
    replay._table.store["s_tm1"][3] = ()


def corrupt_trees(replay: Replay) -> None:
    replay._table.trees.arrays.leaves[0, 2] *= 2


def empty_slot(replay: Replay) -> None:
    """Evict a transition, but leave the time of its birth."""
    birth = replay.births[3]
    replay.evict(replay.identities[3:4])
    replay._table.slots.births[3] = birth


def forget_round(replay: Replay) -> None:
    replay.rounds.clear()
    replay.counters.replaced += 1  # as if its newcomer had been stored


@pytest.mark.parametrize(
    ("corrupt", "reason"),
    [
        (set_number("size", 1), "more transitions are stored than the capacity"),
        (set_number("size", -1), "another number of slots has an identity than is stored"),
        (assign("identities", 3, 4), "an identity does not belong to its slot"),
        (assign("identities", 3, -1), "another number of slots has an identity than is stored"),
        (assign("identities", 3, 3 - 9), "an identity is negative"),
        (empty_slot, "an empty slot has data"),
        (assign("identities", 3, 3 + 9 * 1000), "an identity is from the future"),
        (assign("births", 3, 9), "the order of identities is not the order of births"),
        (assign("births", 0, 0), "a birth is not between 1 and t"),
        (assign("births", 8, 11), "a birth is not between 1 and t"),
        (tick, "transitions were lost or created"),
        (set_counter("replaced"), "transitions were lost or created"),
        (set_counter("recycled"), "transitions were lost or created"),
        (set_counter("quarantined"), "transitions were lost or created"),
        (set_number("next_serial", 1), "serial numbers do not match the insertions"),
        (set_counter("rounds_opened"), "a round was neither closed nor expired"),
        (set_counter("rounds_expired"), "a round was neither closed nor expired"),
        (forget_round, "a round was neither closed nor expired"),
        (set_counter("candidates_drawn"), "a candidate is neither applied nor stale nor lost"),
        (set_counter("candidates_lost"), "a candidate is neither applied nor stale nor lost"),
        (set_counter("candidates_stale"), "a candidate is neither applied nor stale nor lost"),
        (set_counter("candidates_applied"), "a candidate is neither applied nor stale nor lost"),
        (forget_state, "a stored transition has no state"),
        (corrupt_trees, "a leaf of row 0 is not its priority to the power of 0.6"),
    ],
)
def test_check_valid_notices(corrupt: Callable[[Replay], None], reason: str) -> None:
    replay = just_before_a_round()
    open_round(replay)
    assert replay.check_valid() == (True, "")
    corrupt(replay)
    assert replay.check_valid() == (False, reason)


def test_check_valid_notices_a_ranking_that_differs_from_the_trees() -> None:
    replay = Replay(make_config("per_rank", capacity=4), 100, np.random.default_rng(0))
    replay.insert(transitions_of(make_rows(0, 4)))
    replay._table.trees.set(np.array([2]), np.array([5.0]))
    assert replay.check_valid() == (False, "the ranking holds other priorities than the trees")
