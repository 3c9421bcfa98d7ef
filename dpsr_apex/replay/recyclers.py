"""Recyclers: when a recycling round opens, and which stored states it re-enters.

The replay runs the rounds that a recycler opens: it collects the results, writes them into the candidates' slots and
counts them, whichever recycler chose the candidates. The rounds of `dpsr` are composed of when they open (a period or a
share of the environment steps) and of the choice of candidates. A new choice is a class in this module and an entry in
`CHOICES`; a new recycler is a class and an entry in `RECYCLERS`.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from dpsr_apex.config import ReplayConfig
from dpsr_apex.replay.slots import SlotIndex
from dpsr_apex.replay.store import Store
from dpsr_apex.replay.transitions import Transitions
from dpsr_apex.replay.trees import Floats, Slots

NEVER: Final = int(np.iinfo(np.int64).max)  # insertions before a round: more than any run has
MILLION: Final = 1_000_000
VISIT_COUNTS: Final = 2**18  # size of the table of visits; keys that fall on the same entry are counted together


class Progress(NamedTuple):
    """Everything that decides when a round opens."""

    t: int
    until_full: int  # slots that are still empty
    played: int  # environment steps of the actors' own episodes
    recycling: int  # environment steps of recycling: taken, or reserved for candidates


class Recycler(Protocol):
    """Opens recycling rounds in a full replay, and chooses their candidates."""

    arrays: dict[str, NDArray[Any]]  # its state, which checkpoints contain

    def __init__(self, config: ReplayConfig, index: SlotIndex, store: Store, /) -> None: ...

    def insertions_before_round(self, progress: Progress, /) -> int:
        """Return the number of insertions before the next one that opens a round, at least `until_full`."""

    def candidates(self, rng: np.random.Generator, /) -> Slots:
        """Return the slots of a new round's candidates: at least one, all different; the replay is full."""

    def observe(self, transitions: Transitions, /) -> None:
        """Take note of transitions, played or recycled, that were made in the environment."""


class NoRecycling:
    """No state is re-entered."""

    def __init__(self, _config: ReplayConfig, _index: SlotIndex, _store: Store) -> None:
        self.arrays: dict[str, NDArray[Any]] = {}

    def insertions_before_round(self, _progress: Progress) -> int:
        """Return `NEVER`."""
        return NEVER

    def candidates(self, _rng: np.random.Generator) -> Slots:
        """Return no slots; there is no round to choose them for."""
        return np.empty(0, dtype=np.int64)

    def observe(self, _transitions: Transitions) -> None:
        """Do nothing."""


class Rounds:
    """States chosen by `replay.recycle_choice` are re-entered, every F_r transitions or for a share of all steps."""

    def __init__(self, config: ReplayConfig, index: SlotIndex, store: Store) -> None:
        when = Share(config) if config.recycle_share > 0 else Periodic(config)
        choice = CHOICES[config.recycle_choice](config, index, store)
        self.insertions_before_round = when.insertions_before_round
        self.candidates = choice.candidates
        self.observe = choice.observe
        self.arrays = choice.arrays


# When a round opens.


class Periodic:
    """Rounds at every multiple of F_r, as in the paper."""

    def __init__(self, config: ReplayConfig) -> None:
        self._period = config.recycle_period

    def insertions_before_round(self, progress: Progress) -> int:
        """Return the number of insertions before t is a multiple of F_r, in a replay that is full by then."""
        return progress.until_full + -(progress.t + 1 + progress.until_full) % self._period


class Share:
    """A round as soon as it fits into the share of the environment steps since the replay became full.

    A round is charged in full while it is open, and for candidates that were lost, so that rounds never accumulate.
    """

    def __init__(self, config: ReplayConfig) -> None:
        self._share = max(round(config.recycle_share * MILLION), 1)  # in millionths: exact, unlike a float
        self._capacity = config.capacity
        self._round_steps = config.recycle_candidates * config.recycle_steps

    def insertions_before_round(self, progress: Progress) -> int:
        """Return the number of insertions before recycling may use the steps of one more round."""
        recycling = progress.recycling + self._round_steps
        needed = -(-recycling * MILLION // self._share) - recycling  # steps to be played since the replay became full
        return max(needed - (progress.played + 1 - self._capacity), progress.until_full)


# Which states are re-entered.


class LowPriority:
    """Candidates are sampled by p ** -gamma, as in the paper; base class of all choices."""

    def __init__(self, config: ReplayConfig, index: SlotIndex, store: Store) -> None:
        self.arrays: dict[str, NDArray[Any]] = {}
        self._config = config
        self._index = index
        self._store = store

    def candidates(self, rng: np.random.Generator) -> Slots:
        """Sample until C_r different slots are found, or all slots."""
        return self._index.trees.sample_distinct_to_replace(self._config.recycle_candidates, rng)

    def observe(self, _transitions: Transitions) -> None:
        """Do nothing: the choice depends on the stored transitions only."""


class HighPriority(LowPriority):
    """Candidates are sampled by p ** gamma."""

    def candidates(self, rng: np.random.Generator) -> Slots:
        """Sample until C_r different slots are found, or all slots."""
        trees = self._index.trees
        masses = trees.priorities**trees.gamma
        return sample_distinct(masses, self._config.recycle_candidates, rng)


class Novel(LowPriority):
    """States are sampled by 1 / visits, whichever of their transitions is stored; re-entering a state is a visit, too.

    The transitions of a state share its weight. Otherwise a state with n visits that are all stored would have the
    weight n / n, and every state would be as likely as a new one.
    """

    def __init__(self, config: ReplayConfig, index: SlotIndex, store: Store) -> None:
        super().__init__(config, index, store)
        self._visits = np.zeros(VISIT_COUNTS, dtype=np.uint32)
        self.arrays = {"visits": self._visits}

    def candidates(self, rng: np.random.Generator) -> Slots:
        """Sample until C_r different slots are found, or all slots."""
        entries = (self._store["state_keys"] % VISIT_COUNTS).astype(np.int64)
        stored = np.bincount(entries, minlength=VISIT_COUNTS)
        weights = 1.0 / (self._visits[entries] * stored[entries])
        return sample_distinct(weights, self._config.recycle_candidates, rng)

    def observe(self, transitions: Transitions) -> None:
        """Count a visit of each state that a transition started from."""
        np.add.at(self._visits, transitions.state_keys % VISIT_COUNTS, 1)


class Failure(LowPriority):
    """Candidates are sampled uniformly from the last steps before terminals; by p ** -gamma if none is stored."""

    def candidates(self, rng: np.random.Generator) -> Slots:
        """Sample C_r different slots, or return all that are eligible."""
        eligible = self._eligible()
        if eligible.size == 0:
            return super().candidates(rng)
        count = min(self._config.recycle_candidates, eligible.size)
        return rng.choice(eligible, count, replace=False, shuffle=False)

    def _eligible(self) -> Slots:
        """Return the slots at most `recycle_failure_steps` before a stored terminal of the same episode."""
        episodes, steps = self._store["episodes"], self._store["episode_steps"].astype(np.int64)
        ends = np.flatnonzero(self._store["terminal"])
        if ends.size == 0:
            return ends
        ended, firsts = np.unique(episodes[ends], return_index=True)
        lengths = (steps[ends] + self._store["n_steps"][ends])[firsts]  # of the episodes, in steps
        places = np.minimum(np.searchsorted(ended, episodes), ended.size - 1)
        is_late = steps >= lengths[places] - self._config.recycle_failure_steps
        return np.flatnonzero((ended[places] == episodes) & is_late)


def sample_distinct(masses: Floats, count: int, rng: np.random.Generator) -> Slots:
    """Sample `count` distinct slots by mass, stratified, until they are distinct; all slots with mass if fewer."""
    left = masses.copy()
    held: dict[int, None] = {}
    while len(held) < count and left.any():
        ends = np.cumsum(left)
        missing = count - len(held)
        targets = (np.arange(missing) + rng.random(missing)) / missing * ends[-1]
        last = int(np.flatnonzero(left)[-1])  # for a target that rounding has moved to the very end
        slots = np.minimum(np.searchsorted(ends, targets, side="right"), last)
        held.update(dict.fromkeys(slots.tolist()))
        left[list(held)] = 0.0
    return np.array(list(held), dtype=np.int64)


CHOICES: Final[dict[str, type[LowPriority]]] = {
    "low": LowPriority,
    "high": HighPriority,
    "novel": Novel,
    "failure": Failure,
}

RECYCLERS: Final[dict[str, type[Recycler]]] = {
    "none": NoRecycling,
    "rounds": Rounds,
}
