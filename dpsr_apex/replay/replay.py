"""Replay: how transitions are inserted, sampled, replaced and recycled, at a clock t.

Pure state: no sockets, files or wall clock, and no random state except the generator that is passed in. The only clock
is t, the number of transitions inserted so far. Transitions are stored in a `Table`, states are recycled in
`OpenRounds`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpsr_apex.config import ReplayConfig
from dpsr_apex.replay.records import (
    Arrivals,
    Chains,
    Counters,
    Floats,
    Integers,
    Lineage,
    Round,
    Sample,
    StoredRows,
    played,
)
from dpsr_apex.replay.recyclers import RECYCLERS, Progress
from dpsr_apex.replay.rounds import LaterSteps, OpenRounds
from dpsr_apex.replay.saved_rounds import load_rounds, save_rounds
from dpsr_apex.replay.slots import MAX_PRIORITIES, MAX_PRIORITY, priorities_of
from dpsr_apex.replay.store import Rows
from dpsr_apex.replay.survey import Survey
from dpsr_apex.replay.table import Table
from dpsr_apex.replay.transitions import Transitions, contents, pack, unpack
from dpsr_apex.replay.trees import Slots


class Replay:
    """The replay of every method: its sampler, its remover and its recycler follow from the config."""

    def __init__(
        self,
        config: ReplayConfig,
        total_steps: int,
        rng: np.random.Generator,
        environment_steps: int | None = None,
        frame_bytes: int = 0,
    ) -> None:
        """Create an empty replay.

        `environment_steps`: the most steps that the run may take in environments, recycling included.
        `frame_bytes`: the size of every frame, with its checksum, if each state is one frame of this size, otherwise 0.
        """
        self.config = config
        self.t = 0
        self.total_steps = total_steps  # may be changed at any time
        self.counters = Counters()
        self._most_environment_steps = environment_steps
        self._rng = rng
        self._table = Table(config, self.counters, frame_bytes)
        self._recycler = RECYCLERS[config.parts.recycler if config.recycles else "none"](
            config, self._table.index, self._table.store
        )
        self._opens_rounds = config.recycles
        self._rounds = OpenRounds(config, self._table, self._recycler, self.counters)

    @property
    def size(self) -> int:
        """The number of stored transitions."""
        return self._table.size

    @property
    def rounds(self) -> dict[int, Round]:
        """The open recycling rounds, by number."""
        return self._rounds.by_number

    @property
    def exponents(self) -> tuple[float, float]:
        """The sampling exponent alpha(t), as the method uses it, and the replacing exponent gamma(t)."""
        return self._table.exponents(self.t, self.total_steps)

    # The length of the run.

    @property
    def environment_steps(self) -> int:
        """Environment steps so far, except those of results that were lost.

        They are t, the first step of each chain, which does not tick t, and steps whose transitions were not stored.
        """
        unstored = self.counters.chain_steps_dropped + self.counters.chain_steps_late
        return self.t + self.counters.chains + unstored

    @property
    def remaining(self) -> int:
        """Transitions that may be inserted now; steps that open recycling rounds may take are reserved."""
        left = self.total_steps - self.t
        if self._most_environment_steps is not None:
            left = min(left, self._most_environment_steps - self.environment_steps - self._rounds.reserved_steps)
        return max(left, 0)

    @property
    def is_reserving(self) -> bool:
        """Whether `remaining` may increase again, when open rounds end with fewer steps than are reserved for them."""
        is_limited = self._most_environment_steps is not None
        return is_limited and self._rounds.reserved_steps > 0 and self.t < self.total_steps

    @property
    def is_over(self) -> bool:
        """Whether the run has all of its steps."""
        return self.remaining == 0 and not self.is_reserving

    # What is stored.

    @property
    def identities(self) -> Integers:
        """Identity of each stored transition, by slot; a copy."""
        return self._table.slots.identities[self._table.filled].copy()

    @property
    def births(self) -> Integers:
        """Clock t at which each transition was stored, by slot; a copy."""
        return self._table.slots.births[self._table.filled].copy()

    @property
    def gains(self) -> NDArray[np.float32]:
        """Gain of each recycled transition over the one that it replaced, by slot; NaN for all others; a copy.

        The gain is |TD error| + floor when it was recycled, minus the priority of the transition that it replaced.
        """
        return self._table.slots.gains[self._table.filled].copy()

    @property
    def depths(self) -> NDArray[np.int32]:
        """Depth of each stored transition, by slot; a copy.

        The depth is 0 for a played transition, and otherwise the number of recycled steps since a played state.
        """
        return self._table.slots.depths[self._table.filled].copy()

    @property
    def priorities(self) -> Floats:
        """Priority of each stored transition, by slot; a copy."""
        return self._table.trees.priorities[self._table.filled].copy()

    def births_and_priorities(self, limit: int) -> tuple[Integers, Floats]:
        """Return births and priorities of at most `limit` stored transitions, evenly spread over the slots; copies."""
        table = self._table
        filled, step = table.filled, max(-(-table.size // limit), 1)
        return table.slots.births[filled][::step].copy(), table.trees.priorities[filled][::step].copy()

    def survey(self, most: int) -> Survey:
        """Return the numbers of all stored transitions, or of `most` of them spread over the slots, as copies."""
        return self._table.survey(self.t, most)

    def read(self, identities: Integers) -> Transitions:
        """Return the transitions with these identities; raise KeyError naming the lowest that is not stored."""
        missing = np.setdiff1d(identities, self.stored(identities))
        if missing.size:
            raise KeyError(f"transition {missing[0]} is not in the replay")
        return self._table.store.read(self._table.slots_of(identities))

    def stored(self, identities: Integers) -> Integers:
        """Return those of these identities whose transitions are stored, in their order."""
        return self._table.stored(identities)

    def rows_of(self, identities: Integers) -> StoredRows:
        """Return everything about those of these transitions that are stored, in their order; copies."""
        return self._table.rows_of(identities)

    def largest(self, size: int, least: int = 0) -> Integers:
        """Return the identities of the largest stored transitions, of `size` bytes together: all if there are fewer.

        Those of fewer than `least` bytes are left out. A frame counts in every transition that has it.
        """
        return self._table.largest(size, least)

    # Insertion.

    def insert(self, transitions: Transitions, td_errors: Floats | None = None) -> list[Round]:
        """Insert new transitions, one tick of t each; return the recycling rounds that they opened.

        They enter with the maximum priority in the replay, or with priorities from their absolute `td_errors` if given.
        Raise ValueError, without changing anything, if a state has another number of frames than those stored.
        """
        count = len(transitions)
        if td_errors is None:
            priorities = MAX_PRIORITIES[:count] if count <= MAX_PRIORITIES.size else np.full(count, MAX_PRIORITY)
        else:
            priorities = priorities_of(td_errors, self.config.priority_floor, np.arange(count), "inserted transition")
        self._table.admit(transitions)
        self._table.follow_schedules(self.t, self.total_steps)
        self._recycler.observe(transitions)
        arrivals = self._arrivals(transitions, priorities, played(count))
        opened = []
        done = 0
        while done < count:
            due = done + self._recycler.insertions_before_round(self._progress) if self._opens_rounds else count
            self._insert_common(arrivals.rows(done, min(due, count)))
            if due < count and self._is_round_affordable(count - due):
                opened.append(self._open_round(arrivals.rows(due, due + 1)))
            elif due < count:
                self._insert_common(arrivals.rows(due, due + 1))
            done = due + 1
        return opened

    def evict(self, identities: Integers) -> StoredRows:
        """Empty the slots of those of these transitions that are stored, and count them; return what was stored.

        An empty slot is never sampled, and is filled by a later transition.
        """
        return self._table.evict(identities)

    def _arrivals(self, transitions: Transitions, priorities: Floats, lineage: Lineage) -> Arrivals:
        """Return new transitions with the next births and serial numbers."""
        count = len(transitions)
        births = np.arange(self.t + 1, self.t + 1 + count)
        return Arrivals(transitions, priorities, births, self._table.take_serials(count), lineage)

    def _insert_common(self, arrivals: Arrivals) -> None:
        """Insert new transitions, one tick of t each."""
        self._table.place(arrivals, self._rng)
        self.t += len(arrivals.transitions)

    # Sampling.

    def sample(self, batch_size: int) -> Sample:
        """Sample a batch: stratified, with the importance weights of beta(t) over the whole replay; no snapshots."""
        identities, weights, rows = self.sample_rows(batch_size)
        return Sample(identities, weights, rows.transitions())

    def sample_rows(self, batch_size: int) -> tuple[Integers, NDArray[np.float32], Rows]:
        """Sample a batch as `sample` does, with the transitions as they are stored."""
        slots, weights = self.draw(batch_size)
        return self._table.slots.identities[slots], weights, self._table.store.gather(slots)

    def draw(self, batch_size: int) -> tuple[Slots, NDArray[np.float32]]:
        """Return the slots and the weights of a batch; it counts as sampled."""
        if self.size == 0:
            raise ValueError("an empty replay cannot be sampled")
        self._table.follow_schedules(self.t, self.total_steps)
        beta = self.config.bias_annealing.at(self.t, self.total_steps)
        return self._table.sample(self._rng.random(batch_size), beta)

    def update_priorities(self, identities: Integers, td_errors: Floats) -> None:
        """Set priorities from absolute TD errors; those of transitions that have been replaced are counted as stale."""
        priorities = priorities_of(td_errors, self.config.priority_floor, identities, "transition")
        self._table.update_priorities(identities, priorities)

    # Recycling.

    def answer(self, number: int, chains: Chains) -> None:
        """Add the results of recycling for some candidates of a round; the last result closes the round.

        Results for a round that has ended, and duplicate results, are counted and dropped. Raise ValueError, without
        changing anything, if the chains are invalid or their candidates are not of this round.
        """
        if complete := self._rounds.collect(number, chains):
            self.counters.rounds_closed += 1
            self._end_round(complete)

    def expire(self, number: int) -> None:
        """End a round with the results so far; raise KeyError, without changing anything, if it has ended."""
        round_ = self.rounds[number]
        self.counters.rounds_expired += 1
        self._end_round(round_)

    def count_late(self, chains: int, steps: int) -> None:
        """Count results that came after the end of their round."""
        self._rounds.count_late(chains, steps)

    @property
    def _progress(self) -> Progress:
        counters = self.counters
        lost = counters.candidates_lost * self.config.recycle_steps  # these steps may have been taken as well
        return Progress(
            self.t,
            until_full=self.config.capacity - self.size,
            played=self.t - counters.chain_steps_stored,
            recycling=counters.chain_steps + lost + self._rounds.reserved_steps,
        )

    def _is_round_affordable(self, insertions: int) -> bool:
        """Whether a round, and this number of insertions, fit into the run's environment steps."""
        if self._most_environment_steps is None:
            return True
        steps = self.config.recycle_candidates * self.config.recycle_steps + insertions
        return self.environment_steps + self._rounds.reserved_steps + steps <= self._most_environment_steps

    def _open_round(self, waiting: Arrivals) -> Round:
        round_ = self._rounds.open(waiting, self._rng)
        self.t += 1
        return round_

    def _end_round(self, round_: Round) -> None:
        """End a round as in the paper; then insert the later steps of all chains as new transitions."""
        later = self._rounds.end(round_, self.t, max(self.total_steps - self.t, 0), self._rng)
        if later is not None:
            self._insert_later_steps(later)

    def _insert_later_steps(self, steps: LaterSteps) -> None:
        self._insert_common(self._arrivals(*steps))

    # The whole state.

    def check_valid(self) -> tuple[bool, str]:
        """Return whether every invariant holds, and the first that does not."""
        valid, reason = self._table.check_valid(self.t)
        if not valid:
            return False, reason
        counters, rounds = self.counters, self.rounds.values()
        stored = self.t + counters.recycled - counters.replaced - counters.quarantined
        if self.size + len(rounds) != stored:
            return False, "transitions were lost or created"
        if self._table.next_serial != self.t + counters.recycled:
            return False, "serial numbers do not match the insertions"
        return counters.check_valid(len(rounds), sum(round_.candidates.size for round_ in rounds))

    def save(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """Return the whole state, with the open rounds, as plain facts (JSON) and arrays."""
        numbers, parts = self._columns
        packed = {start + name: array for start, part in parts.items() for name, array in pack(part).items()}
        return self._facts, numbers | packed

    def load(self, facts: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> None:
        """Restore a state returned by `save`; this replay must be new, and have the same config."""
        if self.t:
            raise ValueError(f"a state can be loaded only into a new replay, but this one has {self.t} insertions")
        self.t, self._table.next_serial = facts["t"], facts["next_serial"]
        self.counters.load(facts["counters"])
        self._rng.bit_generator.state = facts["generator"]
        for name, array in self._recycler.arrays.items():
            array[:] = arrays[name]
        self._table.load(arrays, unpack(arrays), (facts["alpha"], facts["gamma"]))
        self.rounds.update(load_rounds(arrays))

    def feed(self, update: Callable[[bytes], object]) -> None:
        """Pass everything that future results depend on to `update`, for a digest.

        Unlike the arrays of `save`, it does not depend on which transitions share their frames in memory.
        """
        numbers, parts = self._columns
        update(repr(self._facts).encode())
        for name, array in (numbers | {"leaves": self._table.trees.arrays.leaves}).items():
            update(name.encode())
            update(array.tobytes())
        for part in parts.values():
            for content in contents(part):
                update(content)

    @property
    def _facts(self) -> dict[str, Any]:
        return {
            "t": self.t,
            "size": self.size,
            "next_serial": self._table.next_serial,
            "alpha": self._table.trees.alpha,
            "gamma": self._table.trees.gamma,
            "counters": asdict(self.counters),
            "generator": self._rng.bit_generator.state,
        }

    @property
    def _columns(self) -> tuple[dict[str, NDArray[Any]], dict[str, Transitions]]:
        """Return all columns of numbers by name, and all transitions by the beginning of their columns' names."""
        recycler = {name: array.copy() for name, array in self._recycler.arrays.items()}
        of_rounds, in_rounds = save_rounds(list(self.rounds.values()))
        return self._table.columns() | recycler | of_rounds, {"": self._table.transitions()} | in_rounds
