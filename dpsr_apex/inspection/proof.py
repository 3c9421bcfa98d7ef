"""The proof that a restored moment is the stored one: the stored action, taken there again, gives what is stored.

It says what it compared, and never claims more.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dpsr_apex.envs.stacked import StackedEnv, Step
from dpsr_apex.inspection.moments import Moment


class Proof(NamedTuple):
    """What was compared, to the last bit, and what of it is different now."""

    compared: tuple[str, ...]  # empty where nothing can be
    differs: tuple[str, ...]
    n_steps: int

    def text(self, action: str) -> str:
        """One line for a person."""
        reason = f"of its {self.n_steps} steps only the first can be repeated: the other actions are not stored"
        beyond = f"; {reason}" if self.n_steps > 1 else ""
        if not self.compared:
            return f"{action} again: nothing can be compared{beyond}"
        if self.differs:
            return f"{action} again gives something else than is stored: {'; '.join(self.differs)}{beyond}"
        *most, last = self.compared
        what = f"{', '.join(most)} and {last}" if most else last
        return f"{action} again gives the stored {what}, bit for bit{beyond}"


def prove(env: StackedEnv, moment: Moment) -> Proof:
    """Restore the moment in `env`, which must have the rules of training, and take the stored action again.

    Of a transition of several steps the first frame is compared, where s' still holds it.
    """
    env.restore(moment.snapshot, moment.s_tm1)
    step = env.step(moment.action)
    stored = env.codec.inflate_stack(moment.s_t)
    if moment.n_steps > len(stored):
        return Proof((), (), moment.n_steps)
    if moment.n_steps > 1:
        different = _frames_differ("first frame", stored[-moment.n_steps], env.frames[-1])
        return Proof(("first frame",), different, moment.n_steps)
    differs = (*_frames_differ("s′", stored, env.frames), *_outcomes_differ(moment, step))
    return Proof(("s′", "reward", "end"), differs, 1)


def _frames_differ(what: str, stored: NDArray[Any], seen: NDArray[Any]) -> tuple[str, ...]:
    count = int((stored.view(np.uint8) != seen.view(np.uint8)).sum())
    return (f"{what} in {count:,} of {stored.nbytes:,} bytes",) if count else ()


def _outcomes_differ(moment: Moment, step: Step) -> tuple[str, ...]:
    pairs = (("reward", moment.reward, float(np.float32(step.reward))), ("end", moment.terminal, step.terminal))
    return tuple(f"{name} {now} instead of {stored}" for name, stored, now in pairs if stored != now)
