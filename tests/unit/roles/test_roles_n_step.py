"""N-step returns against a naive oracle that looks ahead over the whole episode."""

from __future__ import annotations

import json
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpsr_apex.roles.n_step import Arrived, NStep, Start
from dpsr_apex.state import State


class Lived(NamedTuple):
    """One step of an environment; its state is its number."""

    reward: float
    terminal: bool
    truncated: bool


STEPS = st.lists(
    st.builds(Lived, st.floats(-10, 10), st.sampled_from([False] * 5 + [True]), st.sampled_from([False] * 5 + [True])),
    max_size=40,
)


def stack(number: int) -> tuple[bytes, ...]:
    return (f"frame {number - 1}".encode(), f"frame {number}".encode())


def start(number: int) -> Start:
    return Start(stack(2 * number), number % 7, f"snapshot {number}".encode())


def push(n_step: NStep, steps: list[Lived], number: int) -> list[Arrived]:
    step = steps[number]
    return n_step.push(start(number), step.reward, stack(2 * number + 1), step.terminal, step.truncated)


def naive(steps: list[Lived], n: int, discount: float) -> dict[int, Arrived]:
    """Every transition that can be known after all `steps`, by the step that it starts from."""
    known = {}
    for first in range(len(steps)):
        total = 0.0
        for k, step in enumerate(steps[first : first + n]):
            total += discount**k * step.reward
            if step.terminal or step.truncated or k == n - 1:
                known[first] = Arrived(start(first), total, stack(2 * (first + k) + 1), step.terminal, k + 1)
                break
    return known


@given(STEPS, st.integers(1, 5), st.sampled_from([0.0, 0.9, 1.0]))
def test_the_transitions_are_those_of_the_oracle_in_order(steps: list[Lived], n: int, discount: float) -> None:
    n_step = NStep(n, discount)
    found = [arrived for number in range(len(steps)) for arrived in push(n_step, steps, number)]
    expected = naive(steps, n, discount)
    assert [one.start for one in found] == [one.start for one in expected.values()]
    for one, other in zip(found, expected.values(), strict=True):
        assert one.reward == pytest.approx(other.reward, rel=1e-12, abs=1e-12)
        assert one._replace(reward=0.0) == other._replace(reward=0.0)
    assert [pending for pending, _ in n_step.pending] == [start(i) for i in range(len(steps)) if i not in expected]


@given(STEPS, st.integers(1, 5), st.data())
def test_an_accumulator_that_is_saved_and_loaded_continues_bit_for_bit(
    steps: list[Lived], n: int, data: st.DataObject
) -> None:
    stop = data.draw(st.integers(0, len(steps)))
    whole, first, second = (NStep(n, 0.9) for _ in range(3))
    expected = [push(whole, steps, number) for number in range(len(steps))]
    found = [push(first, steps, number) for number in range(stop)]
    facts, arrays = first.save()
    second.load(State(json.loads(json.dumps(facts)), arrays))
    assert found + [push(second, steps, number) for number in range(stop, len(steps))] == expected
    assert (second.pending, second.end) == (whole.pending, whole.end)


def test_a_truncation_is_no_terminal() -> None:
    n_step = NStep(3, 1.0)
    n_step.push(start(0), 1.0, stack(1), terminal=False, truncated=False)
    arrived = n_step.push(start(1), 2.0, stack(3), terminal=False, truncated=True)
    assert [(one.reward, one.terminal, one.n_steps) for one in arrived] == [(3.0, False, 2), (2.0, False, 1)]
    assert not n_step.pending


def test_an_interrupted_episode_ends_where_its_last_step_led() -> None:
    n_step = NStep(3, 1.0)
    n_step.push(start(0), 1.0, stack(1), terminal=False, truncated=False)
    n_step.push(start(1), 2.0, stack(3), terminal=False, truncated=False)
    assert n_step.end == stack(3)
    assert n_step.interrupt() == [
        Arrived(start(0), 3.0, stack(3), False, 2),
        Arrived(start(1), 2.0, stack(3), False, 1),
    ]
    assert (n_step.end, n_step.interrupt()) == ((), [])
