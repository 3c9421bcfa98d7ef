"""Which states of the learner the replay accepts. A state that it has accepted is checkpointed, and starts a learner.

That the arrays are valid and finite was checked when the message was decoded.
"""

from __future__ import annotations

import json

from dpsr_apex.wire.messages import LearnerState

_SIZE = 8  # bytes before the header of safetensors, which contain its length


def ensure_plausible(state: LearnerState, known: LearnerState, most_updates: int) -> None:
    """Raise ValueError for a state with other arrays than the `known` one, or with more updates than are possible.

    `known` is empty if there is none yet.
    """
    if known.arrays and _header(state.arrays) != _header(known.arrays):
        raise ValueError("the state of the learner has arrays of other names, shapes or types than the one before it")
    updates = updates_in(state)
    if updates > most_updates:
        raise ValueError(f"the state of the learner claims {updates:,} updates, of {most_updates:,} at most")


def updates_in(state: LearnerState) -> int:
    """Return the number of updates that a state contains; 0 for an empty one."""
    return int(json.loads(state.facts)["updates"]) if state.facts else 0


def _header(arrays: bytes) -> bytes:
    """Return the part of safetensors that describes the arrays; `pack_weights` always writes it in the same order."""
    return arrays[: _SIZE + int.from_bytes(arrays[:_SIZE], "little")]
