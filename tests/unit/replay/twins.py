"""A `Replay` and its oracle, led through the same operations and compared after each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from dpsr_apex.config import ReplayConfig
from dpsr_apex.replay.records import SLOT_COLUMNS, Chains, Floats, Integers
from dpsr_apex.replay.replay import Replay
from dpsr_apex.replay.samplers import Rank
from dpsr_apex.replay.transitions import Transitions
from dpsr_apex.schedules import Schedule, constant
from tests.unit.replay.naive import NaiveChain, NaiveReplay, Row, rows_of, transitions_of

CAPACITIES = (1, 2, 7, 8, 9, 64, 65, 513)  # around the powers of the trees' fanout


def make_config(
    method: str = "dpsr",
    capacity: int = 8,
    replace_candidates: int = 4,
    recycle_candidates: int = 3,
    recycle_period: int = 5,
    alpha: float | Schedule = 0.6,
    gamma: float | Schedule = 0.4,
    **others: Any,
) -> ReplayConfig:
    """A small replay's config; numbers stand for constant schedules."""
    return ReplayConfig(
        method=method,
        capacity=capacity,
        replace_candidates=replace_candidates,
        recycle_candidates=recycle_candidates,
        recycle_period=recycle_period,
        sampling_exponent=alpha if isinstance(alpha, Schedule) else constant(alpha),
        replacing_exponent=gamma if isinstance(gamma, Schedule) else constant(gamma),
        **others,
    )


def make_rows(start: int, count: int, frame_bytes: int = 0) -> list[Row]:
    """Transitions number `start` and on, all different; s_t of one is s_tm1 of the next. Episodes have seven steps.

    With `frame_bytes`, each state is one frame of this size instead of two of any size.
    """
    frames = [f"frame {i}".encode().ljust(frame_bytes, b".") for i in range(start, start + count + 2)]
    states = [(frame,) for frame in frames] if frame_bytes else list(pairwise(frames))
    return [
        (
            states[i],
            (start + i) % 5,
            float(start + i),
            states[i + 1],
            (start + i) % 7 == 0,
            1 + (start + i) % 3,
            f"snapshot {start + i}".encode(),
            (start + i) % 11,
            2**60 + (start + i + 6) // 7,
            (start + i + 6) % 7,
            2**64 - 1 - start - i,
        )
        for i in range(count)
    ]


def stored_rows(replay: Replay) -> list[Row]:
    """What is in every slot, empty ones included."""
    return rows_of(replay._table.store.read(np.arange(replay.config.capacity)))


def image(replay: Replay) -> dict[str, Any]:
    """Everything that a replay holds, bit by bit, to be compared with another moment's."""
    ranking = replay._table.sampler.ranking if isinstance(replay._table.sampler, Rank) else None
    return {
        "t": replay.t,
        "size": replay.size,
        "serial": replay._table.next_serial,
        "slots": {column.name: getattr(replay._table.slots, column.name).tobytes() for column in SLOT_COLUMNS},
        "rows": stored_rows(replay),
        "leaves": replay._table.trees.arrays.leaves.tobytes(),
        "nodes": replay._table.trees.arrays.nodes.tobytes(),
        "exponents": (replay._table.trees.alpha, replay._table.trees.gamma),
        "ranking": ranking and (ranking.size, ranking.order[: ranking.size].tobytes(), ranking.alpha),
        "counters": asdict(replay.counters),
        "recycler": {name: array.tobytes() for name, array in replay._recycler.arrays.items()},
        "rounds": {
            number: (round_.candidates.tolist(), rows_of(round_.stored), sorted(round_.answers))
            for number, round_ in replay.rounds.items()
        },
        "generator": replay._rng.bit_generator.state,
    }


def joined(identities: Sequence[int], chains: Sequence[NaiveChain]) -> Chains:
    """The chains as the replay takes them."""
    return Chains(
        np.array(identities, dtype=np.int64),
        np.array([len(chain.rows) for chain in chains], dtype=np.int64),
        np.array([chain.reward for chain in chains], dtype=np.float64),
        transitions_of([row for chain in chains for row in chain.rows]),
        np.array([td_error for chain in chains for td_error in chain.td_errors], dtype=np.float64),
    )


def single_steps(identities: Integers, transitions: Transitions, td_errors: Floats) -> Chains:
    """Answer each candidate with one transition."""
    count = identities.size
    return Chains(identities, np.ones(count, dtype=np.int64), np.zeros(count), transitions, td_errors)


class Twins:
    """Both replays, fed alike; each operation ends with a comparison of everything."""

    def __init__(
        self,
        config: ReplayConfig,
        total_steps: int = 1_000,
        seed: int = 0,
        environment_steps: int | None = None,
        frame_bytes: int = 0,
    ) -> None:
        self.fast = Replay(config, total_steps, np.random.default_rng(seed), environment_steps, frame_bytes)
        self.naive = NaiveReplay(config, total_steps, np.random.default_rng(seed), environment_steps)
        self.frame_bytes = frame_bytes
        self.rows_made = 0
        self.names: list[int] = []  # every identity seen so far, stored or not

    def new_rows(self, count: int) -> list[Row]:
        """Rows that were never seen before."""
        self.rows_made += count
        return make_rows(self.rows_made - count, count, self.frame_bytes)

    def insert(self, count: int, td_errors: Sequence[float] | None = None) -> list[int]:
        rows = self.new_rows(count)
        opened = self.fast.insert(transitions_of(rows), None if td_errors is None else np.array(td_errors))
        assert [round_.number for round_ in opened] == self.naive.insert(rows, td_errors)
        for round_ in opened:
            assert self.fast.rounds[round_.number] is round_
        self.compare()
        self.names += sorted(set(self.naive.identities) - {-1} - set(self.names))
        return [round_.number for round_ in opened]

    def sample(self, batch_size: int) -> None:
        sample = self.fast.sample(batch_size)
        identities, weights, rows = self.naive.sample(batch_size)
        assert sample.identities.tolist() == identities
        assert rows_of(sample.transitions) == rows
        np.testing.assert_allclose(sample.weights, weights, rtol=1e-6)
        assert sample.weights.dtype == np.float32
        self.compare()

    def update(self, identities: Sequence[int], td_errors: Sequence[float]) -> None:
        self.fast.update_priorities(np.array(identities, dtype=np.int64), np.array(td_errors, dtype=np.float64))
        self.naive.update(identities, td_errors)
        self.compare()

    def answer(self, number: int, identities: Sequence[int], td_errors: Sequence[Sequence[float] | float]) -> None:
        """Answer each candidate with a chain: a |TD error| for each step, or one number for a single step."""
        chains = []
        for errors in ([one] if isinstance(one, float) else list(one) for one in td_errors):
            rows = self.new_rows(len(errors))
            chains.append(NaiveChain(rows, errors, sum(row[2] for row in rows)))
        self.fast.answer(number, joined(identities, chains))
        self.naive.answer(number, identities, chains)
        self.compare()

    def evict(self, identities: Sequence[int]) -> None:
        evicted = self.fast.evict(np.array(identities, dtype=np.int64))
        expected = self.naive.evict(identities)
        assert evicted.slots.identities.tolist() == [name for name, _ in expected]
        assert rows_of(evicted.transitions) == [row for _, row in expected]
        self.compare()

    def expire(self, number: int) -> None:
        self.fast.expire(number)
        self.naive.expire(number)
        self.compare()

    def compare(self) -> None:
        """Both hold the same, to the bit (weights, compared in `sample`, to rounding), and every invariant holds."""
        fast, naive = self.fast, self.naive
        assert fast.check_valid() == (True, "")
        assert fast.t == naive.t
        filled = naive.filled
        assert fast.size == len(filled)
        assert fast.identities.tolist() == [naive.identities[slot] for slot in filled]
        assert fast.births.tolist() == [naive.births[slot] for slot in filled]
        assert fast.priorities.tolist() == [naive.priorities[slot] for slot in filled]
        assert rows_of(fast.read(fast.identities)) == [naive.rows[slot] for slot in filled]
        assert asdict(fast.counters) == pytest.approx(asdict(naive.counters), rel=1e-12)  # sums, in any order
        np.testing.assert_array_equal(fast.gains, np.array(naive.gains, dtype=np.float32)[filled])
        for name in ("depths", "recycles", "origins"):
            column = getattr(naive, name)
            assert getattr(fast._table.slots, name)[filled].tolist() == [column[slot] for slot in filled], name
        assert fast._rng.bit_generator.state == naive.rng.bit_generator.state
        assert list(fast.rounds) == list(naive.rounds)
        for number, round_ in fast.rounds.items():
            expected = naive.rounds[number]
            assert round_.candidates.tolist() == expected.candidates
            assert rows_of(round_.stored) == expected.stored
            assert rows_of(round_.waiting.transitions) == [expected.waiting.row]
            assert (round_.depths.tolist(), round_.recycles.tolist()) == (expected.depths, expected.recycles)
            answers = {
                name: NaiveChain(rows_of(rows), td_errors.tolist(), reward)
                for name, (rows, td_errors, reward) in round_.answers.items()
            }
            assert answers == expected.answers
