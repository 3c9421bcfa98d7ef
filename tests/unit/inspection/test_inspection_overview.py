"""The overview of a replay: what it prints about chains of steps from re-entered states."""

from __future__ import annotations

import numpy as np

from dpsr_apex.inspection.overview import COLUMNS, summary_lines, transition_table
from dpsr_apex.inspection.stored import find_transitions
from dpsr_apex.replay.replay import Replay
from tests.unit.replay.naive import NaiveChain, transitions_of
from tests.unit.replay.twins import joined, make_config, make_rows


def recycled(steps: int) -> Replay:
    """Return a replay of nine transitions after one round with three chains of this length."""
    config = make_config(capacity=9, recycle_candidates=3, recycle_period=10, recycle_steps=4)
    replay = Replay(config, 100, np.random.default_rng(0))
    (round_,) = replay.insert(transitions_of(make_rows(0, 10)))
    chains = [NaiveChain(make_rows(100 * i, steps), [float(i)] * steps, 2.5) for i in (1, 2, 3)]
    replay.answer(round_.number, joined(round_.candidates.tolist(), chains))
    return replay


def test_chains_are_summarized_with_the_depth_of_their_steps() -> None:
    replay = recycled(3)
    depths = [transition.depth for transition in find_transitions(replay, replay.identities)]
    assert depths == replay.depths.tolist()
    assert max(depths) == 3
    later = sum(depth > 1 for depth in depths)
    assert summary_lines(replay)[-1] == (
        f"chains: {later} of their later steps stored, up to 3 steps from play; "
        "3 made, of 3 steps and reward 2.5 on average"
    )


def test_single_steps_are_not_called_chains() -> None:
    assert summary_lines(recycled(1))[-1].startswith("recycled: ")


def test_a_table_has_only_the_columns_that_are_not_empty() -> None:
    never = Replay(make_config(capacity=9), 100, np.random.default_rng(0))
    never.insert(transitions_of(make_rows(0, 5)))
    assert {"gain", "depth"} <= set(COLUMNS) - _columns(never) <= {"gain", "depth", "terminal"}
    assert set(COLUMNS) - _columns(recycled(1)) <= {"terminal"}


def _columns(replay: Replay) -> set[str]:
    transitions = find_transitions(replay, replay.identities)
    return {str(column.header) for column in transition_table(transitions, None).columns}
