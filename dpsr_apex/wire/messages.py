"""Every message between actor, replay and learner, as typed records. No sockets and no encoding here.

In one process they pass by direct call; between processes they travel as frames. A role cannot tell the difference.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dpsr_apex.replay.transitions import Stack, Transitions


class Insert(NamedTuple):
    """actor -> replay: new transitions, in the order in which they happened."""

    transitions: Transitions
    td_errors: NDArray[np.float64] | None  # the actor's own |TD errors|, where they are to be the first priorities


class Inserted(NamedTuple):
    """replay -> actor: the transitions are the replay's now; its clock stands at t."""

    t: int


class Candidate(NamedTuple):
    """One stored transition to recycle: where it started from, and the action that is not to be repeated."""

    identity: int
    s_tm1: Stack
    a_tm1: int
    snapshot: bytes


class Recycle(NamedTuple):
    """replay -> actor: re-enter these states, act anew in each, and tell what happened."""

    round_number: int
    candidates: list[Candidate]


class Recycled(NamedTuple):
    """actor -> replay: what the new actions led to; row i answers `identities[i]`."""

    round_number: int
    identities: NDArray[np.int64]
    transitions: Transitions
    td_errors: NDArray[np.float64]  # |TD error| of each, by the newest networks


class SampleRequest(NamedTuple):
    """learner -> replay: one more batch is wanted."""

    batch_size: int


class Batch(NamedTuple):
    """replay -> learner: transitions drawn by priority, drawn at clock t."""

    t: int
    identities: NDArray[np.int64]
    weights: NDArray[np.float32]
    transitions: Transitions


class Priorities(NamedTuple):
    """learner -> replay: |TD errors| of transitions, named by identity since their slots may have new tenants."""

    identities: NDArray[np.int64]
    td_errors: NDArray[np.float64]
