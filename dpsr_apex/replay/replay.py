"""Replay: how transitions are stored, sampled, replaced and recycled.

Pure state: no sockets, files or wall clock, and no random state except the generator that is passed in. The only clock
is t, the number of transitions inserted so far.

A transition is named by its identity, a number that is never reused: its serial number times the capacity, plus its
slot. So the slot follows by arithmetic, a stale identity is found by one comparison, and the oldest transition has the
lowest identity.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpsr_apex.config import ReplayConfig
from dpsr_apex.replay.records import (
    SLOT_COLUMNS,
    Arrivals,
    Chain,
    Chains,
    Counters,
    Floats,
    Integers,
    Round,
    Sample,
    SlotColumns,
)
from dpsr_apex.replay.recyclers import RECYCLERS, Progress
from dpsr_apex.replay.removers import REMOVERS
from dpsr_apex.replay.samplers import SAMPLERS
from dpsr_apex.replay.slots import MAX_PRIORITY, SlotIndex, first_not_within, swap_in
from dpsr_apex.replay.transitions import Transitions, blank, concatenate, pack, read_rows, to_lists, unpack, write_rows
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
    ) -> None:
        self.config = config
        self.t = 0
        self.size = 0
        self.counters = Counters()
        self.rounds: dict[int, Round] = {}  # the open ones, by number
        self._total_steps = total_steps
        self._most_environment_steps = environment_steps
        self._rng = rng
        self._next_serial = 0
        self._slots = SlotColumns(*(column.empty(config.capacity) for column in SLOT_COLUMNS))
        self._store = blank(config.capacity)
        sampler = SAMPLERS[config.parts.sampler]
        self._samples_by_priority = sampler.by_priority
        self._trees = PriorityTrees(config.capacity, *self.exponents)
        self._index = SlotIndex(self._trees, self._slots.identities)
        self._sampler = sampler(self._trees)
        self._remover = REMOVERS[config.parts.remover](config, self._index)
        self._recycler = RECYCLERS[config.parts.recycler if config.recycles else "none"](
            config, self._index, self._store
        )

    @property
    def exponents(self) -> tuple[float, float]:
        """The sampling exponent alpha(t), as the method uses it, and the replacing exponent gamma(t)."""
        alpha = self.config.sampling_exponent.at(self.t, self._total_steps) if self._samples_by_priority else 0.0
        return alpha, self.config.replacing_exponent.at(self.t, self._total_steps)

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
        left = self._total_steps - self.t
        if self._most_environment_steps is not None:
            left = min(left, self._most_environment_steps - self.environment_steps - self._reserved_steps)
        return max(left, 0)

    @property
    def is_reserving(self) -> bool:
        """Whether `remaining` may increase again, when open rounds end with fewer steps than are reserved for them."""
        return self._most_environment_steps is not None and self._reserved_steps > 0 and self.t < self._total_steps

    @property
    def is_over(self) -> bool:
        """Whether the run has all of its steps."""
        return self.remaining == 0 and not self.is_reserving

    @property
    def identities(self) -> Integers:
        """Identity of each stored transition, by slot; a copy."""
        return self._slots.identities[: self.size].copy()

    @property
    def births(self) -> Integers:
        """Clock t at which each transition was stored, by slot; a copy."""
        return self._slots.births[: self.size].copy()

    @property
    def gains(self) -> NDArray[np.float32]:
        """Gain of each recycled transition over the one that it replaced, by slot; NaN for all others; a copy.

        The gain is |TD error| + floor when it was recycled, minus the priority of the transition that it replaced.
        """
        return self._slots.gains[: self.size].copy()

    @property
    def depths(self) -> NDArray[np.int32]:
        """Depth of each stored transition, by slot; a copy.

        The depth is 0 for a played transition, and otherwise the number of recycled steps since a played state.
        """
        return self._slots.depths[: self.size].copy()

    @property
    def priorities(self) -> Floats:
        """Priority of each stored transition, by slot; a copy."""
        return self._trees.priorities[: self.size].copy()

    def births_and_priorities(self, limit: int) -> tuple[Integers, Floats]:
        """Return births and priorities of at most `limit` stored transitions, evenly spread over the slots; copies."""
        spread = slice(0, self.size, max(-(-self.size // limit), 1))
        return self._slots.births[spread].copy(), self._trees.priorities[spread].copy()

    def insert(self, transitions: Transitions, td_errors: Floats | None = None) -> list[Round]:
        """Insert new transitions, one tick of t each; return the recycling rounds that they opened.

        They enter with the maximum priority in the replay, or with priorities from their absolute `td_errors` if given.
        Raise ValueError, without changing anything, if a state has another number of frames than those stored.
        """
        self._check_depth(transitions)
        count = len(transitions)
        if td_errors is None:
            priorities = np.full(count, MAX_PRIORITY)
        else:
            priorities = self._priorities_of(td_errors, np.arange(count), "inserted transition")
        self._follow_schedules()
        self._recycler.observe(transitions)
        arrivals = self._arrivals(transitions, priorities, np.zeros(count, dtype=np.int64))
        opened = []
        done = 0
        while done < count:
            due = done + self._recycler.insertions_before_round(self._progress)
            self._insert_common(arrivals.rows(done, min(due, count)))
            if due < count and self._is_round_affordable(count - due):
                opened.append(self._open_round(arrivals.rows(due, due + 1)))
            elif due < count:
                self._insert_common(arrivals.rows(due, due + 1))
            done = due + 1
        return opened

    def sample(self, batch_size: int) -> Sample:
        """Sample a batch: stratified, with the importance weights of beta(t) over the whole replay."""
        if self.size == 0:
            raise ValueError("an empty replay cannot be sampled")
        self._follow_schedules()
        beta = self.config.bias_annealing.at(self.t, self._total_steps)
        slots, weights = self._sampler.sample(self._rng.random(batch_size), beta)
        self.counters.sampled += batch_size
        self.counters.sampled_recycled += int((self._slots.depths[slots] > 0).sum())
        return Sample(self._slots.identities[slots], weights, read_rows(self._store, slots))

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
        return read_rows(self._store, slots)

    def describe(self, slots: Integers) -> dict[str, list[Any]]:
        """Return everything stored in these slots as plain values: the rows of each column, by name."""
        kept = {column.name: getattr(self._slots, column.name)[slots].tolist() for column in SLOT_COLUMNS}
        priorities = {"priorities": self._trees.priorities[slots].tolist()}
        return kept | priorities | to_lists(read_rows(self._store, slots))

    def answer(self, number: int, chains: Chains) -> None:
        """Add the results of recycling for some candidates of a round; the last result closes the round.

        Results for a round that has ended, and duplicate results, are counted and dropped. Raise ValueError, without
        changing anything, if the chains are invalid or their candidates are not of this round.
        """
        self._check_chains(chains)
        round_ = self.rounds.get(number)
        if round_ is None:
            self.counters.answers_late += chains.identities.size
            self.counters.chain_steps_late += len(chains.transitions)
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

    def expire(self, number: int, ticks: bool = True) -> None:
        """End a round with the results so far; raise KeyError, without changing anything, if it has ended.

        Without `ticks`, t stays as it is: the later steps of chains are dropped.
        """
        round_ = self.rounds[number]
        self.counters.rounds_expired += 1
        self._end_round(round_, ticks)

    def _follow_schedules(self) -> None:
        """Rebuild the trees if alpha(t) or gamma(t) differs too much from the exponents of their leaves."""
        alpha, gamma = self.exponents
        moved = max(abs(alpha - self._trees.alpha), abs(gamma - self._trees.gamma))
        if moved > self.config.exponent_tolerance:
            self._trees.rebuild(self.size, alpha, gamma)
            self._sampler.rebuild(self.size)

    def _priorities_of(self, td_errors: Floats, names: Integers, what: str) -> Floats:
        if td_errors.shape != names.shape:  # compiled code would read past the end
            raise ValueError(f"there are {td_errors.size} TD errors for {names.size} transitions")
        bad = first_not_within(td_errors, 0.0, GREATEST_TD_ERROR)
        if bad >= 0:
            raise BadPriority(
                f"{what} {names[bad]} has the absolute TD error {td_errors[bad]}; "
                f"it must be a number from 0 to {GREATEST_TD_ERROR:g}"
            )
        return td_errors + self.config.priority_floor

    def _check_depth(self, transitions: Transitions) -> None:
        """Reject states with different numbers of frames: they could be stored, but not trained on in one batch."""
        stacks = [*transitions.s_tm1, *transitions.s_t]
        depth = len(self._store["s_tm1"][0] if self.size else stacks[0]) if stacks else 0
        if any(len(stack) != depth for stack in stacks) or (stacks and depth == 0):
            raise ValueError(f"every state must have the same number of frames, {depth or 'at least 1'}")

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

    def _arrivals(self, transitions: Transitions, priorities: Floats, depths: Integers) -> Arrivals:
        """Return new transitions with the next births and serial numbers."""
        births = self.t + 1 + np.arange(len(transitions))
        return Arrivals(transitions, priorities, births, self._take_serials(len(transitions)), depths)

    def _take_serials(self, count: int) -> Integers:
        self._next_serial += count
        return np.arange(self._next_serial - count, self._next_serial)

    def _insert_common(self, arrivals: Arrivals) -> None:
        """Fill empty slots, then replace."""
        count = len(arrivals.transitions)
        appended = min(count, self.config.capacity - self.size)
        if appended > 0:
            self._write(np.arange(self.size, self.size + appended), arrivals.rows(0, appended))
            self.size += appended
        if appended < count:
            self._replace(arrivals.rows(appended, count))
        self.t += count

    def _replace(self, arrivals: Arrivals) -> None:
        """Common replacement: the method's remover chooses the slots."""
        slots, replaced = self._remover.replace(arrivals, self._rng)
        self._complete(slots, arrivals, replaced)

    def _write(self, slots: Slots, arrivals: Arrivals) -> None:
        """Write arrival i into `slots[i]`."""
        self._complete(slots, arrivals, self._index.write(slots, arrivals))

    def _complete(self, slots: Slots, arrivals: Arrivals, replaced: Floats) -> None:
        """Write the data that is not in the index, and count the replaced transitions; priority inf: slot was empty."""
        ages = arrivals.births - swap_in(self._slots.births, slots, arrivals.births)
        was_filled = np.isfinite(replaced)
        self.counters.replaced += int(was_filled.sum())
        self.counters.replaced_age += int(ages[was_filled].sum())
        self.counters.replaced_priority += float(replaced[was_filled].sum())
        self._slots.gains[slots] = np.nan
        self._slots.depths[slots] = arrivals.depths
        write_rows(self._store, slots, arrivals.transitions)
        self._sampler.update(slots)

    def _open_round(self, waiting: Arrivals) -> Round:
        slots = self._recycler.candidates(self._rng)
        number = self.counters.rounds_opened
        depths = self._slots.depths[slots].astype(np.int64)
        round_ = Round(number, self._slots.identities[slots], read_rows(self._store, slots), depths, waiting)
        self.rounds[number] = round_
        self.counters.rounds_opened += 1
        self.counters.candidates_drawn += slots.size
        self.t += 1
        return round_

    def _end_round(self, round_: Round, ticks: bool = True) -> None:
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
            self._replace(round_.waiting)
        if answered:
            self._insert_later_steps(round_, answered, max(self._total_steps - self.t, 0) if ticks else 0)

    def _store_first_steps(self, round_: Round, present: list[int]) -> None:
        """Write each result into its candidate's slot, except the weakest: the waiting transition gets that slot."""
        peak = self._trees.greatest
        depths = dict(zip(round_.candidates.tolist(), round_.depths.tolist(), strict=True))
        weakest = min(present, key=lambda name: float(round_.answers[name].td_errors[0]))
        for identity in present:
            if identity != weakest:
                self._store_recycled(identity, round_.answers[identity], max(depths[identity], 1), peak)
        priority = round_.waiting.priorities
        waiting = round_.waiting._replace(priorities=np.where(np.isnan(priority), peak, priority))
        self._write(np.array([weakest % self.config.capacity]), waiting)

    def _insert_later_steps(self, round_: Round, answered: list[int], most: int) -> None:
        """Insert all but the first step of each chain, also of stale candidates, at most `most` of them."""
        chains = [round_.answers[identity] for identity in answered]
        lengths = np.array([len(chain.transitions) for chain in chains])
        steps = concatenate([chain.transitions for chain in chains])
        self._recycler.observe(steps)
        starts = round_.depths[np.isin(round_.candidates, answered)]
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
            depths = (np.repeat(np.maximum(starts, 1), lengths) + places)[kept]
            self._insert_common(self._arrivals(steps.pick(kept), priorities, depths))

    def _store_recycled(self, candidate: int, chain: Chain, depth: int, peak: float) -> None:
        """Write the first step of a chain into the slot of its candidate."""
        slot = candidate % self.config.capacity
        own = float(chain.td_errors[0]) + self.config.priority_floor
        gain = own - float(self._trees.priorities[slot])
        priority = peak if self.config.recycle_at_max_priority else own
        births, depths = np.array([self.t]), np.array([depth])
        first = chain.transitions.rows(0, 1)
        arrival = Arrivals(first, np.array([priority]), births, self._take_serials(1), depths)
        self._write(np.array([slot]), arrival)
        self._slots.gains[slot] = gain
        self.counters.recycled += 1
        self.counters.recycled_gain += gain

    def check_valid(self) -> tuple[bool, str]:
        """Return whether every invariant holds, and the first that does not."""
        counters, size = self.counters, self.size
        names, births = self.identities, self.births
        by_age = np.argsort(names)
        pending = sum(round_.candidates.size for round_ in self.rounds.values())
        answered = counters.candidates_applied + counters.candidates_stale
        accounted = answered + counters.candidates_lost + pending
        ended = counters.rounds_closed + counters.rounds_expired
        for holds, reason in (
            (0 <= size <= self.config.capacity, "more transitions are stored than the capacity"),
            ((self._slots.identities[size:] == -1).all(), "an empty slot has an identity"),
            ((names % self.config.capacity == np.arange(names.size)).all(), "an identity does not belong to its slot"),
            (not size or 0 <= names.min() <= names.max(), "a stored transition has no identity"),
            ((names // self.config.capacity < self._next_serial).all(), "an identity is from the future"),
            ((np.diff(births[by_age]) >= 0).all(), "the order of identities is not the order of births"),
            ((births <= self.t).all() and (births > 0).all(), "a birth is not between 1 and t"),
            (
                size + len(self.rounds) == self.t + counters.recycled - counters.replaced,
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
            (0 <= counters.sampled_recycled <= counters.sampled, "more recycled transitions were sampled than all"),
            (all(len(stack) > 0 for stack in self._store["s_tm1"][:size]), "a stored transition has no state"),
        ):
            if not holds:
                return False, reason
        valid, reason = self._trees.check_valid(size)
        return self._sampler.check_valid(size) if valid else (valid, reason)

    def save(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """Return the whole state as plain facts (JSON) and arrays. No round may be open."""
        if self.rounds:
            raise ValueError(
                f"recycling rounds {sorted(self.rounds)} are open: they must end before the replay is saved"
            )
        facts = {
            "t": self.t,
            "size": self.size,
            "next_serial": self._next_serial,
            "alpha": self._trees.alpha,
            "gamma": self._trees.gamma,
            "counters": asdict(self.counters),
            "generator": self._rng.bit_generator.state,
        }
        slots = {column.name: getattr(self._slots, column.name)[: self.size].copy() for column in SLOT_COLUMNS}
        stored = pack(read_rows(self._store, np.arange(self.size)))
        recycler = {name: array.copy() for name, array in self._recycler.arrays.items()}
        return facts, slots | recycler | {"priorities": self.priorities} | stored

    def load(self, facts: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> None:
        """Restore a state returned by `save`; this replay must be new, and have the same config."""
        if self.t:
            raise ValueError(f"a state can be loaded only into a new replay, but this one has {self.t} insertions")
        self.t, self.size, self._next_serial = facts["t"], facts["size"], facts["next_serial"]
        self.counters = Counters(**facts["counters"])
        self._rng.bit_generator.state = facts["generator"]
        slots = np.arange(self.size)
        for column in SLOT_COLUMNS:
            getattr(self._slots, column.name)[slots] = arrays[column.name]
        for name, array in self._recycler.arrays.items():
            array[:] = arrays[name]
        write_rows(self._store, slots, unpack(arrays))
        self._trees.load(arrays["priorities"], facts["alpha"], facts["gamma"])
        self._sampler.rebuild(self.size)
