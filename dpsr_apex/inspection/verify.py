"""Verify that a stored transition can be reproduced: restore its state, repeat its action, and compare the outcome."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dpsr_apex.envs.stacked import StackedEnv, Step
from dpsr_apex.inspection.stored import StoredTransition


class Verification(NamedTuple):
    """What was compared bit for bit, and which of it differs."""

    compared: tuple[str, ...]  # empty if nothing can be compared
    differs: tuple[str, ...]  # one description per difference
    n_steps: int  # of the transition

    def text(self, action: str) -> str:
        """Describe the result in one line; `action` is the name of the repeated action."""
        limit = f"; only the first of its {self.n_steps} steps can be repeated: later actions are not stored"
        note = limit if self.n_steps > 1 else ""
        if not self.compared:
            return f"repeating {action}: nothing can be compared{note}"
        if self.differs:
            return f"repeating {action} does not reproduce the stored outcome: {'; '.join(self.differs)}{note}"
        *most, last = self.compared
        names = f"{', '.join(most)} and {last}" if most else last
        return f"repeating {action} reproduces the stored {names}, bit for bit{note}"


def verify_transition(env: StackedEnv, transition: StoredTransition) -> Verification:
    """Restore the transition's state in `env`, which must have training rules, and repeat the stored action.

    For an n-step transition only its first new frame is compared, if s' still contains it.
    """
    env.restore(transition.snapshot, transition.s_tm1)
    step = env.step(transition.action)
    stored = env.codec.decompress_stack(transition.s_t)
    if transition.n_steps > len(stored):
        return Verification((), (), transition.n_steps)
    if transition.n_steps > 1:
        different = _frames_differ("first frame", stored[-transition.n_steps], env.frames[-1])
        return Verification(("first frame",), different, transition.n_steps)
    differs = (*_frames_differ("s′", stored, env.frames), *_outcomes_differ(transition, step))
    return Verification(("s′", "reward", "terminal"), differs, 1)


def _frames_differ(name: str, stored: NDArray[Any], repeated: NDArray[Any]) -> tuple[str, ...]:
    count = int((stored.view(np.uint8) != repeated.view(np.uint8)).sum())
    return (f"{name} in {count:,} of {stored.nbytes:,} bytes",) if count else ()


def _outcomes_differ(transition: StoredTransition, step: Step) -> tuple[str, ...]:
    pairs = (
        ("reward", transition.reward, float(np.float32(step.reward))),
        ("terminal", transition.terminal, step.terminal),
    )
    return tuple(f"{name} {repeated} instead of {stored}" for name, stored, repeated in pairs if stored != repeated)
