"""DpsrReplay: what is stored, what is drawn, what is replaced, and what is recycled.

Pure state: no sockets, no files, no wall clock, no random state but the generator that is passed in. The one clock is
t, the number of transitions inserted so far.

A transition is named by its identity, a number that is never used twice: its serial number times the capacity, plus its
slot. So a slot is found by arithmetic, a stale name is noticed by comparing, and the oldest is the least.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpsr_apex.config import ReplayConfig
from dpsr_apex.replay.occupancy import (
    GREATEST_NOW,
    first_not_within,
    occupy,
    replace_by_priority,
    swap_in,
    update_current,
)
from dpsr_apex.replay.ranking import Ranking
from dpsr_apex.replay.records import Arrivals, Counters, Floats, Integers, Round, Sample
from dpsr_apex.replay.transitions import Transitions, blank, pack, read_rows, unpack, write_rows
from dpsr_apex.replay.trees import PriorityTrees, Slots

GREATEST_TD_ERROR = 1e50  # beyond this, powers of a priority would leave the range of a float


class BadPriority(ValueError):
    """A TD error that cannot become a priority; nothing was changed."""


class DpsrReplay:
    """The replay of all five methods; which one it is follows from the config."""

    def __init__(self, config: ReplayConfig, total_steps: int, rng: np.random.Generator) -> None:
        self.config = config
        self.t = 0
        self.size = 0
        self.counters = Counters()
        self.rounds: dict[int, Round] = {}  # the open ones, by number
        self._total_steps = total_steps
        self._rng = rng
        self._next_serial = 0
        self._identities = np.full(config.capacity, -1, dtype=np.int64)
        self._births = np.zeros(config.capacity, dtype=np.int64)
        self._gains = np.full(config.capacity, np.nan, dtype=np.float32)
        self._store = blank(config.capacity)
        alpha, gamma = self._exponents()
        self._trees = PriorityTrees(config.capacity, alpha, gamma)
        self._ranking = Ranking(config.capacity, alpha) if config.sampling == "rank" else None

    @property
    def identities(self) -> Integers:
        """The identity of each stored transition, slot by slot; a copy."""
        return self._identities[: self.size].copy()

    @property
    def births(self) -> Integers:
        """The clock at which each stored transition was born, slot by slot; a copy."""
        return self._births[: self.size].copy()

    @property
    def gains(self) -> NDArray[np.float32]:
        """What each recycled transition gained over what it replaced, slot by slot, NaN for all others; a copy.

        That is its |TD error| + floor when it was recycled, less the priority of the one whose slot it took.
        """
        return self._gains[: self.size].copy()

    @property
    def priorities(self) -> Floats:
        """The priority of each stored transition, slot by slot; a copy."""
        return self._trees.priorities[: self.size].copy()

    def look_around(self, most: int) -> tuple[Integers, Floats]:
        """Births and priorities of at most so many stored transitions, evenly spread over the slots; copies.

        All of a small replay, and of a large one no more than a person needs to see.
        """
        spread = slice(0, self.size, max(-(-self.size // most), 1))
        return self._births[spread].copy(), self._trees.priorities[spread].copy()

    def insert(self, transitions: Transitions, td_errors: Floats | None = None) -> list[Round]:
        """Take new transitions, one tick of t each; the recycling rounds that they opened are returned.

        They enter with the greatest priority in the replay, or by their absolute `td_errors` where given. All states
        must have as many frames as those stored: a ValueError changes nothing.
        """
        self._check_depth(transitions)
        count = len(transitions)
        if td_errors is None:
            priorities = np.full(count, GREATEST_NOW)
        else:
            priorities = self._priorities_of(td_errors, np.arange(count), "inserted transition")
        self._follow_schedules()
        arrivals = Arrivals(transitions, priorities, self.t + 1 + np.arange(count), self._take_serials(count))
        opened = []
        done = 0
        while done < count:
            due = done + self._insertions_before_round()
            self._insert_common(arrivals.rows(done, min(due, count)))
            if due < count:
                opened.append(self._open_round(arrivals.rows(due, due + 1)))
            done = due + 1
        return opened

    def sample(self, batch_size: int) -> Sample:
        """Draw a batch: stratified, with the importance weights of beta(t) over the whole replay."""
        if self.size == 0:
            raise ValueError("nothing can be drawn from an empty replay")
        self._follow_schedules()
        beta = self.config.bias_annealing.at(self.t, self._total_steps)
        slots, weights = (self._ranking or self._trees).draw_to_sample(self._rng.random(batch_size), beta)
        return Sample(self._identities[slots], weights, read_rows(self._store, slots))

    def update_priorities(self, identities: Integers, td_errors: Floats) -> None:
        """Set priorities from absolute TD errors; those of transitions replaced meanwhile are counted as stale."""
        priorities = self._priorities_of(td_errors, identities, "transition")
        trees = self._trees
        slots = np.empty(identities.size, dtype=np.int64)
        count = update_current(slots, *trees.arrays, self._identities, identities, priorities, trees.alpha, trees.gamma)
        self._rank(slots[:count])
        self.counters.priorities_updated += count
        self.counters.priorities_stale += identities.size - count

    def read(self, identities: Integers) -> Transitions:
        """The stored transitions of these identities; a KeyError names the first that is not stored."""
        slots = identities % self.config.capacity
        missing = identities[(self._identities[slots] != identities) | (identities < 0)]
        if missing.size:
            raise KeyError(f"transition {missing[0]} is not in the replay")
        return read_rows(self._store, slots)

    def answer(self, number: int, identities: Integers, transitions: Transitions, td_errors: Floats) -> None:
        """Take what recycling gave for some candidates of a round; the answer to the last one closes the round.

        Row i of `transitions` starts from the state of candidate `identities[i]`. Answers to a round that has ended,
        and second answers, are counted and dropped.
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
        """End a round with what has arrived; a KeyError, and nothing else, for one that has ended."""
        round_ = self.rounds[number]
        self.counters.rounds_expired += 1
        self._end_round(round_)

    def _exponents(self) -> tuple[float, float]:
        alpha = self.config.alpha.at(self.t, self._total_steps)
        return alpha, self.config.replacing_exponent.at(self.t, self._total_steps)

    def _follow_schedules(self) -> None:
        """Rebuild the trees when alpha(t) or gamma(t) has moved away from what their leaves were built for."""
        alpha, gamma = self._exponents()
        moved = max(abs(alpha - self._trees.alpha), abs(gamma - self._trees.gamma))
        if moved > self.config.exponent_tolerance:
            self._trees.rebuild(self.size, alpha, gamma)
            if self._ranking:
                self._ranking.rebuild(alpha)

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
        """A state of another depth than the others could be stored, but no batch with it could be learnt from."""
        stacks = [*transitions.s_tm1, *transitions.s_t]
        depth = len(self._store.s_tm1[0] if self.size else stacks[0]) if stacks else 0
        if any(len(stack) != depth for stack in stacks) or (stacks and depth == 0):
            raise ValueError(f"every state must have the same number of frames, {depth or 'at least 1'}")

    def _take_serials(self, count: int) -> Integers:
        self._next_serial += count
        return np.arange(self._next_serial - count, self._next_serial)

    def _insertions_before_round(self) -> int:
        """How many insertions come before the next one that opens a recycling round."""
        until_full = self.config.capacity - self.size
        if not self.config.recycles:
            return int(np.iinfo(np.int64).max) - 1
        return until_full + -(self.t + 1 + until_full) % self.config.recycle_period

    def _insert_common(self, arrivals: Arrivals) -> None:
        """Append while there is room, then replace."""
        count = len(arrivals.transitions)
        appended = min(count, self.config.capacity - self.size)
        if appended > 0:
            self._occupy(np.arange(self.size, self.size + appended), arrivals.rows(0, appended))
            self.size += appended
        if appended < count:
            self._replace(arrivals.rows(appended, count))
        self.t += count

    def _replace(self, arrivals: Arrivals) -> None:
        """Common replacement: of C_c candidates drawn by p ** -gamma the oldest, or simply the oldest of all."""
        count = len(arrivals.transitions)
        if not self.config.replaces_by_priority:
            # Without recycling, serial numbers count insertions: slots are filled round and round.
            self._occupy(arrivals.serials % self.config.capacity, arrivals)
            return
        trees = self._trees
        uniforms = self._rng.random((count, self.config.replace_candidates))
        slots, former = replace_by_priority(
            *trees.arrays,
            self._identities,
            arrivals.serials,
            arrivals.priorities,
            uniforms,
            trees.alpha,
            trees.gamma,
        )
        self._settle(slots, arrivals, former)

    def _occupy(self, slots: Slots, arrivals: Arrivals) -> None:
        """Arrival i takes `slots[i]`."""
        trees = self._trees
        former = occupy(
            *trees.arrays,
            self._identities,
            slots,
            arrivals.serials,
            arrivals.priorities,
            trees.alpha,
            trees.gamma,
        )
        self._settle(slots, arrivals, former)

    def _settle(self, slots: Slots, arrivals: Arrivals, former: Floats) -> None:
        """Write what the trees do not hold; `former` are the priorities of those who made room, infinite for none."""
        ages = arrivals.births - swap_in(self._births, slots, arrivals.births)
        made_room = np.isfinite(former)
        self.counters.replaced += int(made_room.sum())
        self.counters.replaced_age += int(ages[made_room].sum())
        self.counters.replaced_priority += float(former[made_room].sum())
        self._gains[slots] = np.nan
        write_rows(self._store, slots, arrivals.transitions)
        self._rank(slots)

    def _rank(self, slots: Slots) -> None:
        if self._ranking:
            self._ranking.set(slots, self._trees.priorities[slots])

    def _open_round(self, waiting: Arrivals) -> Round:
        slots = self._trees.draw_distinct_to_replace(self.config.recycle_candidates, self._rng)
        number = self.counters.rounds_opened
        round_ = Round(number, self._identities[slots], read_rows(self._store, slots), waiting)
        self.rounds[number] = round_
        self.counters.rounds_opened += 1
        self.counters.candidates_drawn += slots.size
        self.t += 1
        return round_

    def _end_round(self, round_: Round) -> None:
        """Recycled transitions take their candidates' slots, all but the weakest, whose slot the waiting one gets."""
        del self.rounds[round_.number]
        answered = [identity for identity in round_.candidates.tolist() if identity in round_.answers]
        present = [name for name in answered if self._identities[name % self.config.capacity] == name]
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
        self._occupy(np.array([weakest % self.config.capacity]), waiting)

    def _store_recycled(self, candidate: int, transition: Transitions, td_error: float, peak: float) -> None:
        slot = candidate % self.config.capacity
        own = td_error + self.config.priority_floor
        gain = own - float(self._trees.priorities[slot])
        priority = peak if self.config.recycle_at_max_priority else own
        arrival = Arrivals(transition, np.array([priority]), np.array([self.t]), self._take_serials(1))
        self._occupy(np.array([slot]), arrival)
        self._gains[slot] = gain
        self.counters.recycled += 1
        self.counters.recycled_gain += gain

    def check_valid(self) -> tuple[bool, str]:
        """Whether every invariant holds, with the first that does not."""
        counters, size = self.counters, self.size
        names, births = self.identities, self.births
        by_age = np.argsort(names)
        pending = sum(round_.candidates.size for round_ in self.rounds.values())
        accounted = counters.candidates_applied + counters.candidates_stale + counters.candidates_lost + pending
        ended = counters.rounds_closed + counters.rounds_expired
        for holds, reason in (
            (0 <= size <= self.config.capacity, "more is stored than there is room for"),
            ((self._identities[size:] == -1).all(), "an empty slot has an identity"),
            ((names % self.config.capacity == np.arange(names.size)).all(), "an identity is not of its slot"),
            (not size or 0 <= names.min() <= names.max(), "a stored transition has no identity"),
            ((names // self.config.capacity < self._next_serial).all(), "an identity is from the future"),
            ((np.diff(births[by_age]) >= 0).all(), "the order of identities is not the order of births"),
            ((births <= self.t).all() and (births > 0).all(), "a birth is not between 1 and t"),
            (
                size + len(self.rounds) == self.t + counters.recycled - counters.replaced,
                "transitions were lost or made",
            ),
            (self._next_serial == self.t + counters.recycled, "serial numbers do not count what came in"),
            (counters.rounds_opened == ended + len(self.rounds), "a round was neither closed nor expired"),
            (counters.candidates_drawn == accounted, "a candidate is neither applied nor stale nor lost"),
            (all(len(stack) > 0 for stack in self._store.s_tm1[:size]), "a stored transition has no state"),
        ):
            if not holds:
                return False, reason
        valid, reason = self._trees.check_valid(size)
        if valid and self._ranking:
            valid, reason = self._ranking.check_valid(self.priorities)
        return valid, reason

    def save(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """Everything, as plain facts (JSON) and arrays. A round must not be open."""
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
        stored = read_rows(self._store, np.arange(self.size))
        slots: dict[str, NDArray[Any]] = {
            "identities": self.identities,
            "births": self.births,
            "priorities": self.priorities,
            "gains": self.gains,
        }
        return facts, slots | pack(stored)

    def load(self, facts: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> None:
        """Become what `save` was called on; this one must be new, and have the same config."""
        if self.t:
            raise ValueError(f"only a new replay can be loaded into, and this one has taken {self.t} transitions")
        self.t, self.size, self._next_serial = facts["t"], facts["size"], facts["next_serial"]
        self.counters = Counters(**facts["counters"])
        self._rng.bit_generator.state = facts["generator"]
        slots = np.arange(self.size)
        self._identities[slots] = arrays["identities"]
        self._births[slots] = arrays["births"]
        self._gains[slots] = arrays["gains"]
        write_rows(self._store, slots, unpack(arrays))
        self._trees.load(arrays["priorities"], facts["alpha"], facts["gamma"])
        if self._ranking:
            self._ranking.load(arrays["priorities"], facts["alpha"])
