"""Records of the replay: inputs and outputs, data about each slot, and counters."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dpsr_apex.replay.transitions import Numbers, Transitions, columns_of

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]


class Sample(NamedTuple):
    """A batch, as chosen by the method's sampler."""

    identities: Integers
    weights: NDArray[np.float32]
    transitions: Transitions


@dataclass(frozen=True, slots=True)
class SlotColumns:
    """Data that the replay stores about each slot besides its transition; saved in checkpoints, never sent."""

    identities: Annotated[Integers, Numbers(blank=-1)]  # -1 where nothing is stored
    births: Integers  # clock t at which the transition was stored
    gains: Annotated[NDArray[np.float32], Numbers(blank=np.nan)]  # of recycled transitions; NaN for all others


SLOT_COLUMNS: Final = columns_of(SlotColumns)


class Arrivals(NamedTuple):
    """Transitions to be written into slots, row by row."""

    transitions: Transitions
    priorities: Floats  # NaN: the maximum in the replay at the time of writing
    births: Integers  # clock t
    serials: Integers

    def rows(self, start: int, stop: int) -> Arrivals:
        """Return rows `start` to `stop` (exclusive)."""
        part = slice(start, stop)
        return Arrivals(
            self.transitions.rows(start, stop), self.priorities[part], self.births[part], self.serials[part]
        )


@dataclass
class Round:
    """One recycling round: candidates whose states are re-entered, and the new transition that waits for its end."""

    number: int
    candidates: Integers  # identities
    stored: Transitions  # the candidates themselves, as they were when the round was opened
    waiting: Arrivals  # one row: the new transition, which gets the slot of the weakest candidate
    answers: dict[int, tuple[Transitions, float]] = field(default_factory=dict)  # by identity: one row, |TD error|


@dataclass
class Counters:
    """Counters since the start of the run. Every insertion is accounted for: see `Replay.check_valid`."""

    recycled: int = 0  # recycled transitions stored
    recycled_gain: float = 0.0  # sum over them: |TD error| + floor - priority of the replaced transition
    replaced: int = 0  # stored transitions that were replaced
    replaced_age: int = 0  # sum over them: age when replaced, in transitions
    replaced_priority: float = 0.0  # sum over them
    rounds_opened: int = 0
    rounds_closed: int = 0  # every candidate was answered
    rounds_expired: int = 0  # ended before every candidate was answered
    candidates_drawn: int = 0
    candidates_applied: int = 0  # answered, and their slot was overwritten by the round
    candidates_stale: int = 0  # answered, but replaced in the meantime
    candidates_lost: int = 0  # not answered before the round ended
    answers_late: int = 0  # for a round that had ended, or received twice
    priorities_updated: int = 0
    priorities_stale: int = 0  # for a transition that had been replaced
