"""Recyclers: when rounds open, and that a replay follows any recycler, whatever its sampler and remover."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from dpsr_apex.config import ReplayConfig
from dpsr_apex.methods import METHODS
from dpsr_apex.replay.recyclers import NEVER, RECYCLERS, NoRecycling, Progress, Rounds
from dpsr_apex.replay.removers import REMOVERS
from dpsr_apex.replay.replay import Replay
from dpsr_apex.replay.samplers import SAMPLERS
from dpsr_apex.replay.slots import SlotIndex
from dpsr_apex.replay.store import Store
from dpsr_apex.replay.transitions import Transitions
from dpsr_apex.replay.trees import Slots
from tests.unit.replay.naive import rows_of, transitions_of
from tests.unit.replay.twins import make_config, make_rows, single_steps, stored_rows

BURST = 20


class OldestInBursts:
    """A recycler that is not shipped: pairs of rounds, one insertion apart, from the oldest states."""

    def __init__(self, config: ReplayConfig, index: SlotIndex, _store: Store) -> None:
        self.arrays: dict[str, NDArray[Any]] = {}
        self._index = index
        self._count = config.recycle_candidates

    def insertions_before_round(self, progress: Progress) -> int:
        """Open a round when t is a multiple of BURST, and at the t after it."""
        t, until_full, *_ = progress
        return next(n for n in range(until_full, until_full + BURST) if (t + 1 + n) % BURST in (0, 1))

    def candidates(self, _rng: np.random.Generator) -> Slots:
        """Choose without random numbers."""
        return np.argsort(self._index.identities)[: self._count]

    def observe(self, _transitions: Transitions) -> None:
        """Ignore them."""


@pytest.mark.parametrize("period", [1, 2, 7, 50])
def test_rounds_open_at_multiples_of_the_period_once_the_replay_is_full(period: int) -> None:
    recycler = Replay(make_config(recycle_period=period), 100, np.random.default_rng(0))._recycler
    for t in range(2 * period):
        for until_full in range(2 * period):
            clocks = range(t + 1 + until_full, t + 1 + until_full + period)  # of insertions into the full replay
            (due,) = [clock for clock in clocks if clock % period == 0]
            assert recycler.insertions_before_round(Progress(t, until_full, t, 0)) == due - t - 1


def test_a_period_of_zero_turns_the_recycler_off() -> None:
    on, off = (Replay(make_config(recycle_period=period), 100, np.random.default_rng(0)) for period in (5, 0))
    assert isinstance(on._recycler, Rounds)
    assert isinstance(off._recycler, NoRecycling)
    assert off._recycler.insertions_before_round(Progress(0, 0, 0, 0)) == NEVER
    assert off._recycler.candidates(np.random.default_rng(0)).size == 0


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("remover", REMOVERS)
def test_a_replay_follows_a_new_recycler(sampler: str, remover: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(RECYCLERS, "bursts", OldestInBursts)
    composed = METHODS["dpsr"]._replace(name="composed", sampler=sampler, remover=remover, recycler="bursts")
    monkeypatch.setitem(METHODS, "composed", composed)
    replay = Replay(make_config("composed", capacity=30, recycle_candidates=4), 200, np.random.default_rng(0))
    opened_at = []
    for number in range(85):
        oldest, stored = np.sort(replay.identities)[:4], stored_rows(replay)
        for round_ in replay.insert(transitions_of(make_rows(number, 1))):
            opened_at.append(replay.t)
            assert round_.candidates.tolist() == oldest.tolist()
            assert rows_of(round_.stored) == [stored[slot] for slot in (oldest % 30).tolist()]
            recycled = transitions_of(make_rows(1_000, 4))
            replay.answer(round_.number, single_steps(round_.candidates, recycled, np.arange(4.0)))
        replay.sample(8)
        assert replay.check_valid() == (True, "")
    assert opened_at == [40, 41, 60, 61, 80, 81]
    assert replay.counters.recycled == 3 * len(opened_at)
