"""`Replay` against its oracle over long sequences of everything that can happen to it, and what it refuses."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from copy import deepcopy
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from dpsr_apex.methods import METHODS
from dpsr_apex.replay.recyclers import CHOICES, RECYCLERS
from dpsr_apex.replay.removers import REMOVERS
from dpsr_apex.replay.replay import Replay
from dpsr_apex.replay.samplers import SAMPLERS
from dpsr_apex.replay.slots import BadPriority
from dpsr_apex.replay.transitions import Stack
from dpsr_apex.schedules import Schedule
from tests.unit.replay.naive import rows_of, transitions_of
from tests.unit.replay.twins import CAPACITIES, Twins, image, make_config, make_rows, single_steps

BAD_TD_ERRORS = (float("nan"), float("inf"), -float("inf"), -1e-9, 1.1e50)

td_error_values = st.sampled_from((0.0, 0.25, 0.25, 0.5, 1.0, 3.0, 17.0)) | st.floats(0.0, 100.0)


class ReplayMachine(RuleBasedStateMachine):
    """Whatever hypothesis thinks of: inserts, batches, updates, answers and ends of rounds, in any order."""

    @initialize(
        method=st.sampled_from((*METHODS, "dpsr", "dpsr")),
        capacity=st.sampled_from(CAPACITIES[:-1]),
        replace_candidates=st.integers(1, 9),
        recycle_candidates=st.integers(2, 9),
        recycle_period=st.integers(1, 12),
        recycle_share=st.sampled_from((0.0, 0.0, 0.1, 0.25, 0.9)),
        recycle_choice=st.sampled_from(("low", *CHOICES)),
        recycle_steps=st.sampled_from((1, 1, 2, 5)),
        recycle_failure_steps=st.integers(1, 8),
        initial_priority=st.sampled_from(("max", "td_error")),
        environment_steps=st.none() | st.integers(20, 300),
        at_max=st.booleans(),
        alpha_end=st.sampled_from((0.6, 1.5)),
        gamma_end=st.sampled_from((0.3, 0.9)),
        tolerance=st.sampled_from((0.0, 0.1)),
        frame_bytes=st.sampled_from((0, 13)),
        seed=st.integers(0, 2**32 - 1),
    )
    def start(
        self,
        method: str,
        capacity: int,
        replace_candidates: int,
        recycle_candidates: int,
        recycle_period: int,
        recycle_share: float,
        recycle_choice: str,
        recycle_steps: int,
        recycle_failure_steps: int,
        initial_priority: str,
        environment_steps: int | None,
        at_max: bool,
        alpha_end: float,
        gamma_end: float,
        tolerance: float,
        frame_bytes: int,
        seed: int,
    ) -> None:
        config = make_config(
            method,
            capacity,
            replace_candidates,
            recycle_candidates,
            recycle_period,
            Schedule(0.6, alpha_end, 0.5),
            Schedule(0.3, gamma_end),
            recycle_share=recycle_share,
            recycle_choice=recycle_choice,
            recycle_steps=recycle_steps,
            recycle_failure_steps=recycle_failure_steps,
            initial_priority=initial_priority,
            recycle_at_max_priority=at_max,
            exponent_tolerance=tolerance,
        )
        self.twins = Twins(config, 300, seed, environment_steps, frame_bytes)
        self.ended: list[tuple[int, int]] = []  # (round, one of its candidates) that are over

    @rule(count=st.integers(0, 30))
    def insert_at_greatest_priority(self, count: int) -> None:
        self.twins.insert(count)

    @rule(td_errors=st.lists(td_error_values, min_size=1, max_size=30))
    def insert_by_td_error(self, td_errors: list[float]) -> None:
        self.twins.insert(len(td_errors), td_errors)

    @precondition(lambda self: self.twins.fast.size > 0)
    @rule(batch_size=st.integers(1, 40))
    def sample(self, batch_size: int) -> None:
        self.twins.sample(batch_size)

    @precondition(lambda self: self.twins.names)
    @rule(data=st.data())
    def update(self, data: st.DataObject) -> None:
        names = st.sampled_from(self.twins.names[-80:]) | st.sampled_from((-1, 10**15))
        updates = data.draw(st.lists(st.tuples(names, td_error_values), max_size=12))
        self.twins.update([name for name, _ in updates], [td_error for _, td_error in updates])

    @precondition(lambda self: self.twins.names)
    @rule(data=st.data())
    def evict(self, data: st.DataObject) -> None:
        names = st.sampled_from(self.twins.names[-80:]) | st.sampled_from((-1, 10**15))
        self.twins.evict(data.draw(st.lists(names, max_size=12)))

    @precondition(lambda self: self.twins.fast.size > 0)
    @rule()
    def evict_all(self) -> None:
        self.twins.evict(self.twins.naive.identities)

    @precondition(lambda self: self.twins.fast.rounds)
    @rule(data=st.data(), is_whole=st.booleans())
    def answer(self, data: st.DataObject, is_whole: bool) -> None:
        number = data.draw(st.sampled_from(sorted(self.twins.fast.rounds)))
        candidates = self.twins.naive.rounds[number].candidates
        some = st.lists(st.sampled_from(candidates), min_size=1, max_size=len(candidates) + 2)
        names = data.draw(st.permutations(candidates) if is_whole else some)
        steps = self.twins.fast.config.recycle_steps
        chains = st.lists(td_error_values, min_size=1, max_size=steps)
        td_errors = data.draw(st.lists(chains, min_size=len(names), max_size=len(names)))
        self.ended.append((number, candidates[0]))
        self.twins.answer(number, names, td_errors)

    @precondition(lambda self: self.twins.fast.rounds)
    @rule(data=st.data())
    def expire(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(self.twins.fast.rounds)))
        self.ended.append((number, self.twins.naive.rounds[number].candidates[0]))
        self.twins.expire(number)

    @precondition(lambda self: self.ended)
    @rule(data=st.data(), td_error=td_error_values)
    def answer_again(self, data: st.DataObject, td_error: float) -> None:
        number, name = data.draw(st.sampled_from(self.ended))
        self.twins.answer(number, [name], [td_error])


TestReplayMachine = ReplayMachine.TestCase
TestReplayMachine.settings = settings(
    max_examples=40,
    stateful_step_count=30,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)


def use_at_random(twins: Twins, rng: np.random.Generator, operations: int) -> None:
    """Random operations: chunks mostly small, at times above the capacity; rounds answered, late, or left to expire."""
    capacity = twins.fast.config.capacity
    evicting = np.random.default_rng(operations)
    past: list[tuple[int, list[int]]] = []
    for _ in range(operations):
        if evicting.random() < 0.15 and twins.names:
            twins.evict([int(evicting.choice(twins.names[-capacity:]))])
        choice = rng.integers(10)
        if choice < 3 or not twins.names:
            count = int(rng.choice([1, 3, capacity // 3 + 1, capacity + 5], p=[0.3, 0.4, 0.2, 0.1]))
            td_errors = np.exp(rng.normal(0, 2, count)).tolist() if rng.random() < 0.5 else None
            past += [(number, twins.naive.rounds[number].candidates) for number in twins.insert(count, td_errors)]
        elif choice == 3 and twins.fast.size:
            twins.sample(int(rng.integers(1, 65)))
        elif choice == 4:
            names = rng.choice(twins.names[-3 * capacity :], 20).tolist()
            twins.update(names, np.exp(rng.normal(0, 2, 20)).tolist())
        elif choice < 9 and past:
            number, candidates = past[int(rng.integers(max(0, len(past) - 3), len(past)))]
            some = rng.choice(candidates, rng.integers(1, len(candidates) + 1)).tolist()
            names = some if rng.random() < 0.5 else rng.permutation(candidates).tolist()
            lengths = rng.integers(1, twins.fast.config.recycle_steps, len(names), endpoint=True)
            twins.answer(number, names, [np.exp(rng.normal(0, 2, length)).tolist() for length in lengths])
        elif twins.fast.rounds:
            twins.expire(int(rng.choice(list(twins.fast.rounds))))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("capacity", CAPACITIES)
def test_long_random_use_agrees_with_the_oracle(method: str, capacity: int) -> None:
    config = make_config(
        method,
        capacity,
        replace_candidates=min(capacity, 16),
        recycle_candidates=6,
        recycle_period=max(2, capacity // 3),
        alpha=Schedule(0.2, 1.2),
        gamma=Schedule(0.9, 0.1, 0.7),
        recycle_at_max_priority=capacity % 2 == 0,
    )
    frame_bytes = 13 if capacity % 2 else 0  # states in records, or references to frames
    twins = Twins(config, total_steps=20 * capacity, seed=capacity, frame_bytes=frame_bytes)
    use_at_random(twins, np.random.default_rng(capacity), operations=100)
    assert twins.fast.t > 2 * capacity
    if method == "dpsr":
        assert twins.fast.counters.rounds_closed > 0
        assert twins.fast.counters.rounds_expired > 0
        assert twins.fast.counters.recycled > 0 or capacity == 1


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("remover", REMOVERS)
@pytest.mark.parametrize("recycler", RECYCLERS)
@pytest.mark.parametrize("capacity", [9, 65])
def test_any_sampler_works_with_any_remover_and_recycler(
    sampler: str, remover: str, recycler: str, capacity: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    composed = METHODS["dpsr"]._replace(name="composed", sampler=sampler, remover=remover, recycler=recycler)
    monkeypatch.setitem(METHODS, "composed", composed)
    config = make_config("composed", capacity, alpha=Schedule(0.2, 1.2), gamma=Schedule(0.9, 0.1))
    twins = Twins(config, total_steps=1_000, seed=capacity)
    use_at_random(twins, np.random.default_rng(capacity), operations=120)
    assert twins.fast.counters.replaced > capacity
    assert (twins.fast.counters.recycled > 0) is (recycler != "none")


def test_a_chunk_is_the_same_as_its_transitions_one_by_one() -> None:
    config = make_config(capacity=20, recycle_period=9)
    whole, single = (Replay(config, 1_000, np.random.default_rng(5)) for _ in range(2))
    rows = make_rows(0, 100)
    whole.insert(transitions_of(rows))
    for row in rows:
        single.insert(transitions_of([row]))
    assert image(whole) == image(single)


def test_new_transitions_enter_with_the_greatest_priority_and_the_first_with_one() -> None:
    twins = Twins(make_config("per", capacity=4, priority_floor=0.5))
    twins.insert(2)
    assert twins.fast.priorities.tolist() == [1.0, 1.0]
    twins.update([0], [6.5])
    twins.insert(1)
    assert twins.fast.priorities.tolist() == [7.0, 1.0, 7.0]


def test_read_names_what_is_not_stored() -> None:
    replay = Replay(make_config("per", capacity=4), 100, np.random.default_rng(0))
    replay.insert(transitions_of(make_rows(0, 2)))
    for stranger in (-1, 2, 3, 4 * 7):
        with pytest.raises(KeyError, match=f"transition {stranger} is not in the replay"):
            replay.read(np.array([0, stranger]))


@pytest.mark.parametrize("method", METHODS)
def test_an_evicted_transition_is_never_sampled_again_and_its_slot_is_filled_later(method: str) -> None:
    twins = Twins(make_config(method, capacity=9, recycle_period=1_000))
    twins.insert(9, [1.0] * 8 + [1e6])
    worst = int(twins.fast.identities[8])
    twins.evict([worst, worst, 8 - 9, worst + 9 * 5])
    assert (twins.fast.size, twins.fast.counters.quarantined) == (8, 1)
    with pytest.raises(KeyError, match=f"transition {worst} is not in the replay"):
        twins.fast.read(np.array([worst]))
    sampled = np.concatenate([twins.fast.sample(32).identities for _ in range(20)])
    assert set(sampled) == set(twins.fast.identities)
    twins.fast.update_priorities(np.array([worst]), np.array([5.0]))
    assert (twins.fast.size, twins.fast.counters.priorities_stale) == (8, 1)
    twins.fast.insert(transitions_of(make_rows(50, 9)))
    assert twins.fast.size == 9
    assert worst not in twins.fast.identities
    assert twins.fast.check_valid() == (True, "")


@pytest.mark.parametrize("method", METHODS)
def test_a_replay_with_emptied_slots_is_saved_and_continues_bit_identically(method: str) -> None:
    replay = Replay(make_config(method, capacity=9), 100, np.random.default_rng(0))
    replay.insert(transitions_of(make_rows(0, 9)))
    replay.evict(replay.identities[[0, 4, 8]])
    loaded = Replay(replay.config, 100, np.random.default_rng(1))
    loaded.load(*replay.save())
    assert image(loaded) == image(replay)
    for other in (replay, loaded):
        other.insert(transitions_of(make_rows(9, 7)))
    assert image(loaded) == image(replay)


def test_an_empty_replay_cannot_be_sampled() -> None:
    with pytest.raises(ValueError, match="an empty replay"):
        Replay(make_config(), 100, np.random.default_rng(0)).sample(3)


def with_an_open_round(method: str = "dpsr") -> Replay:
    replay = Replay(make_config(method, capacity=9, recycle_period=10), 100, np.random.default_rng(0))
    replay.insert(transitions_of(make_rows(0, 10)))
    return replay


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("bad", BAD_TD_ERRORS)
def test_an_impossible_td_error_is_named_and_changes_nothing(method: str, bad: float) -> None:
    replay = with_an_open_round(method)
    before = image(replay)
    names = replay.identities[2:5]
    with pytest.raises(BadPriority, match=f"^transition {names[1]} has the absolute TD error {re.escape(str(bad))}"):
        replay.update_priorities(names, np.array([1.0, bad, 2.0]))
    with pytest.raises(BadPriority, match=f"^inserted transition 2 has the absolute TD error {re.escape(str(bad))}"):
        replay.insert(transitions_of(make_rows(20, 3)), np.array([1.0, 2.0, bad]))
    assert image(replay) == before


@pytest.mark.parametrize("bad", BAD_TD_ERRORS)
def test_an_impossible_answer_is_named_and_changes_nothing(bad: float) -> None:
    replay = with_an_open_round()
    (round_,) = replay.rounds.values()
    before = image(replay)
    name = round_.candidates[2]
    with pytest.raises(
        BadPriority, match=f"^recycled transition {name} has the absolute TD error {re.escape(str(bad))}"
    ):
        replay.answer(0, single_steps(round_.candidates, transitions_of(make_rows(20, 3)), np.array([1.0, 2.0, bad])))
    assert image(replay) == before


def test_the_greatest_td_error_is_taken() -> None:
    twins = Twins(make_config("per", capacity=3))
    twins.insert(3, [1e50, 0.0, 1.0])
    twins.sample(4)


def test_a_stranger_in_an_answer_is_named_and_changes_nothing() -> None:
    replay = with_an_open_round()
    (round_,) = replay.rounds.values()
    stranger = next(name for name in replay.identities if name not in round_.candidates)
    before = image(replay)
    names = np.array([round_.candidates[0], stranger])
    with pytest.raises(ValueError, match=f"transition {stranger} is not a candidate of round 0"):
        replay.answer(0, single_steps(names, transitions_of(make_rows(20, 2)), np.ones(2)))
    assert image(replay) == before


def answer_with(replay: Replay, rows: int, td_errors: int) -> None:
    """Answer all candidates of round 0 with this number of transitions and TD errors."""
    recycled = transitions_of(make_rows(20, rows))
    replay.answer(0, single_steps(replay.rounds[0].candidates, recycled, np.ones(td_errors)))


@pytest.mark.parametrize(
    "call",
    [
        lambda replay: replay.insert(transitions_of(make_rows(20, 3)), np.ones(2)),
        lambda replay: replay.update_priorities(replay.identities[:3], np.ones(2)),
        lambda replay: answer_with(replay, 3, 2),
        lambda replay: answer_with(replay, 2, 3),
    ],
)
def test_columns_of_different_lengths_are_refused_and_change_nothing(call: Callable[[Replay], Any]) -> None:
    replay = with_an_open_round()
    before = image(replay)
    with pytest.raises(ValueError, match=r"there are (2 .* 3|3 .* 2) "):
        call(replay)
    assert image(replay) == before


@pytest.mark.parametrize("stack", [(), (b"one",), (b"one", b"two", b"three")])
@pytest.mark.parametrize("column", ["s_tm1", "s_t"])
def test_a_state_of_another_depth_is_refused_and_changes_nothing(column: str, stack: Stack) -> None:
    replay = with_an_open_round()
    before = image(replay)
    rows = transitions_of(make_rows(20, 3))
    getattr(rows, column)[1] = stack
    with pytest.raises(ValueError, match="the same number of frames, 2"):
        replay.insert(rows)
    with pytest.raises(ValueError, match="the same number of frames, 2"):
        replay.answer(0, single_steps(replay.rounds[0].candidates[:3], rows, np.ones(3)))
    assert image(replay) == before


def test_a_round_that_is_over_cannot_expire_and_nothing_changes() -> None:
    replay = with_an_open_round()
    replay.expire(0)
    before = image(replay)
    with pytest.raises(KeyError):
        replay.expire(0)
    assert image(replay) == before


def used_at_random(method: str, seed: int, frame_bytes: int = 0) -> Twins:
    config = make_config(method, capacity=65, replace_candidates=8, alpha=Schedule(0.2, 1.2), gamma=Schedule(0.9, 0.1))
    twins = Twins(config, total_steps=2_000, seed=seed, frame_bytes=frame_bytes)
    use_at_random(twins, np.random.default_rng(seed), operations=40)
    return twins


def digest(replay: Replay) -> str:
    found = hashlib.sha256()
    replay.feed(found.update)
    return found.hexdigest()


def reloaded(replay: Replay) -> Replay:
    facts, arrays = replay.save()
    loaded = Replay(replay.config, 2_000, np.random.default_rng(99), frame_bytes=replay._table.store.frame_bytes)
    loaded.load(json.loads(json.dumps(facts)), arrays)
    return loaded


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("frame_bytes", [0, 13])
@pytest.mark.parametrize("another", [reloaded, deepcopy])
def test_a_loaded_or_copied_replay_continues_bit_identically(
    another: Callable[[Replay], Replay], method: str, frame_bytes: int
) -> None:
    twins = used_at_random(method, 3, frame_bytes)
    loaded = another(twins.fast)
    assert image(loaded) == image(twins.fast)
    assert digest(loaded) == digest(twins.fast)
    twins.fast = loaded
    twins.compare()
    use_at_random(twins, np.random.default_rng(4), operations=40)


def test_states_in_records_and_states_by_reference_are_the_same_replay() -> None:
    config = make_config("dpsr", capacity=65, recycle_period=0)
    apart, inside = (Replay(config, 500, np.random.default_rng(2), frame_bytes=size) for size in (0, 13))
    rows = make_rows(0, 150, frame_bytes=13)
    for start, stop in pairwise((0, 1, 40, 41, 120, 150)):
        for replay in (apart, inside):
            replay.insert(transitions_of(rows[start:stop]))
        assert digest(apart) == digest(inside)
    first, second = apart.sample(40), inside.sample(40)
    assert rows_of(first.transitions) == rows_of(second.transitions)
    loaded = Replay(config, 500, np.random.default_rng(3), frame_bytes=13)
    loaded.load(*apart.save())
    assert digest(loaded) == digest(inside)


@pytest.mark.parametrize("state", [(b"x" * 12,), (b"x" * 13, b"x" * 13), ()])
@pytest.mark.parametrize("place", [0, 3])
def test_a_state_that_does_not_fit_into_a_record_is_refused(state: Stack, place: int) -> None:
    replay = Replay(make_config("per", capacity=9), 100, np.random.default_rng(0), frame_bytes=13)
    rows = make_rows(0, 4, frame_bytes=13)
    replay.insert(transitions_of(rows[:2]))
    before = image(replay)
    bad = list(rows[3])
    bad[place] = state
    with pytest.raises(ValueError, match="every state must be one frame of 13 bytes"):
        replay.insert(transitions_of([rows[2], tuple(bad)]))  # type: ignore[list-item]  # a row
    assert image(replay) == before


def with_answered_rounds() -> Twins:
    """Several rounds are open, and some candidates of one of them are answered."""
    for seed in range(50):
        twins = used_at_random("dpsr", seed)
        answered = [bool(round_.answers) for round_ in twins.fast.rounds.values()]
        if len(answered) > 1 and any(answered):
            return twins
    raise AssertionError("no such rounds")


def forget_answers(replay: Replay) -> None:
    for round_ in replay.rounds.values():
        round_.answers.clear()


def test_open_rounds_are_saved_with_their_results() -> None:
    twins = with_answered_rounds()
    twins.fast = reloaded(twins.fast)
    twins.compare()
    for number in list(twins.fast.rounds):
        twins.expire(number)


def test_the_digest_notices_every_difference() -> None:
    replay = with_answered_rounds().fast
    before = digest(replay)
    differences: dict[str, Callable[[Replay], object]] = {
        "a draw": lambda other: other.sample(1),
        "a priority": lambda other: other.update_priorities(other.identities[:1], np.array([77.0])),
        "a round": lambda other: other.rounds.popitem(),
        "an answer": forget_answers,
        "a byte of a frame": lambda other: other._table.store["s_t"].__setitem__(3, (b"other", b"frame")),
        "where a frame ends": lambda other: other._table.store["s_t"].__setitem__(
            3, tuple(b"".join(other._table.store["s_t"][3])[part] for part in (slice(0, 3), slice(3, None)))
        ),
        "a leaf": lambda other: other._table.trees.arrays.leaves.__setitem__((0, 0), 1.25),
        "a counter": lambda other: setattr(other.counters, "answers_late", -1),
    }
    for name, change in differences.items():
        other = reloaded(replay)
        assert digest(other) == before
        change(other)
        assert digest(other) != before, name


def test_a_used_replay_cannot_be_loaded_into() -> None:
    used = with_an_open_round()
    before = image(used)
    with pytest.raises(ValueError, match="a state can be loaded only into a new replay, but this one has 10"):
        used.load(*Replay(make_config(), 100, np.random.default_rng(0)).save())
    assert image(used) == before


def test_an_empty_replay_can_be_saved_and_loaded() -> None:
    replay = Replay(make_config(), 100, np.random.default_rng(0))
    loaded = Replay(make_config(), 100, np.random.default_rng(1))
    loaded.load(*replay.save())
    assert image(loaded) == image(replay)
