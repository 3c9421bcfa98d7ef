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
from dpsr_apex.replay.records import SLOT_COLUMNS, Arrivals, Counters, Floats, Integers, Round, Sample, SlotColumns
from dpsr_apex.replay.recyclers import RECYCLERS
from dpsr_apex.replay.removers import REMOVERS
from dpsr_apex.replay.samplers import SAMPLERS
from dpsr_apex.replay.slots import MAX_PRIORITY, SlotIndex, first_not_within, swap_in
from dpsr_apex.replay.transitions import Transitions, blank, pack, read_rows, to_lists, unpack, write_rows
from dpsr_apex.replay.trees import PriorityTrees, Slots

GREATEST_TD_ERROR = 1e50  # above this, powers of a priority would overflow


class BadPriority(ValueError):
    """Raised for a TD error that cannot become a priority; nothing was changed."""


class Replay:
    """The replay of every method: its sampler, its remover and its recycler follow from the config."""

    def __init__(self, config: ReplayConfig, total_steps: int, rng: np.random.Generator) -> None:
        self.config = config
        self.t = 0
        self.size = 0
        self.counters = Counters()
        self.rounds: dict[int, Round] = {}  # the open ones, by number
        self._total_steps = total_steps
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
        self._recycler = RECYCLERS[config.parts.recycler if config.recycles else "none"](config, self._index)

    @property
    def exponents(self) -> tuple[float, float]:
        """The sampling exponent alpha(t), as the method uses it, and the replacing exponent gamma(t)."""
        alpha = self.config.sampling_exponent.at(self.t, self._total_steps) if self._samples_by_priority else 0.0
        return alpha, self.config.replacing_exponent.at(self.t, self._total_steps)

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
        arrivals = Arrivals(transitions, priorities, self.t + 1 + np.arange(count), self._take_serials(count))
        opened = []
        done = 0
        while done < count:
            due = done + self._recycler.insertions_before_round(self.t, self.config.capacity - self.size)
            self._insert_common(arrivals.rows(done, min(due, count)))
            if due < count:
                opened.append(self._open_round(arrivals.rows(due, due + 1)))
            done = due + 1
        return opened

    def sample(self, batch_size: int) -> Sample:
        """Sample a batch: stratified, with the importance weights of beta(t) over the whole replay."""
        if self.size == 0:
            raise ValueError("an empty replay cannot be sampled")
        self._follow_schedules()
        beta = self.config.bias_annealing.at(self.t, self._total_steps)
        slots, weights = self._sampler.sample(self._rng.random(batch_size), beta)
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

    def answer(self, number: int, identities: Integers, transitions: Transitions, td_errors: Floats) -> None:
        """Add the results of recycling for some candidates of a round; the last result closes the round.

        Row i of `transitions` starts from the state of candidate `identities[i]`. Results for a round that has ended,
        and duplicate results, are counted and dropped.
        """
        self._priorities_of(td_errors, identities, "recycled transition")
        if len(transitions) != identities.size:
            raise ValueError(f"there are {len(transitions)} transitions for {identities.size} candidates")
        self._check_depth(transitions)
        round_ = self.rounds.get(number)
        if round_ is None:
            self.counters.answers_late += identities.size
            return
        strangers = np.setdiff1d(identities, round_.candidates)
        if strangers.size:
            raise ValueError(f"transition {strangers[0]} is not a candidate of round {number}")
        for row, identity in enumerate(identities.tolist()):
            if identity in round_.answers:
                self.counters.answers_late += 1
            else:
                round_.answers[identity] = (transitions.rows(row, row + 1), float(td_errors[row]))
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
        write_rows(self._store, slots, arrivals.transitions)
        self._sampler.update(slots)

    def _open_round(self, waiting: Arrivals) -> Round:
        slots = self._recycler.candidates(self._rng)
        number = self.counters.rounds_opened
        round_ = Round(number, self._slots.identities[slots], read_rows(self._store, slots), waiting)
        self.rounds[number] = round_
        self.counters.rounds_opened += 1
        self.counters.candidates_drawn += slots.size
        self.t += 1
        return round_

    def _end_round(self, round_: Round) -> None:
        """Write each result into its candidate's slot, except the weakest: the waiting transition gets that slot."""
        del self.rounds[round_.number]
        answered = [identity for identity in round_.candidates.tolist() if identity in round_.answers]
        present = [name for name in answered if self._slots.identities[name % self.config.capacity] == name]
        self.counters.candidates_lost += round_.candidates.size - len(answered)
        self.counters.candidates_stale += len(answered) - len(present)
        self.counters.candidates_applied += len(present)
        if not present:
            self._replace(round_.waiting)
            return
        peak = self._trees.greatest
        weakest = min(present, key=lambda name: round_.answers[name][1])
        for identity in present:
            if identity != weakest:
                self._store_recycled(identity, *round_.answers[identity], peak)
        priority = round_.waiting.priorities
        waiting = round_.waiting._replace(priorities=np.where(np.isnan(priority), peak, priority))
        self._write(np.array([weakest % self.config.capacity]), waiting)

    def _store_recycled(self, candidate: int, transition: Transitions, td_error: float, peak: float) -> None:
        slot = candidate % self.config.capacity
        own = td_error + self.config.priority_floor
        gain = own - float(self._trees.priorities[slot])
        priority = peak if self.config.recycle_at_max_priority else own
        arrival = Arrivals(transition, np.array([priority]), np.array([self.t]), self._take_serials(1))
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
        accounted = counters.candidates_applied + counters.candidates_stale + counters.candidates_lost + pending
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
        return facts, slots | {"priorities": self.priorities} | stored

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
        write_rows(self._store, slots, unpack(arrays))
        self._trees.load(arrays["priorities"], facts["alpha"], facts["gamma"])
        self._sampler.rebuild(self.size)
