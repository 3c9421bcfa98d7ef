"""Conversion of stored transitions to arrays for the network; those that cannot be used are found and left out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from dpsr_apex.agent.protocol import Experience, SharedExperience
from dpsr_apex.envs.compression import FrameCodec
from dpsr_apex.envs.shared_frames import Observations, SharedFrames
from dpsr_apex.replay.transitions import PackedStates, PackedTransitions, Stack, Transitions

Faults = dict[int, str]
"""Why transitions cannot be used, by their rows."""

NO_FAULTS: Final[Mapping[int, str]] = MappingProxyType({})

Decompress = Callable[[Sequence[Stack]], Observations]
"""Returns observations; raises ValueError for those that are damaged."""
DecompressPacked = Callable[[PackedStates], Observations]
"""Returns the observations of a batch as it was received; raises ValueError if one is damaged."""
_Observations = TypeVar("_Observations", bound=Observations)
_States = TypeVar("_States", Sequence[Stack], PackedStates)


class Sifted(NamedTuple):
    """Transitions as arrays; in place of each that cannot be used there is a copy of one that can be."""

    experience: Experience | SharedExperience | None  # None if none can be used
    faults: Faults


def decompress(transitions: Transitions, codec: FrameCodec) -> Experience:
    """Decompress the observations of these transitions; frames that s_tm1 and s_t share are decompressed once."""
    observations = codec.decompress_stacks([*transitions.s_tm1, *transitions.s_t])
    return _experience(transitions, observations)


def read_packed(packed: PackedTransitions, decompress: DecompressPacked, actions: int) -> SharedExperience | None:
    """Decompress the transitions of a batch as it was received; None unless all can be used: see `sift`."""
    states = packed.states()
    observations = None if states is None else decompress_sound(states, decompress)
    if not isinstance(observations, SharedFrames):
        return None
    (frames, index), count, numbers = (observations.distinct, observations.index), len(packed), packed.numbers
    found = SharedExperience(
        *(frames, index[:count], numbers("a_tm1"), numbers("r_t"), index[count:]),
        *(numbers("terminal"), numbers("n_steps")),
    )
    return None if _faulty_numbers(found, actions) else found


def sift(transitions: Transitions, decompress_stacks: Decompress, actions: int, known: Faults) -> Sifted:
    """Decompress the transitions of an environment with this number of actions, except those that cannot be used.

    `known` are faults that were found before.
    """
    faults = known | _faulty_numbers(transitions, actions)
    states = zip(transitions.s_tm1, transitions.s_t, strict=True)
    observations = decompress_sound([*transitions.s_tm1, *transitions.s_t], decompress_stacks)
    if observations is not None and not faults:
        return Sifted(_as_experience(transitions, observations), {})
    for row, stacks in enumerate(states):
        if fault := fault_of(stacks, decompress_stacks):
            faults.setdefault(row, fault)
    rows = with_replacements(len(transitions), faults)
    if rows is None:
        return Sifted(None, faults)
    good = transitions.pick(rows)
    return Sifted(_as_experience(good, decompress_stacks([*good.s_tm1, *good.s_t])), faults)


def decompress_sound(stacks: _States, decompress_stacks: Callable[[_States], _Observations]) -> _Observations | None:
    """Return these observations; None if one of them is damaged, or has a number that is not finite."""
    try:
        observations = decompress_stacks(stacks)
    except ValueError:
        return None
    return observations if _is_finite(observations) else None


def fault_of(stacks: Sequence[Stack], decompress_stacks: Decompress) -> str:
    """Return what is wrong with these observations; empty if nothing is."""
    try:
        observations = decompress_stacks(stacks)
    except ValueError as error:
        return str(error)
    return "" if _is_finite(observations) else "observation not finite"


def _is_finite(observations: Observations) -> bool:
    if isinstance(observations, SharedFrames) or observations.dtype.kind != "f":
        return True
    return bool(np.isfinite(observations).all())


def with_replacements(count: int, faults: Faults) -> NDArray[np.int64] | None:
    """Return the rows to use: in place of each one with a fault, the first without; None if there is none."""
    rows = np.arange(count)
    good = [row for row in range(count) if row not in faults]
    if not good:
        return None
    rows[list(faults)] = good[0]
    return rows


def _experience(transitions: Transitions, observations: NDArray[Any]) -> Experience:
    """Return the transitions with these observations: first every s_tm1, then every s_t."""
    return Experience(
        s_tm1=observations[: len(transitions)],
        a_tm1=transitions.a_tm1,
        r_t=transitions.r_t,
        s_t=observations[len(transitions) :],
        terminal=transitions.terminal,
        n_steps=transitions.n_steps,
    )


def _as_experience(transitions: Transitions, observations: Observations) -> Experience | SharedExperience:
    """Return the transitions with these observations: first every s_tm1, then every s_t."""
    if not isinstance(observations, SharedFrames):
        return _experience(transitions, observations)
    return SharedExperience(observations.distinct, *_experience(transitions, observations.index))


def _faulty_numbers(transitions: Transitions | SharedExperience, actions: int) -> Faults:
    taken, rewards = transitions.a_tm1, transitions.r_t
    faults = {int(row): f"reward {rewards[row]}" for row in np.flatnonzero(~np.isfinite(rewards))}
    return faults | {
        int(row): f"action {taken[row]} of {actions}" for row in np.flatnonzero((taken < 0) | (taken >= actions))
    }
