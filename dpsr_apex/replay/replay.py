"""Replay: how transitions are stored, sampled, replaced and recycled.

Pure state: no sockets, files or wall clock, and no random state except the generator that is passed in. The only clock
is t, the number of transitions inserted so far.

A transition is named by its identity, a number that is never reused: its serial number times the capacity, plus its
slot. So the slot follows by arithmetic, a stale identity is found by one comparison, and the oldest transition has the
lowest identity.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpsr_apex.config import ReplayConfig
from dpsr_apex.replay.open_rounds import load_rounds, save_rounds
from dpsr_apex.replay.records import (
    EMPTY,
    SLOT_COLUMNS,
    Arrivals,
    Chain,
    Chains,
    Counters,
    Floats,
    Integers,
    Lineage,
    Round,
    Sample,
    SlotColumns,
    StoredRows,
    played,
)
from dpsr_apex.replay.recyclers import RECYCLERS, Progress
from dpsr_apex.replay.removers import REMOVERS
from dpsr_apex.replay.samplers import SAMPLERS
from dpsr_apex.replay.slots import MAX_PRIORITIES, MAX_PRIORITY, NO_SLOTS, SlotIndex, add_floor
from dpsr_apex.replay.store import Rows, Store
from dpsr_apex.replay.survey import Survey, survey_of
from dpsr_apex.replay.transitions import Transitions, concatenate, contents, pack, unpack
from dpsr_apex.replay.trees import PriorityTrees, Slots

GREATEST_TD_ERROR = 1e50  # above this, powers of a priority would overflow


class BadPriority(ValueError):
    """Raised for a TD error that cannot become a priority; nothing was changed."""


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
        self.size = 0
        self.counters = Counters()
        self.rounds: dict[int, Round] = {}  # the open ones, by number
        self.total_steps = total_steps  # may be changed at any time
        self._most_environment_steps = environment_steps
        self._rng = rng
        self._next_serial = 0
        self._depth = 0  # frames per state; 0 before the first transition
        self._store = Store(config.capacity, frame_bytes)
        sampler = SAMPLERS[config.parts.sampler]
        self._samples_by_priority = sampler.by_priority
        self._has_final_exponents = False  # whether the trees have those that never change
        self._trees = PriorityTrees(config.capacity, *self.exponents)
        self._index = SlotIndex(self._trees, self._slots.identities)
        self._sampler = sampler(self._trees)
        self._remover = REMOVERS[config.parts.remover](config, self._index)
        self._opens_rounds = config.recycles
        self._recycler = RECYCLERS[config.parts.recycler if config.recycles else "none"](
            config, self._index, self._store
        )

    @property
    def exponents(self) -> tuple[float, float]:
        """The sampling exponent alpha(t), as the method uses it, and the replacing exponent gamma(t)."""
        alpha = self.config.sampling_exponent.at(self.t, self.total_steps) if self._samples_by_priority else 0.0
        return alpha, self.config.replacing_exponent.at(self.t, self.total_steps)

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
            left = min(left, self._most_environment_steps - self.environment_steps - self._reserved_steps)
        return max(left, 0)

    @property
    def is_reserving(self) -> bool:
        """Whether `remaining` may increase again, when open rounds end with fewer steps than are reserved for them."""
        return self._most_environment_steps is not None and self._reserved_steps > 0 and self.t < self.total_steps

    @property
    def is_over(self) -> bool:
        """Whether the run has all of its steps."""
        return self.remaining == 0 and not self.is_reserving

    @property
    def _slots(self) -> SlotColumns:
        """What is stored about each slot."""
        return self._store.slots

    @property
    def _filled_slots(self) -> Slots:
        """The slots that hold a transition, in order."""
        return np.flatnonzero(self._slots.identities != EMPTY)

    @property
    def _filled(self) -> slice | Slots:
        """These slots as an index: a slice, which is faster, unless transitions were evicted and not replaced yet."""
        is_packed = self.size == self.config.capacity or self._slots.identities[: self.size].min(initial=0) != EMPTY
        return slice(0, self.size) if is_packed else self._filled_slots

    @property
    def identities(self) -> Integers:
        """Identity of each stored transition, by slot; a copy."""
        return self._slots.identities[self._filled].copy()

    @property
    def births(self) -> Integers:
        """Clock t at which each transition was stored, by slot; a copy."""
        return self._slots.births[self._filled].copy()

    @property
    def gains(self) -> NDArray[np.float32]:
        """Gain of each recycled transition over the one that it replaced, by slot; NaN for all others; a copy.

        The gain is |TD error| + floor when it was recycled, minus the priority of the transition that it replaced.
        """
        return self._slots.gains[self._filled].copy()

    @property
    def depths(self) -> NDArray[np.int32]:
        """Depth of each stored transition, by slot; a copy.

        The depth is 0 for a played transition, and otherwise the number of recycled steps since a played state.
        """
        return self._slots.depths[self._filled].copy()

    @property
    def priorities(self) -> Floats:
        """Priority of each stored transition, by slot; a copy."""
        return self._trees.priorities[self._filled].copy()

    def births_and_priorities(self, limit: int) -> tuple[Integers, Floats]:
        """Return births and priorities of at most `limit` stored transitions, evenly spread over the slots; copies."""
        filled, step = self._filled, max(-(-self.size // limit), 1)
        return self._slots.births[filled][::step].copy(), self._trees.priorities[filled][::step].copy()

    def survey(self, most: int, rng: np.random.Generator) -> Survey:
        """Return the numbers of every stored transition, or of at most `most` of them at random, as copies."""
        slots = {column.name: getattr(self._slots, column.name) for column in SLOT_COLUMNS}
        names = ("a_tm1", "r_t", "terminal", "episode_steps")
        columns = slots | {name: self._store[name] for name in names} | {"priorities": self._trees.priorities}
        return survey_of(self.t, self.config.capacity, self._filled_slots, columns, most, rng)

    def insert(self, transitions: Transitions, td_errors: Floats | None = None) -> list[Round]:
        """Insert new transitions, one tick of t each; return the recycling rounds that they opened.

        They enter with the maximum priority in the replay, or with priorities from their absolute `td_errors` if given.
        Raise ValueError, without changing anything, if a state has another number of frames than those stored.
        """
        depth = self._check_depth(transitions)
        count = len(transitions)
        if td_errors is None:
            priorities = MAX_PRIORITIES[:count] if count <= MAX_PRIORITIES.size else np.full(count, MAX_PRIORITY)
        else:
            priorities = self._priorities_of(td_errors, np.arange(count), "inserted transition")
        self._depth = depth
        self._follow_schedules()
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

    def sample(self, batch_size: int) -> Sample:
        """Sample a batch: stratified, with the importance weights of beta(t) over the whole replay; no snapshots."""
        identities, weights, rows = self.sample_rows(batch_size)
        return Sample(identities, weights, rows.transitions())

    def sample_rows(self, batch_size: int) -> tuple[Integers, NDArray[np.float32], Rows]:
        """Sample a batch as `sample` does, with the transitions as they are stored."""
        slots, weights = self.draw(batch_size)
        return self._slots.identities[slots], weights, self._store.gather(slots)

    def draw(self, batch_size: int) -> tuple[Slots, NDArray[np.float32]]:
        """Return the slots and the weights of a batch; it counts as sampled."""
        if self.size == 0:
            raise ValueError("an empty replay cannot be sampled")
        self._follow_schedules()
        beta = self.config.bias_annealing.at(self.t, self.total_steps)
        slots, weights = self._sampler.sample(self._rng.random(batch_size), beta)
        self.counters.sampled += batch_size
        if self.counters.chains:  # otherwise nothing that is stored was recycled
            self.counters.sampled_recycled += int(np.count_nonzero(self._slots.depths[slots]))
        return slots, weights

    def update_priorities(self, identities: Integers, td_errors: Floats) -> None:
        """Set priorities from absolute TD errors; those of transitions that have been replaced are counted as stale."""
        priorities = self._priorities_of(td_errors, identities, "transition")
        slots = self._index.update(identities, priorities)
        self._sampler.update(slots)
        self.counters.priorities_updated += slots.size
        self.counters.priorities_stale += identities.size - slots.size

    def read(self, identities: Integers) -> Transitions:
        """Return the transitions with these identities; raise KeyError naming the first that is not stored."""
        slots = identities % self.config.capacity
        missing = identities[(self._slots.identities[slots] != identities) | (identities < 0)]
        if missing.size:
            raise KeyError(f"transition {missing[0]} is not in the replay")
        return self._store.read(slots)

    def slots_of(self, identities: Integers) -> Integers:
        """Return the slots of those of these transitions that are stored, in their order."""
        slots = identities % self.config.capacity
        stored: Integers = slots[(self._slots.identities[slots] == identities) & (identities >= 0)]
        return stored

    def rows_in(self, slots: Integers) -> StoredRows:
        """Return everything stored in these slots; copies."""
        columns = SlotColumns(*(getattr(self._slots, column.name)[slots] for column in SLOT_COLUMNS))
        return StoredRows(columns, self._trees.priorities[slots], self._store.read(slots))

    def evict(self, identities: Integers) -> StoredRows:
        """Empty the slots of those of these transitions that are stored, and count them; return what was stored.

        An empty slot is never sampled, and is filled by a later transition.
        """
        slots = self.slots_of(np.unique(identities))
        evicted = self.rows_in(slots)
        if slots.size:
            self._clear(slots)
        return evicted

    def largest(self, size: int, least: int = 0) -> Integers:
        """Return the identities of the largest stored transitions, of `size` bytes together: all if there are fewer.

        Those of fewer than `least` bytes are left out. A frame counts in every transition that has it.
        """
        slots = self._filled_slots
        sizes = self._store.sizes(slots)
        order = np.argsort(-sizes, kind="stable")[: np.count_nonzero(sizes >= least)]
        count = np.searchsorted(np.add.accumulate(sizes[order]), size) + 1
        largest: Integers = self._slots.identities[slots[order[:count]]]
        return largest

    def count_late(self, chains: int, steps: int) -> None:
        """Count results that came after the end of their round."""
        self.counters.answers_late += chains
        self.counters.chain_steps_late += steps

    def answer(self, number: int, chains: Chains) -> None:
        """Add the results of recycling for some candidates of a round; the last result closes the round.

        Results for a round that has ended, and duplicate results, are counted and dropped. Raise ValueError, without
        changing anything, if the chains are invalid or their candidates are not of this round.
        """
        self._check_chains(chains)
        round_ = self.rounds.get(number)
        if round_ is None:
            self.count_late(chains.identities.size, len(chains.transitions))
            return
        strangers = np.setdiff1d(chains.identities, round_.candidates)
        if strangers.size:
            raise ValueError(f"transition {strangers[0]} is not a candidate of round {number}")
        for identity, chain in chains.split():
            if identity in round_.answers:
                self.counters.answers_late += 1
                self.counters.chain_steps_late += len(chain.transitions)
            else:
                round_.answers[identity] = chain
        if len(round_.answers) == round_.candidates.size:
            self.counters.rounds_closed += 1
            self._end_round(round_)

    def expire(self, number: int) -> None:
        """End a round with the results so far; raise KeyError, without changing anything, if it has ended."""
        round_ = self.rounds[number]
        self.counters.rounds_expired += 1
        self._end_round(round_)

    def _follow_schedules(self) -> None:
        """Rebuild the trees if alpha(t) or gamma(t) differs too much from the exponents of their leaves."""
        if self._has_final_exponents:
            return
        alpha, gamma = self.exponents
        moved = max(abs(alpha - self._trees.alpha), abs(gamma - self._trees.gamma))
        if moved > self.config.exponent_tolerance:
            self._trees.rebuild(alpha, gamma)
            self._sampler.rebuild()
        schedules = self.config.sampling_exponent, self.config.replacing_exponent
        self._has_final_exponents = all(schedule.is_constant for schedule in schedules)

    def _priorities_of(self, td_errors: Floats, names: Integers, what: str) -> Floats:
        if td_errors.shape != names.shape:  # compiled code would read past the end
            raise ValueError(f"there are {td_errors.size} TD errors for {names.size} transitions")
        priorities = np.empty(td_errors.size)
        bad = add_floor(priorities, td_errors, self.config.priority_floor, GREATEST_TD_ERROR)
        if bad >= 0:
            raise BadPriority(
                f"{what} {names[bad]} has the absolute TD error {td_errors[bad]}; "
                f"it must be a number from 0 to {GREATEST_TD_ERROR:g}"
            )
        return priorities

    def _check_depth(self, transitions: Transitions) -> int:
        """Return the number of frames in every state, 0 before the first; raise ValueError if one has another number.

        Such states could be stored, but not trained on in one batch.
        """
        if self._store.frame_bytes:
            self._store.check_frames(transitions)
            return 1
        stacks = [*transitions.s_tm1, *transitions.s_t]
        depth = self._depth or (len(stacks[0]) if stacks else 0)
        if set(map(len, stacks)) - {depth} or (stacks and depth == 0):
            raise ValueError(f"every state must have the same number of frames, {depth or 'at least 1'}")
        return depth

    def _check_chains(self, chains: Chains) -> None:
        identities, lengths, rewards, transitions, td_errors = chains
        if not identities.size == lengths.size == rewards.size:
            counts = f"{lengths.size} lengths and {rewards.size} rewards"
            raise ValueError(f"there are {counts} for {identities.size} chains")
        is_reward_bounded = np.abs(rewards) <= GREATEST_TD_ERROR
        wrong = np.flatnonzero((lengths < 1) | (lengths > self.config.recycle_steps) | ~is_reward_bounded)
        if wrong.size:
            raise ValueError(
                f"the chain of transition {identities[wrong[0]]} has {lengths[wrong[0]]} steps and the reward "
                f"{rewards[wrong[0]]}; it must have 1 to {self.config.recycle_steps} steps and a finite reward"
            )
        if lengths.sum() != len(transitions):
            raise ValueError(f"there are {len(transitions)} transitions in chains of {lengths.sum()} steps")
        self._priorities_of(td_errors, np.repeat(identities, lengths), "recycled transition")
        self._check_depth(transitions)

    @property
    def _progress(self) -> Progress:
        counters = self.counters
        lost = counters.candidates_lost * self.config.recycle_steps  # these steps may have been taken as well
        return Progress(
            self.t,
            until_full=self.config.capacity - self.size,
            played=self.t - counters.chain_steps_stored,
            recycling=counters.chain_steps + lost + self._reserved_steps,
        )

    @property
    def _reserved_steps(self) -> int:
        """Environment steps that the candidates of open rounds may take."""
        return self.config.recycle_steps * sum(round_.candidates.size for round_ in self.rounds.values())

    def _is_round_affordable(self, insertions: int) -> bool:
        """Whether a round, and this number of insertions, fit into the run's environment steps."""
        if self._most_environment_steps is None:
            return True
        steps = self.config.recycle_candidates * self.config.recycle_steps + insertions
        return self.environment_steps + self._reserved_steps + steps <= self._most_environment_steps

    def _arrivals(self, transitions: Transitions, priorities: Floats, lineage: Lineage) -> Arrivals:
        """Return new transitions with the next births and serial numbers."""
        births = np.arange(self.t + 1, self.t + 1 + len(transitions))
        return Arrivals(transitions, priorities, births, self._take_serials(len(transitions)), lineage)

    def _take_serials(self, count: int) -> Integers:
        self._next_serial += count
        return np.arange(self._next_serial - count, self._next_serial)

    def _insert_common(self, arrivals: Arrivals) -> None:
        """Insert new transitions, one tick of t each."""
        self._place(arrivals)
        self.t += len(arrivals.transitions)

    def _place(self, arrivals: Arrivals) -> None:
        """Fill empty slots, then replace: the method's remover chooses the slots."""
        count = len(arrivals.transitions)
        empty = NO_SLOTS if self._remover.is_ring else self._index.take_empty(count)
        if empty.size:
            self._write(empty, arrivals.rows(0, empty.size))
        if empty.size < count:
            rest = arrivals.rows(empty.size, count)
            slots, replaced = self._remover.replace(rest, self._rng)
            self._complete(slots, rest, replaced)

    def _write(self, slots: Slots, arrivals: Arrivals) -> None:
        """Write arrival i into `slots[i]`."""
        self._complete(slots, arrivals, self._index.write(slots, arrivals))

    def _complete(self, slots: Slots, arrivals: Arrivals, replaced: Floats) -> None:
        """Write the data that is not in the index, and count the replaced transitions; priority inf: slot was empty."""
        count, ages, priorities = self._store.write_about(slots, arrivals, replaced)
        self.size += slots.size - count
        self.counters.replaced += count
        self.counters.replaced_age += ages
        self.counters.replaced_priority += priorities
        self._store.write(slots, arrivals.transitions)
        self._sampler.update(slots)

    def _clear(self, slots: Slots) -> None:
        """Empty these slots, so that they are like slots that were never filled."""
        self._index.clear(slots)
        self._store.clear(slots)
        self._sampler.update(slots)
        self.size -= slots.size
        self.counters.quarantined += slots.size

    def _open_round(self, waiting: Arrivals) -> Round:
        slots = self._recycler.candidates(self._rng)
        number = self.counters.rounds_opened
        depths, recycles = (column[slots].astype(np.int64) for column in (self._slots.depths, self._slots.recycles))
        stored = self._store.read(slots)
        round_ = Round(number, self._slots.identities[slots], stored, depths, recycles, waiting)
        self.rounds[number] = round_
        self.counters.rounds_opened += 1
        self.counters.candidates_drawn += slots.size
        self.t += 1
        return round_

    def _end_round(self, round_: Round) -> None:
        """End a round as in the paper; then insert the later steps of all chains as new transitions."""
        del self.rounds[round_.number]
        answered = [identity for identity in round_.candidates.tolist() if identity in round_.answers]
        present = [name for name in answered if self._slots.identities[name % self.config.capacity] == name]
        self.counters.candidates_lost += round_.candidates.size - len(answered)
        self.counters.candidates_stale += len(answered) - len(present)
        self.counters.candidates_applied += len(present)
        if present:
            self._store_first_steps(round_, present)
        else:
            self._place(round_.waiting)
        if answered:
            self._insert_later_steps(round_, answered, max(self.total_steps - self.t, 0))

    def _store_first_steps(self, round_: Round, present: list[int]) -> None:
        """Write each result into its candidate's slot, except the weakest: the waiting transition gets that slot."""
        peak = self._trees.greatest
        places = {identity: place for place, identity in enumerate(round_.candidates.tolist())}
        weakest = min(present, key=lambda name: float(round_.answers[name].td_errors[0]))
        for identity in present:
            if identity != weakest:
                lineage = _lineage_of_chains(round_, np.array([places[identity]]))
                self._store_recycled(identity, round_.answers[identity], lineage, peak)
        priority = round_.waiting.priorities
        waiting = round_.waiting._replace(priorities=np.where(np.isnan(priority), peak, priority))
        self._write(np.array([weakest % self.config.capacity]), waiting)

    def _insert_later_steps(self, round_: Round, answered: list[int], most: int) -> None:
        """Insert all but the first step of each chain, also of stale candidates, at most `most` of them."""
        chains = [round_.answers[identity] for identity in answered]
        lengths = np.array([len(chain.transitions) for chain in chains])
        steps = concatenate([chain.transitions for chain in chains])
        self._recycler.observe(steps)
        starts = np.repeat(np.flatnonzero(np.isin(round_.candidates, answered)), lengths)  # places of the candidates
        places = np.arange(len(steps)) - np.repeat(np.cumsum(lengths) - lengths, lengths)  # of each step in its chain
        kept = np.flatnonzero(places > 0)[:most]
        self.counters.chains += len(chains)
        self.counters.chain_steps += len(steps)
        self.counters.chain_reward += sum(chain.reward for chain in chains)
        best = max(chain.reward for chain in chains)
        self.counters.chain_reward_best = max(self.counters.chain_reward_best, best)
        self.counters.chain_steps_stored += kept.size
        self.counters.chain_steps_dropped += len(steps) - len(chains) - kept.size
        if kept.size:
            own = np.concatenate([chain.td_errors for chain in chains])[kept] + self.config.priority_floor
            priorities = own if self.config.initial_priority == "td_error" else np.full(kept.size, MAX_PRIORITY)
            first = _lineage_of_chains(round_, starts[kept])
            lineage = first._replace(depths=first.depths + places[kept])
            self._insert_common(self._arrivals(steps.pick(kept), priorities, lineage))

    def _store_recycled(self, candidate: int, chain: Chain, lineage: Lineage, peak: float) -> None:
        """Write the first step of a chain into the slot of its candidate."""
        slot = candidate % self.config.capacity
        own = float(chain.td_errors[0]) + self.config.priority_floor
        gain = own - float(self._trees.priorities[slot])
        priority = peak if self.config.recycle_at_max_priority else own
        first = chain.transitions.rows(0, 1)
        arrival = Arrivals(first, np.array([priority]), np.array([self.t]), self._take_serials(1), lineage)
        self._write(np.array([slot]), arrival)
        self._slots.gains[slot] = gain
        self.counters.recycled += 1
        self.counters.recycled_gain += gain

    def check_valid(self) -> tuple[bool, str]:
        """Return whether every invariant holds, and the first that does not."""
        counters, size = self.counters, self.size
        slots = self._filled_slots
        names, births = self._slots.identities[slots], self._slots.births[slots]
        by_age = np.argsort(names)
        pending = sum(round_.candidates.size for round_ in self.rounds.values())
        answered = counters.candidates_applied + counters.candidates_stale
        accounted = answered + counters.candidates_lost + pending
        ended = counters.rounds_closed + counters.rounds_expired
        for holds, reason in (
            (0 <= size <= self.config.capacity, "more transitions are stored than the capacity"),
            (slots.size == size, "another number of slots has an identity than is stored"),
            ((names % self.config.capacity == slots).all(), "an identity does not belong to its slot"),
            ((names >= 0).all(), "an identity is negative"),
            ((names // self.config.capacity < self._next_serial).all(), "an identity is from the future"),
            ((np.diff(births[by_age]) >= 0).all(), "the order of identities is not the order of births"),
            ((births <= self.t).all() and (births > 0).all(), "a birth is not between 1 and t"),
            (
                size + len(self.rounds) == self.t + counters.recycled - counters.replaced - counters.quarantined,
                "transitions were lost or created",
            ),
            (self._next_serial == self.t + counters.recycled, "serial numbers do not match the insertions"),
            (counters.rounds_opened == ended + len(self.rounds), "a round was neither closed nor expired"),
            (counters.candidates_drawn == accounted, "a candidate is neither applied nor stale nor lost"),
            (counters.chains == answered, "a chain belongs to no answered candidate"),
            (
                counters.chain_steps == counters.chains + counters.chain_steps_stored + counters.chain_steps_dropped,
                "a step of a chain was neither stored nor dropped",
            ),
            (not (np.isfinite(self.gains) & (self.depths < 1)).any(), "a recycled transition has no depth"),
            (_is_consistent(self._slots), "only a part of the lineage of a transition is recorded"),
            (0 <= counters.sampled_recycled <= counters.sampled, "more recycled transitions were sampled than all"),
            (self._store.has_states(slots), "a stored transition has no state"),
            (self._store.is_blank(np.delete(np.arange(self.config.capacity), slots)), "an empty slot has data"),
        ):
            if not holds:
                return False, reason
        valid, reason = self._trees.check_valid(slots)
        return self._sampler.check_valid() if valid else (valid, reason)

    def save(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """Return the whole state, with the open rounds, as plain facts (JSON) and arrays."""
        numbers, parts = self._columns
        packed = {start + name: array for start, part in parts.items() for name, array in pack(part).items()}
        return self._facts, numbers | packed

    def load(self, facts: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> None:
        """Restore a state returned by `save`; this replay must be new, and have the same config."""
        if self.t:
            raise ValueError(f"a state can be loaded only into a new replay, but this one has {self.t} insertions")
        self.t, self.size, self._next_serial = facts["t"], facts["size"], facts["next_serial"]
        self.counters = Counters(**facts["counters"])
        self._rng.bit_generator.state = facts["generator"]
        slots = arrays["identities"] % self.config.capacity
        for column in SLOT_COLUMNS:
            if column.name in arrays:  # checkpoints of earlier versions lack the newest columns
                getattr(self._slots, column.name)[slots] = arrays[column.name]
        for name, array in self._recycler.arrays.items():
            array[:] = arrays[name]
        transitions = unpack(arrays)
        self._depth = self._check_depth(transitions)
        self._store.write(slots, transitions)
        self._trees.load(slots, arrays["priorities"], facts["alpha"], facts["gamma"])
        self._has_final_exponents = False
        self._sampler.rebuild()
        self.rounds = load_rounds(arrays)

    def feed(self, update: Callable[[bytes], object]) -> None:
        """Pass everything that future results depend on to `update`, for a digest.

        Unlike the arrays of `save`, it does not depend on which transitions share their frames in memory.
        """
        numbers, parts = self._columns
        update(repr(self._facts).encode())
        for name, array in (numbers | {"leaves": self._trees.arrays.leaves}).items():
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
            "next_serial": self._next_serial,
            "alpha": self._trees.alpha,
            "gamma": self._trees.gamma,
            "counters": asdict(self.counters),
            "generator": self._rng.bit_generator.state,
        }

    @property
    def _columns(self) -> tuple[dict[str, NDArray[Any]], dict[str, Transitions]]:
        """Return all columns of numbers by name, and all transitions by the beginning of their columns' names."""
        slots = {column.name: getattr(self._slots, column.name)[self._filled].copy() for column in SLOT_COLUMNS}
        recycler = {name: array.copy() for name, array in self._recycler.arrays.items()}
        of_rounds, in_rounds = save_rounds(list(self.rounds.values()))
        numbers = slots | recycler | {"priorities": self.priorities} | of_rounds
        return numbers, {"": self._store.read(self._filled_slots)} | in_rounds


def _lineage_of_chains(round_: Round, places: Integers) -> Lineage:
    """Return the lineage of the first step from the state of each candidate, given their places in the round."""
    depths, recycles = np.maximum(round_.depths[places], 1), round_.recycles[places] + 1
    return Lineage(depths, recycles, round_.candidates[places])


def _is_consistent(slots: SlotColumns) -> bool:
    """Whether each transition is either played or has a recycled state; a checkpoint may lack what recycled it."""
    recycled = slots.recycles > 0
    return bool((recycled == (slots.origins >= 0)).all() and (slots.depths[recycled] > 0).all())
