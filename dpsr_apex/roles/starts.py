"""Episodes that begin at chosen moments instead of a reset, for example shortly before a failure, to practise there."""

from __future__ import annotations

import logging
from typing import Final

import numpy as np

from dpsr_apex.envs.compression import DamagedSnapshot
from dpsr_apex.envs.snapshot import UnusableEnvironment
from dpsr_apex.envs.stacked import StackedEnv
from dpsr_apex.replay.transitions import Transitions, from_lists
from dpsr_apex.state import State

NO_STARTS: Final = from_lists(s_tm1=[])

log = logging.getLogger(__name__)


class Starts:
    """A share of episodes begins at the state of one of these transitions, each as likely as the others."""

    def __init__(self, transitions: Transitions, share: float) -> None:
        self._transitions = transitions
        self._share = share if len(transitions) else 0.0

    def begin(self, env: StackedEnv, rng: np.random.Generator) -> State | None:
        """Begin an episode at a moment, or leave `env` as its reset left it.

        Return the state after the reset, in which `env` must be continued after that episode: the restored state would
        repeat the random numbers of later resets. None if the episode begins with the reset.
        """
        if self._share == 0.0 or rng.random() >= self._share:
            return None
        row = int(rng.integers(len(self._transitions)))
        held = env.save()
        try:
            begin_at(env, self._transitions, row)
        except DamagedSnapshot as damage:
            log.warning("moment %d cannot be restored, so the episode begins with a reset: %s", row, damage)
            env.load(held)
            return None
        return held


def begin_at(env: StackedEnv, transitions: Transitions, row: int) -> None:
    """Begin an episode in the state from which the transition in this row started."""
    env.begin_at(transitions.snapshots[row], transitions.s_tm1[row])


def ensure_startable(env: StackedEnv, environment: str, transitions: Transitions, origin: str) -> None:
    """Raise UnusableEnvironment unless every moment, taken in `environment`, can be restored in `env`."""
    if not len(transitions):
        raise UnusableEnvironment(env.description, f"{origin} has no moments", "Star some in the explorer.")
    if environment != env.description:
        raise UnusableEnvironment(
            env.description, f"{origin} has moments of {environment}", "Use the environment that they were taken from."
        )
    for row in range(len(transitions)):
        try:
            begin_at(env, transitions, row)
        except DamagedSnapshot as damage:
            problem = f"moment {row} of {origin} cannot be restored: {damage}"
            raise UnusableEnvironment(env.description, problem, "Export the moments again.") from damage
