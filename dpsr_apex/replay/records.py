"""Records of the replay: inputs and outputs, data about each slot, and counters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from typing import Annotated, Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dpsr_apex.replay.transitions import Numbers, Transitions, columns_of

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]

EMPTY: Final = -1  # identity of a slot that holds no transition


class Sample(NamedTuple):
    """A batch, as chosen by the method's sampler."""

    identities: Integers
    weights: NDArray[np.float32]
    transitions: Transitions  # without their snapshots, which a learner does not need


@dataclass(frozen=True, slots=True)
class SlotColumns:
    """Data that the replay stores about each slot besides its transition; saved in checkpoints, never sent."""

    identities: Annotated[Integers, Numbers(blank=EMPTY)]
    births: Integers  # clock t at which the transition was stored
    gains: Annotated[NDArray[np.float32], Numbers(blank=np.nan)]  # of recycled transitions; NaN for all others
    depths: NDArray[np.int32]  # recycled steps since the last played state; 0 for played transitions
    recycles: NDArray[np.int32]  # states re-entered since the last played state; 0 for played transitions
    origins: Annotated[Integers, Numbers(blank=-1)]  # transition whose state was re-entered last; -1 if played


SLOT_COLUMNS: Final = columns_of(SlotColumns)


class StoredRows(NamedTuple):
    """All that is stored about some transitions, row by row."""

    slots: SlotColumns
    priorities: Floats
    transitions: Transitions


class Lineage(NamedTuple):
    """How transitions descend from played ones, row by row: the columns of these names in `SlotColumns`."""

    depths: Integers
    recycles: Integers
    origins: Integers

    def rows(self, start: int, stop: int) -> Lineage:
        """Return rows `start` to `stop` (exclusive)."""
        return Lineage(*(column[start:stop] for column in self))


@lru_cache(maxsize=16)
def played(count: int) -> Lineage:
    """Return the lineage of played transitions, whose columns are read-only."""
    lineage = Lineage(np.zeros(count, np.int64), np.zeros(count, np.int64), np.full(count, -1))
    for column in lineage:
        column.flags.writeable = False
    return lineage


class Arrivals(NamedTuple):
    """Transitions to be written into slots, row by row."""

    transitions: Transitions
    priorities: Floats  # NaN: the maximum in the replay at the time of writing
    births: Integers  # clock t
    serials: Integers
    lineage: Lineage

    def rows(self, start: int, stop: int) -> Arrivals:
        """Return rows `start` to `stop` (exclusive)."""
        if (start, stop) == (0, len(self.transitions)):
            return self
        part = slice(start, stop)
        return Arrivals(
            self.transitions.rows(start, stop),
            self.priorities[part],
            self.births[part],
            self.serials[part],
            self.lineage.rows(start, stop),
        )


class Chain(NamedTuple):
    """The steps from the state of one candidate: the first takes its slot, later ones are new transitions."""

    transitions: Transitions
    td_errors: Floats
    reward: float  # sum over the steps, without discount


class Chains(NamedTuple):
    """The chains of several candidates, concatenated."""

    identities: Integers  # chain i starts from the state of this candidate
    lengths: Integers  # transitions of chain i
    rewards: Floats  # of chain i: sum over its steps, without discount
    transitions: Transitions  # of all chains
    td_errors: Floats  # |TD error| of each transition

    def split(self) -> Iterator[tuple[int, Chain]]:
        """Yield each candidate and its chain."""
        end = 0
        chains = zip(self.identities.tolist(), self.lengths.tolist(), self.rewards.tolist(), strict=True)
        for identity, length, reward in chains:
            start, end = end, end + length
            yield identity, Chain(self.transitions.rows(start, end), self.td_errors[start:end], reward)


@dataclass
class Round:
    """One recycling round: candidates whose states are re-entered, and the new transition that waits for its end."""

    number: int
    candidates: Integers  # identities
    stored: Transitions  # the candidates themselves, as they were when the round was opened
    depths: Integers  # of the candidates
    recycles: Integers  # of the candidates
    waiting: Arrivals  # one row: the new transition, which gets the slot of the weakest candidate
    answers: dict[int, Chain] = field(default_factory=dict)  # by identity of the candidate


@dataclass
class Counters:
    """Counters since the start of the run. Every insertion is accounted for: see `Replay.check_valid`."""

    recycled: int = 0  # recycled transitions stored
    recycled_gain: float = 0.0  # sum over them: |TD error| + floor - priority of the replaced transition
    replaced: int = 0  # stored transitions that were replaced
    replaced_age: int = 0  # sum over them: age when replaced, in transitions
    replaced_priority: float = 0.0  # sum over them
    quarantined: int = 0  # stored transitions that were evicted because they cannot be used
    rounds_opened: int = 0
    rounds_closed: int = 0  # every candidate was answered
    rounds_expired: int = 0  # ended before every candidate was answered
    candidates_drawn: int = 0
    candidates_applied: int = 0  # answered, and their slot was overwritten by the round
    candidates_stale: int = 0  # answered, but replaced in the meantime
    candidates_lost: int = 0  # not answered before the round ended
    answers_late: int = 0  # for a round that had ended, or received twice
    chains: int = 0  # of answered candidates, in rounds that have ended
    chain_steps: int = 0  # environment steps of these chains
    chain_steps_stored: int = 0  # after the first step of a chain: stored as new transitions
    chain_steps_dropped: int = 0  # after the first step of a chain: not stored, because the run has ended
    chain_steps_late: int = 0  # of chains that were received after the end of their round
    chain_reward: float = 0.0  # sum over all steps of these chains, without discount
    chain_reward_best: float = 0.0  # greatest reward of one of these chains, at least 0
    sampled: int = 0  # transitions in all batches
    sampled_recycled: int = 0  # of these, from recycling
    priorities_updated: int = 0
    priorities_stale: int = 0  # for a transition that had been replaced

    def load(self, counts: Mapping[str, Any]) -> None:
        """Set the counters to these values."""
        for name, count in asdict(Counters(**counts)).items():
            setattr(self, name, count)

    def check_valid(self, rounds: int, candidates: int) -> tuple[bool, str]:
        """Return whether everything about recycling is accounted for, and what is not.

        `rounds` are open, with this number of `candidates` together.
        """
        answered = self.candidates_applied + self.candidates_stale
        steps = self.chains + self.chain_steps_stored + self.chain_steps_dropped
        for holds, reason in (
            (
                self.rounds_opened == self.rounds_closed + self.rounds_expired + rounds,
                "a round was neither closed nor expired",
            ),
            (
                self.candidates_drawn == answered + self.candidates_lost + candidates,
                "a candidate is neither applied nor stale nor lost",
            ),
            (self.chains == answered, "a chain belongs to no answered candidate"),
            (self.chain_steps == steps, "a step of a chain was neither stored nor dropped"),
            (0 <= self.sampled_recycled <= self.sampled, "more recycled transitions were sampled than all"),
        ):
            if not holds:
                return False, reason
        return True, ""
