"""States that crash or hang whoever re-enters them are found in a child process."""

from __future__ import annotations

import os
import signal
from typing import Any

import numpy as np
import pytest

from dpsr_apex import timeouts
from dpsr_apex.envs.classic import ClassicControl
from dpsr_apex.envs.stacked import StackedEnv
from dpsr_apex.replay.transitions import Transitions, from_lists
from dpsr_apex.roles.trial import states_that_end_a_process

STATES = {
    b"crash": signal.SIGSEGV,
    b"abort": signal.SIGABRT,
    b"hang": signal.SIGALRM,
    b"exit": signal.SIGABRT,  # by the first step; it is reported like an abort
}


class Deadly(ClassicControl):
    """CartPole with states that end the process."""

    def __init__(self) -> None:
        super().__init__("CartPole-v1")
        self._ends = False

    def restore(self, snapshot: bytes, frames: Any) -> None:
        self._ends = snapshot == b"exit"
        match snapshot:
            case b"crash" | b"abort":
                os.kill(os.getpid(), STATES[snapshot])
            case b"hang":
                while True:
                    pass
            case b"raise":
                raise SystemError("damaged")
            case b"exit":
                return
        super().restore(snapshot, frames)

    def step(self, action: int) -> Any:
        if self._ends:
            os._exit(0)
        return super().step(action)


def starts(env: StackedEnv, snapshots: list[bytes]) -> Transitions:
    count = len(snapshots)
    return from_lists(s_tm1=[env.stack] * count, snapshots=[snapshot or env.snapshot() for snapshot in snapshots])


@pytest.mark.parametrize("order", [0, 1, 2])
def test_states_that_end_a_process_are_found_in_any_order(order: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timeouts, "STATE_TRIAL", 0.5)
    env = StackedEnv(Deadly(), None, seed=0)
    snapshots = [*STATES, b"", b"raise", b""]
    snapshots = [snapshots[row] for row in np.random.default_rng(order).permutation(len(snapshots))]
    before = env.save()
    faults = states_that_end_a_process(env, starts(env, snapshots), range(len(snapshots)))
    found = {snapshots[row]: reason for row, reason in faults.items()}
    assert found.keys() == STATES.keys()
    for snapshot, number in STATES.items():
        assert (number.name if number != signal.SIGALRM else "longer than") in found[snapshot]
    assert env.save().facts == before.facts


def test_only_the_given_rows_are_tried() -> None:
    env = StackedEnv(Deadly(), None, seed=0)
    assert states_that_end_a_process(env, starts(env, [b"crash", b"", b"crash"]), [1]) == {}
    assert states_that_end_a_process(env, starts(env, [b"crash"]), []) == {}
