"""Deep recycling: chains of several steps, which states they start from, and how many steps they may take."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dpsr_apex.methods import METHODS
from dpsr_apex.replay.records import Chains
from dpsr_apex.replay.recyclers import CHOICES
from dpsr_apex.replay.replay import Replay
from tests.unit.replay.naive import NaiveChain, Row, rows_of, transitions_of
from tests.unit.replay.test_replay_replay import use_at_random
from tests.unit.replay.twins import Twins, image, joined, make_config, make_rows, stored_rows

FLOOR = 0.5


def just_before_a_round(total_steps: int = 100, **settings: Any) -> Replay:
    """Nine transitions in nine slots with priorities 1 to 9; the tenth opens a round of three candidates."""
    settings = {"recycle_candidates": 3, "recycle_period": 10, "recycle_steps": 4, "priority_floor": FLOOR} | settings
    replay = Replay(make_config(capacity=9, gamma=1.0, **settings), total_steps, np.random.default_rng(0))
    replay.insert(transitions_of(make_rows(0, 9)), np.arange(1.0, 10.0) - FLOOR)
    return replay


def chain(start: int, *td_errors: float) -> NaiveChain:
    return NaiveChain(make_rows(start, len(td_errors)), list(td_errors), float(start))


def depth_of(replay: Replay, row: Row) -> int:
    return int(replay.depths[stored_rows(replay).index(row)])


@pytest.mark.parametrize("initial_priority", ["max", "td_error"])
def test_later_steps_of_a_chain_are_new_transitions(initial_priority: str) -> None:
    replay = just_before_a_round(initial_priority=initial_priority)
    (round_,) = replay.insert(transitions_of(make_rows(50, 1)))
    chains = [chain(100, 3.0, 0.1, 0.2), chain(200, 0.0, 11.0, 12.0), chain(300, 7.0)]
    replay.answer(round_.number, joined(round_.candidates.tolist(), chains))
    assert replay.t == 10 + 2 + 2
    stored = stored_rows(replay)
    assert chains[1].rows[0] not in stored  # the weakest: its slot went to the waiting transition
    assert depth_of(replay, chains[1].rows[2]) == 3
    newest = np.argsort(replay.identities)[-4:]
    assert [stored[slot] for slot in newest] == [*chains[0].rows[1:], *chains[1].rows[1:]]
    assert replay.births[newest].tolist() == [11, 12, 13, 14]
    assert replay.depths[newest].tolist() == [2, 3, 2, 3]
    own = np.array([0.1, 0.2, 11.0, 12.0]) + FLOOR
    assert replay.priorities[newest].tolist() == (own.tolist() if initial_priority == "td_error" else [9.0] * 4)
    counters = replay.counters
    assert (counters.chains, counters.chain_steps, counters.chain_steps_stored, counters.recycled) == (3, 7, 4, 2)
    assert counters.chain_reward == 600.0
    assert counters.chain_reward_best == max(one.reward for one in chains)
    assert replay.environment_steps == 10 + 7
    assert replay.check_valid() == (True, "")


def test_depths_add_up_over_rounds() -> None:
    """A chain of three from a played state, then one from its last step: as deep as the steps that lead there."""
    replay = just_before_a_round(recycle_candidates=9, recycle_steps=3)
    (first,) = replay.insert(transitions_of(make_rows(50, 1)))
    chains = [chain(100 * i, 1.0 + i, 1.0, 1.0) for i in range(1, 10)]
    replay.answer(first.number, joined(first.candidates.tolist(), chains))
    before = dict(zip(replay.identities.tolist(), replay.depths.tolist(), strict=True))
    assert max(before.values()) == 3
    (second,) = replay.insert(transitions_of(make_rows(60, 2)))
    deep = int(np.argmax(second.depths))
    assert second.depths.tolist() == [before.get(name, 0) for name in second.candidates.tolist()]
    after = chain(5_000, 40.0, 1.0)
    replay.answer(second.number, joined([int(second.candidates[deep])], [after]))
    replay.answer(
        second.number,
        joined(np.delete(second.candidates, deep).tolist(), [chain(6_000 + 10 * i, 1.0) for i in range(8)]),
    )
    assert [depth_of(replay, row) for row in after.rows] == [second.depths[deep], second.depths[deep] + 1]


def test_later_steps_of_a_stale_candidate_are_kept() -> None:
    replay = just_before_a_round(recycle_period=30)
    replay.insert(transitions_of(make_rows(40, 20)))
    (round_,) = replay.insert(transitions_of(make_rows(60, 1)))
    rows = iter(make_rows(600, 400))
    while np.isin(round_.candidates, replay.identities).any():
        replay.insert(transitions_of([next(rows)]))
    t = replay.t
    chains = [chain(1_000 * i, 1.0, 2.0) for i in range(3, 6)]
    replay.answer(round_.number, joined(round_.candidates.tolist(), chains))
    assert replay.t == t + 3
    stored = stored_rows(replay)
    assert chains[2].rows[1] in stored
    assert not any(each.rows[0] in stored for each in chains)
    assert replay.counters.candidates_stale == 3
    assert replay.check_valid() == (True, "")


def test_steps_after_the_last_t_are_dropped_and_counted() -> None:
    replay = just_before_a_round(total_steps=12)
    (round_,) = replay.insert(transitions_of(make_rows(50, 1)))
    chains = [chain(100, 1.0, 1.0), chain(200, 2.0, 1.0, 1.0), chain(300, 3.0, 1.0)]
    assert replay.remaining == 2
    replay.answer(round_.number, joined(round_.candidates.tolist(), chains))
    assert replay.t == 12
    assert replay.is_over
    stored = stored_rows(replay)
    assert [row in stored for row in (chains[0].rows[1], chains[1].rows[1], chains[1].rows[2])] == [True, True, False]
    assert (replay.counters.chain_steps_stored, replay.counters.chain_steps_dropped) == (2, 2)
    assert replay.check_valid() == (True, "")


def test_late_chains_are_counted_with_their_steps_and_those_that_came_twice_without() -> None:
    replay = just_before_a_round()
    (round_,) = replay.insert(transitions_of(make_rows(50, 1)))
    names = round_.candidates.tolist()
    replay.answer(round_.number, joined(names[:1], [chain(100, 1.0, 1.0)]))
    replay.answer(round_.number, joined(names[:1], [chain(200, 1.0, 1.0, 1.0)]))
    replay.expire(round_.number)
    replay.answer(round_.number, joined(names[1:], [chain(300, 1.0), chain(400, 1.0)]))
    assert (replay.counters.answers_late, replay.counters.chain_steps_late) == (3, 2)
    assert (replay.counters.chains, replay.counters.chain_steps, replay.counters.candidates_lost) == (1, 2, 2)


BAD: dict[str, Callable[[Chains], Chains]] = {
    "1 to 4 steps": lambda good: good._replace(lengths=np.array([0, 3, 1])),
    "has 5 steps": lambda good: good._replace(
        lengths=np.array([5, 1, 1]), transitions=transitions_of(make_rows(0, 7)), td_errors=np.ones(7)
    ),
    "there are 4 transitions in chains of 5 steps": lambda good: good._replace(lengths=np.array([2, 2, 1])),
    "there are 2 lengths and 3 rewards for 3 chains": lambda good: good._replace(lengths=np.array([2, 2])),
    "there are 3 lengths and 4 rewards for 3 chains": lambda good: good._replace(rewards=np.zeros(4)),
    "a finite reward": lambda good: good._replace(rewards=np.array([0.0, np.inf, 0.0])),
    "there are 3 TD errors for 4": lambda good: good._replace(td_errors=np.ones(3)),
    "absolute TD error nan": lambda good: good._replace(td_errors=np.array([1.0, np.nan, 1.0, 1.0])),
    "the same number of frames": lambda good: good._replace(
        transitions=replace(good.transitions, s_t=[*good.transitions.s_t[:3], (b"one",)])
    ),
}


@pytest.mark.parametrize(("reason", "spoil"), BAD.items(), ids=BAD.keys())
def test_invalid_chains_are_refused_and_change_nothing(reason: str, spoil: Callable[[Chains], Chains]) -> None:
    replay = just_before_a_round()
    (round_,) = replay.insert(transitions_of(make_rows(50, 1)))
    before = image(replay)
    good = joined(round_.candidates.tolist(), [chain(100, 1.0), chain(200, 1.0, 1.0), chain(300, 1.0)])
    with pytest.raises(ValueError, match=reason):
        replay.answer(round_.number, spoil(good))
    assert image(replay) == before
    replay.answer(round_.number, good)
    assert replay.counters.chain_steps == 4


def set_counter(name: str) -> Callable[[Replay], None]:
    def corrupt(replay: Replay) -> None:
        setattr(replay.counters, name, getattr(replay.counters, name) + 1)

    return corrupt


def forget_depths(replay: Replay) -> None:
    replay._table.slots.depths[:] = 0


def forget_origins(replay: Replay) -> None:
    replay._table.slots.origins[:] = -1


@pytest.mark.parametrize(
    ("corrupt", "reason"),
    [
        (set_counter("chains"), "a chain belongs to no answered candidate"),
        (set_counter("chain_steps"), "a step of a chain was neither stored nor dropped"),
        (set_counter("chain_steps_stored"), "a step of a chain was neither stored nor dropped"),
        (set_counter("chain_steps_dropped"), "a step of a chain was neither stored nor dropped"),
        (set_counter("sampled_recycled"), "more recycled transitions were sampled than all"),
        (forget_depths, "a recycled transition has no depth"),
        (forget_origins, "only a part of the lineage of a transition is recorded"),
    ],
)
def test_check_valid_notices(corrupt: Callable[[Replay], None], reason: str) -> None:
    replay = just_before_a_round()
    (round_,) = replay.insert(transitions_of(make_rows(50, 1)))
    chains = [chain(100, 3.0, 1.0), chain(200, 2.0, 1.0), chain(300, 7.0)]
    replay.answer(round_.number, joined(round_.candidates.tolist(), chains))
    assert replay.check_valid() == (True, "")
    corrupt(replay)
    assert replay.check_valid() == (False, reason)


def test_a_replay_of_an_earlier_version_has_no_lineage() -> None:
    replay = just_before_a_round()
    (round_,) = replay.insert(transitions_of(make_rows(50, 1)))
    replay.answer(round_.number, joined(round_.candidates.tolist(), [chain(100 * i, 3.0 + i) for i in (1, 2, 3)]))
    facts, arrays = replay.save()
    loaded = Replay(replay.config, 100, np.random.default_rng(0))
    loaded.load(facts, {name: array for name, array in arrays.items() if name not in ("recycles", "origins")})
    assert loaded.depths.any()
    assert set(loaded._table.slots.origins) == {-1}
    assert loaded.check_valid() == (True, "")


@pytest.mark.parametrize("share", [0.0, 0.3])
@pytest.mark.parametrize("choice", CHOICES)
@pytest.mark.parametrize("method", ["dpsr", "uniform_rounds"])
def test_long_random_use_agrees_with_the_oracle(
    method: str, choice: str, share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = METHODS["dpsr"]._replace(name="uniform_rounds", sampler="uniform", remover="oldest")
    monkeypatch.setitem(METHODS, "uniform_rounds", parts)
    config = make_config(
        method,
        capacity=65,
        recycle_candidates=6,
        recycle_period=15,
        recycle_share=share,
        recycle_choice=choice,
        recycle_steps=4,
        recycle_failure_steps=3,
    )
    twins = Twins(config, total_steps=900, seed=2, environment_steps=1_000)
    use_at_random(twins, np.random.default_rng(5), operations=60)
    assert twins.fast.counters.chain_steps_stored > 0
    for number in list(twins.fast.rounds):
        twins.expire(number)
    facts, arrays = twins.fast.save()
    loaded = Replay(config, 900, np.random.default_rng(99), environment_steps=1_000)
    loaded.load(facts, arrays)
    assert image(loaded) == image(twins.fast)
    twins.fast = loaded
    use_at_random(twins, np.random.default_rng(6), operations=20)


# How much: a share of the environment steps.


def answer_all(replay: Replay, length: int) -> None:
    for number, round_ in list(replay.rounds.items()):
        chains = [chain(10_000 + 10 * i, *[1.0] * length) for i in range(round_.candidates.size)]
        replay.answer(number, joined(round_.candidates.tolist(), chains))


@pytest.mark.parametrize("length", [1, 4])
@pytest.mark.parametrize("share", [0.1, 0.25, 0.5, 0.9])
def test_recycling_uses_at_most_its_share_and_nearly_all_of_it(share: float, length: int) -> None:
    replay = just_before_a_round(total_steps=10_000, recycle_share=share)
    round_steps, opened_at = 3 * 4, []
    for number in range(600):
        opened = replay.insert(transitions_of(make_rows(100 + number, 1)))
        opened_at += [replay.t - replay.counters.chain_steps_stored] * len(opened)
        answer_all(replay, length)
        steps = replay.environment_steps - 9
        assert replay.counters.chain_steps <= share * steps
        assert replay.counters.chain_steps + round_steps > share * (steps - replay.counters.chain_steps)
    apart = np.diff(opened_at)
    assert apart.max() - apart.min() <= 1, "rounds come in bursts"


def test_a_round_waits_until_it_is_affordable_and_lost_rounds_never_come_in_bursts() -> None:
    replay = just_before_a_round(total_steps=10_000, recycle_share=0.5)
    opened = replay.insert(transitions_of(make_rows(100, 200)))
    assert [round_.waiting.births[0] - 9 for round_ in opened] == list(range(12, 201, 12))
    for round_ in opened:
        replay.expire(round_.number)
    more = replay.insert(transitions_of(make_rows(400, 40)))
    assert [round_.waiting.births[0] - 9 for round_ in more] == [204, 216, 228, 240]


def test_a_run_ends_exactly_at_its_environment_steps() -> None:
    config = make_config(capacity=9, recycle_candidates=3, recycle_period=10, recycle_steps=4)
    replay = Replay(config, 1_000, np.random.default_rng(0), environment_steps=100)
    for number in range(1_000):
        if not replay.remaining:
            break
        count = min(7, replay.remaining)
        replay.insert(transitions_of(make_rows(10 * number, count)))
        assert replay.environment_steps <= 100
        assert not replay.is_over or not replay.rounds
        answer_all(replay, 2)
    assert replay.is_over
    assert replay.environment_steps == 100
    assert replay.t == 100 - replay.counters.chains


def test_steps_of_open_rounds_are_reserved() -> None:
    config = make_config(capacity=9, recycle_candidates=3, recycle_period=10, recycle_steps=4)
    replay = Replay(config, 1_000, np.random.default_rng(0), environment_steps=25)
    (round_,) = replay.insert(transitions_of(make_rows(0, 10)))
    assert replay.remaining == 25 - 10 - 12
    replay.insert(transitions_of(make_rows(20, 3)))
    assert (replay.remaining, replay.is_over, replay.is_reserving) == (0, False, True)
    replay.expire(round_.number)
    assert (replay.remaining, replay.is_over, replay.is_reserving) == (12, False, False)


# Where: the choice of states.


def chosen(replay: Replay, rounds: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """How often each slot is a candidate, in this number of rounds that change nothing."""
    counts = np.zeros(replay.config.capacity, dtype=np.int64)
    for _ in range(rounds):
        counts[replay._recycler.candidates(replay._rng)] += 1
    return counts


def test_high_choice_follows_the_priorities() -> None:
    replay = just_before_a_round(recycle_choice="high", recycle_candidates=1)
    counts = chosen(replay, 3_000)
    expected = np.arange(1.0, 10.0) / 45 * 3_000
    assert (((counts - expected) ** 2 / expected).sum()) < 26.1  # chi-square, 8 degrees of freedom, p = 0.001


def test_novel_choice_samples_states_by_the_inverse_of_their_visits() -> None:
    config = make_config(capacity=8, recycle_candidates=1, recycle_choice="novel")
    replay = Replay(config, 1_000, np.random.default_rng(1))
    rows = [(*row[:7], key, *row[8:]) for row, key in zip(make_rows(0, 8), (1, 1, 1, 1, 2, 2, 3, 4), strict=True)]
    replay.insert(transitions_of(rows))
    counts = chosen(replay, 4_000)
    expected = np.array([1, 1, 1, 1, 4, 4, 16, 16]) / 44 * 4_000  # of states: 4, 8, 16, 16
    assert (((counts - expected) ** 2 / expected).sum()) < 24.3  # chi-square, 7 degrees of freedom, p = 0.001


def test_entering_a_state_again_is_a_visit() -> None:
    replay = just_before_a_round(recycle_choice="novel")
    (round_,) = replay.insert(transitions_of(make_rows(50, 1)))
    before = replay._recycler.arrays["visits"].copy()
    chains = [chain(11 * (10 + i) + i, 1.0, 1.0) for i in range(3)]  # keys i and i + 1
    replay.answer(round_.number, joined(round_.candidates.tolist(), chains))
    assert (replay._recycler.arrays["visits"] - before)[:5].tolist() == [1, 2, 2, 1, 0]


def test_failure_choice_is_the_last_steps_before_stored_terminals() -> None:
    config = make_config(capacity=21, recycle_candidates=21, recycle_choice="failure", recycle_failure_steps=2)
    replay = Replay(config, 1_000, np.random.default_rng(1))
    rows = [(*row[:5], 1, *row[6:]) for row in make_rows(1, 21)]  # three episodes of seven steps
    rows[13] = (*rows[13][:4], False, *rows[13][5:])  # the second is truncated
    replay.insert(transitions_of(rows))
    chosen_rows = rows_of(replay.read(replay.identities[replay._recycler.candidates(replay._rng)]))
    assert sorted(row[2] for row in chosen_rows) == [6.0, 7.0, 20.0, 21.0]


def test_failure_choice_knows_the_end_from_any_of_its_n_step_transitions() -> None:
    config = make_config(capacity=4, recycle_candidates=4, recycle_choice="failure", recycle_failure_steps=3)
    replay = Replay(config, 1_000, np.random.default_rng(1))
    base = make_rows(0, 4)
    steps, n_steps, terminals = (2, 5, 6, 8), (3, 3, 3, 1), (False, False, True, False)  # the last step is 8
    rows: list[Row] = [
        (*row[:4], terminal, n, row[6], 0, 77, step, 0)
        for row, terminal, n, step in zip(base, terminals, n_steps, steps, strict=True)
    ]
    replay.insert(transitions_of(rows))
    assert sorted(replay._recycler.candidates(replay._rng).tolist()) == [2, 3]


def test_without_a_terminal_failure_choice_is_that_of_the_paper() -> None:
    config = make_config(capacity=6, recycle_candidates=3, recycle_choice="failure")
    paper = make_config(capacity=6, recycle_candidates=3)
    first, second = (Replay(each, 1_000, np.random.default_rng(1)) for each in (config, paper))
    for replay in (first, second):
        replay.insert(transitions_of(make_rows(1, 6)))
    assert first._recycler.candidates(first._rng).tolist() == second._recycler.candidates(second._rng).tolist()
