"""Single transitions of a replay, and which of them are worth a look. It computes, and neither prints nor draws."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dpsr_apex.envs.stacked import StackedEnv
from dpsr_apex.replay.memory import DpsrReplay
from dpsr_apex.replay.transitions import Stack

Slots = NDArray[np.intp]


class Moment(NamedTuple):
    """One stored transition with all that the replay knows of it."""

    identity: int
    priority: float
    birth: int  # clock t
    age: int  # transitions since then
    gain: float  # of a recycled one, over what it replaced; NaN for all others
    s_tm1: Stack
    action: int
    reward: float
    s_t: Stack
    terminal: bool
    n_steps: int
    snapshot: bytes

    @property
    def recycled(self) -> bool:
        """Whether it came from re-entering a stored state."""
        return not math.isnan(self.gain)


class Kind(NamedTuple):
    """Some transitions with something in common."""

    title: str
    meaning: str  # what the title says in other words, with the order that they are in
    moments: list[Moment]


class Recycled(NamedTuple):
    """All recycled transitions that are stored, in numbers."""

    stored: int
    mean_gain: float  # NaN where there are none
    gaining: float  # the share whose gain is more than nothing


def choose_kinds(replay: DpsrReplay, count: int) -> list[Kind]:
    """The transitions that stand out, at most `count` of each kind."""
    priorities, identities, gains = replay.priorities, replay.identities, replay.gains
    recycled = np.flatnonzero(~np.isnan(gains))
    best = recycled[np.lexsort((identities[recycled], -gains[recycled]))]
    chosen = (
        ("highest priority", "what surprised the network most, or is too new to be known", (identities, -priorities)),
        ("lowest priority", "what the network predicts best", (identities, priorities)),
        ("oldest survivors", "what was born first and is still here", (identities,)),
    )
    kinds = [Kind(name, meaning, moments_in(replay, np.lexsort(keys)[:count])) for name, meaning, keys in chosen]
    meaning = "what another action in the same state gained over what was stored"
    return [*kinds, Kind("greatest gain by recycling", meaning, moments_in(replay, best[:count]))]


def sum_up_recycled(replay: DpsrReplay) -> Recycled:
    """How many of those stored are recycled, and what that was worth."""
    gains = replay.gains[~np.isnan(replay.gains)]
    if not gains.size:
        return Recycled(0, math.nan, math.nan)
    return Recycled(gains.size, float(gains.mean(dtype=np.float64)), float((gains > 0).mean()))


def find_moment(replay: DpsrReplay, identity: int) -> Moment | None:
    """The transition of that identity; None if it is not stored."""
    return next(iter(moments_in(replay, np.flatnonzero(replay.identities == identity))), None)


def moments_in(replay: DpsrReplay, slots: Slots) -> list[Moment]:
    """The transitions in these slots, in this order."""
    identities = replay.identities[slots]
    rows = replay.read(identities)
    columns: Sequence[Sequence[Any]] = (
        identities.tolist(),
        replay.priorities[slots].tolist(),
        replay.births[slots].tolist(),
        (replay.t - replay.births[slots]).tolist(),
        replay.gains[slots].tolist(),
        rows.s_tm1,
        rows.a_tm1.tolist(),
        rows.r_t.tolist(),
        rows.s_t,
        rows.terminal.tolist(),
        rows.n_steps.tolist(),
        rows.snapshots,
    )
    return [Moment(*row) for row in zip(*columns, strict=True)]


def action_name(env: StackedEnv | None, action: int) -> str:
    """What an action is called, by the environment's `action_names` where it has them, else by its number."""
    names = getattr(env.env, "action_names", None) if env else None
    return str(names[action]) if names is not None and action < len(names) else f"action {action}"


def number(value: float) -> str:
    """Four digits that matter, without a power of ten where one can do without."""
    return f"{value:.4f}" if 0.001 <= abs(value) < 1000 else f"{value:.3g}"


def signed(value: float) -> str:
    """The same with its sign."""
    return f"{'+' if value >= 0 else '−'}{number(abs(value))}"
