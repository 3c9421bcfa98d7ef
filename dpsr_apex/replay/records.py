"""What goes into the replay and comes out of it, and what it counts. Only records: `memory.py` fills them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dpsr_apex.replay.transitions import Transitions

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]


class Sample(NamedTuple):
    """A batch drawn by priority."""

    identities: Integers
    weights: NDArray[np.float32]
    transitions: Transitions


class Arrivals(NamedTuple):
    """Transitions on their way into slots, row by row."""

    transitions: Transitions
    priorities: Floats  # GREATEST_NOW: the greatest in the replay at the moment of entering
    births: Integers  # clock t
    serials: Integers

    def rows(self, start: int, stop: int) -> Arrivals:
        """Arrivals `start` to `stop` (exclusive) of these."""
        return Arrivals(
            self.transitions.rows(start, stop),
            self.priorities[start:stop],
            self.births[start:stop],
            self.serials[start:stop],
        )


@dataclass
class Round:
    """One recycling round: candidates whose states are entered again, and the transition that waits for its end."""

    number: int
    candidates: Integers  # identities
    stored: Transitions  # the candidates themselves, as they were when the round was opened
    waiting: Arrivals  # one row: the new transition that will take the slot of the weakest candidate
    answers: dict[int, tuple[Transitions, float]] = field(default_factory=dict)  # by identity: one row, |TD error|


@dataclass
class Counters:
    """What has happened so far. Everything that came in is accounted for: see `DpsrReplay.check_valid`."""

    recycled: int = 0  # recycled transitions stored
    recycled_gain: float = 0.0  # sum over them: |TD error| + floor, less the priority of what each replaced
    replaced: int = 0  # stored transitions that made room for another
    replaced_age: int = 0  # sum over them: transitions by which each was born before its successor
    replaced_priority: float = 0.0  # sum over them
    rounds_opened: int = 0
    rounds_closed: int = 0  # every candidate was answered
    rounds_expired: int = 0  # ended with what had arrived
    candidates_drawn: int = 0
    candidates_applied: int = 0  # answered, and their slot taken by what the round brought
    candidates_stale: int = 0  # answered, but replaced meanwhile
    candidates_lost: int = 0  # not answered before the round ended
    answers_late: int = 0  # to a round that had ended, or given twice
    priorities_updated: int = 0
    priorities_stale: int = 0  # for a transition that had been replaced
