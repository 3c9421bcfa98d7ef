"""A replay that is plainly right: lists, cumulative sums, one transition at a time. The oracle of `Replay`.

It is written from the design, not from the fast code, and shares with it only the records that come in and go out and
the order in which random numbers are consumed: C_c for each common replacement, one for each row of a batch, and for a
round as many as candidates are still missing, until none is; the choice `failure` is one call of `choice`.

Its total mass is a flat sum and the trees' is a sum of sums. So a target within rounding (a share of about 1e-15) of
the border between two slots may fall to either side; among the targets of these tests, whose seeds are fixed, none is.
Borders themselves are tested where all sums are exact, in `test_replay_trees.py`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dpsr_apex.config import ReplayConfig
from dpsr_apex.methods import METHODS
from dpsr_apex.replay.records import Counters
from dpsr_apex.replay.transitions import Stack, Transitions

Floats = NDArray[np.float64]
Row = tuple[Stack, int, float, Stack, bool, int, bytes, int, int, int, int]
"""One transition: s_tm1, a_tm1, r_t, s_t, terminal, n_steps, snapshot, state key, episode, step in it, and tag."""


def rows_of(transitions: Transitions) -> list[Row]:
    """The transitions one by one."""
    return list(
        zip(
            transitions.s_tm1,
            transitions.a_tm1.tolist(),
            transitions.r_t.tolist(),
            transitions.s_t,
            transitions.terminal.tolist(),
            transitions.n_steps.tolist(),
            transitions.snapshots,
            transitions.state_keys.tolist(),
            transitions.episodes.tolist(),
            transitions.episode_steps.tolist(),
            transitions.snapshot_tags.tolist(),
            strict=True,
        )
    )


def transitions_of(rows: Sequence[Row]) -> Transitions:
    """The rows as the replay takes them."""
    return Transitions(
        s_tm1=[row[0] for row in rows],
        a_tm1=np.array([row[1] for row in rows], dtype=np.int64),
        r_t=np.array([row[2] for row in rows], dtype=np.float32),
        s_t=[row[3] for row in rows],
        terminal=np.array([row[4] for row in rows], dtype=np.bool_),
        n_steps=np.array([row[5] for row in rows], dtype=np.uint8),
        snapshots=[row[6] for row in rows],
        state_keys=np.array([row[7] for row in rows], dtype=np.uint64),
        episodes=np.array([row[8] for row in rows], dtype=np.uint64),
        episode_steps=np.array([row[9] for row in rows], dtype=np.uint32),
        snapshot_tags=np.array([row[10] for row in rows], dtype=np.uint64),
    )


def stratified(masses: Floats, uniforms: Floats) -> list[int]:
    """Sample one slot in each of as many equal slices of the mass.

    A target falls on the slot with mass before <= target < mass before + own mass.
    """
    ends = np.cumsum(masses)
    starts = np.append(0.0, ends[:-1])
    targets = (np.arange(uniforms.size) + uniforms) / uniforms.size * ends[-1]
    last = int(np.flatnonzero(masses)[-1])  # for a target that rounding has pushed to the very end
    holders = [np.flatnonzero((starts <= target) & (target < ends)).tolist() for target in targets]
    return [holder[0] if holder else last for holder in holders]


class NaiveChain(NamedTuple):
    """The steps from the state of a candidate."""

    rows: list[Row]
    td_errors: list[float]
    reward: float


@dataclass
class Arrival:
    """A transition on its way in."""

    row: Row
    priority: float | None  # None: the greatest in the replay when it enters
    birth: int
    serial: int
    depth: int = 0
    recycles: int = 0
    origin: int = -1


@dataclass
class NaiveRound:
    """An open recycling round."""

    candidates: list[int]
    stored: list[Row]
    depths: list[int]
    recycles: list[int]
    waiting: Arrival
    answers: dict[int, NaiveChain] = field(default_factory=dict)


class NaiveReplay:
    """`Replay`, slowly. Slot i is element i of every list; the identity of an empty slot is -1."""

    def __init__(
        self, config: ReplayConfig, total_steps: int, rng: np.random.Generator, environment_steps: int | None = None
    ) -> None:
        self.config = config
        self.environment_steps = environment_steps
        self.visits: dict[int, int] = {}  # by key of the state
        self.method = METHODS[config.method]
        self.total_steps = total_steps
        self.rng = rng
        self.t = 0
        self.serials_taken = 0
        self.identities: list[int] = []
        self.serials: list[int] = []
        self.births: list[int] = []
        self.gains: list[float] = []
        self.depths: list[int] = []
        self.recycles: list[int] = []
        self.origins: list[int] = []
        self.priorities: list[float] = []
        self.rows: list[Row | None] = []
        self.rounds: dict[int, NaiveRound] = {}
        self.counters = Counters()
        self.alpha, self.gamma = self.exponents()

    def exponents(self) -> tuple[float, float]:
        alpha = self.config.sampling_exponent.at(self.t, self.total_steps)
        gamma = self.config.replacing_exponent.at(self.t, self.total_steps)
        return (0.0 if self.method.sampler == "uniform" else alpha), gamma

    def follow_schedules(self) -> None:
        alpha, gamma = self.exponents()
        if max(abs(alpha - self.alpha), abs(gamma - self.gamma)) > self.config.exponent_tolerance:
            self.alpha, self.gamma = alpha, gamma

    @property
    def filled(self) -> list[int]:
        """The slots that hold a transition, in order."""
        return [slot for slot, identity in enumerate(self.identities) if identity >= 0]

    def greatest(self) -> float:
        """The priority with which a transition enters."""
        return max((self.priorities[slot] for slot in self.filled), default=1.0)

    def stored_row(self, slot: int) -> Row:
        row = self.rows[slot]
        assert row is not None
        return row

    def empty_slot(self, arrival: Arrival) -> int | None:
        """The slot that a new transition fills: the lowest empty one, or in a ring buffer the next one in turn."""
        if self.method.remover == "oldest" and not self.config.recycles:
            turn = arrival.serial % self.config.capacity
            return None if turn in self.filled else turn
        empty = set(range(self.config.capacity)) - set(self.filled)
        return min(empty, default=None)

    def sampling_line(self) -> tuple[list[int], Floats]:
        """The filled slots in the order in which they lie on the line that is sampled, and the mass of each."""
        slots = self.filled
        if self.method.sampler in ("proportional", "uniform"):
            return slots, np.array([self.priorities[slot] ** self.alpha for slot in slots])
        assert self.method.sampler == "rank", f"a new sampler needs its oracle here: {self.method.sampler}"
        best_first = sorted(slots, key=lambda slot: (-self.priorities[slot], slot))
        return best_first, np.array([(1 / rank) ** self.alpha for rank in range(1, len(slots) + 1)])

    def replacing_masses(self) -> Floats:
        """By slot."""
        filled = set(self.filled)
        return np.array([p**-self.gamma if slot in filled else 0.0 for slot, p in enumerate(self.priorities)])

    def insert(self, rows: Sequence[Row], td_errors: Sequence[float] | None = None) -> list[int]:
        """The numbers of the rounds opened."""
        self.follow_schedules()
        self.visit(rows)
        opened = []
        for i, row in enumerate(rows):
            is_affordable = self.is_round_affordable(len(rows) - i)
            self.t += 1
            priority = None if td_errors is None else td_errors[i] + self.config.priority_floor
            arrival = Arrival(row, priority, self.t, self.take_serial())
            if (slot := self.empty_slot(arrival)) is not None:
                self.fill(slot, arrival)
            elif self.method.recycles and self.is_round_due() and is_affordable:
                opened.append(self.open_round(arrival))
            else:
                self.replace(arrival)
        return opened

    def visit(self, rows: Sequence[Row]) -> None:
        for row in rows:
            self.visits[row[7]] = self.visits.get(row[7], 0) + 1

    def is_round_due(self) -> bool:
        if self.config.recycle_share == 0:
            return self.config.recycle_period > 0 and self.t % self.config.recycle_period == 0
        most = self.config.recycle_steps
        spent = self.counters.chain_steps + most * (self.counters.candidates_lost + self.config.recycle_candidates)
        spent += self.reserved()
        played = self.t - self.counters.chain_steps_stored - self.config.capacity  # since the replay was full
        return spent <= Fraction(str(self.config.recycle_share)) * (played + spent)

    def reserved(self) -> int:
        return self.config.recycle_steps * sum(len(round_.candidates) for round_ in self.rounds.values())

    def is_round_affordable(self, insertions: int) -> bool:
        if self.environment_steps is None:
            return True
        answered = self.counters.candidates_applied + self.counters.candidates_stale
        unstored = self.counters.chain_steps_dropped + self.counters.chain_steps_late
        taken = self.t + answered + unstored + self.reserved()
        needed = insertions + self.config.recycle_candidates * self.config.recycle_steps
        return taken + needed <= self.environment_steps

    def take_serial(self) -> int:
        self.serials_taken += 1
        return self.serials_taken - 1

    def fill(self, slot: int, arrival: Arrival) -> None:
        if slot == len(self.rows):
            for column in (self.identities, self.serials, self.births, self.depths, self.recycles, self.origins):
                column.append(-1)
            self.rows.append(None)
            self.gains.append(math.nan)
            self.priorities.append(math.nan)
        self.put(slot, arrival, self.greatest() if arrival.priority is None else arrival.priority)

    def evict(self, identities: Sequence[int]) -> list[tuple[int, Row]]:
        """Empty the slots of those that are stored; return their identities and rows, sorted."""
        evicted = []
        for name in sorted(set(identities) & set(self.identities) - {-1}):
            slot = self.identities.index(name)
            evicted.append((name, self.stored_row(slot)))
            self.identities[slot], self.rows[slot] = -1, None
            self.counters.quarantined += 1
        return evicted

    def put(self, slot: int, arrival: Arrival, priority: float) -> None:
        self.identities[slot] = arrival.serial * self.config.capacity + slot
        self.serials[slot] = arrival.serial
        self.births[slot] = arrival.birth
        self.gains[slot] = math.nan
        self.depths[slot] = arrival.depth
        self.recycles[slot] = arrival.recycles
        self.origins[slot] = arrival.origin
        self.priorities[slot] = priority
        self.rows[slot] = arrival.row

    def replace(self, arrival: Arrival) -> None:
        if self.method.remover == "priority":
            candidates = stratified(self.replacing_masses(), self.rng.random(self.config.replace_candidates))
        else:
            assert self.method.remover == "oldest", f"a new remover needs its oracle here: {self.method.remover}"
            candidates = self.filled
        oldest = min(candidates, key=lambda slot: (self.births[slot], self.serials[slot]))
        self.count_replaced(oldest, arrival)
        self.put(oldest, arrival, self.greatest() if arrival.priority is None else arrival.priority)

    def place(self, arrival: Arrival) -> None:
        """Fill an empty slot if there is one; otherwise replace."""
        if (slot := self.empty_slot(arrival)) is not None:
            self.fill(slot, arrival)
        else:
            self.replace(arrival)

    def count_replaced(self, slot: int, arrival: Arrival) -> None:
        self.counters.replaced += 1
        self.counters.replaced_age += arrival.birth - self.births[slot]
        self.counters.replaced_priority += self.priorities[slot]

    def sample(self, batch_size: int) -> tuple[list[int], Floats, list[Row]]:
        """Identities, weights and transitions of a batch, without their snapshots."""
        self.follow_schedules()
        line, masses = self.sampling_line()
        beta = self.config.bias_annealing.at(self.t, self.total_steps)
        weights = (len(line) * masses / masses.sum()) ** -beta
        weights /= weights.max()
        places = stratified(masses, self.rng.random(batch_size))
        slots = [line[place] for place in places]
        self.counters.sampled += batch_size
        self.counters.sampled_recycled += sum(self.depths[slot] > 0 for slot in slots)
        rows = [(*row[:6], b"", *row[7:]) for row in map(self.stored_row, slots)]
        return [self.identities[slot] for slot in slots], weights[places], rows

    def update(self, identities: Sequence[int], td_errors: Sequence[float]) -> None:
        for identity, td_error in zip(identities, td_errors, strict=True):
            if identity >= 0 and identity in self.identities:
                self.priorities[self.identities.index(identity)] = td_error + self.config.priority_floor
                self.counters.priorities_updated += 1
            else:
                self.counters.priorities_stale += 1

    def open_round(self, waiting: Arrival) -> int:
        assert self.method.recycler == "rounds", f"a new recycler needs its oracle here: {self.method.recycler}"
        held = self.choose_candidates()
        number = self.counters.rounds_opened
        self.rounds[number] = NaiveRound(
            [self.identities[slot] for slot in held],
            [self.stored_row(slot) for slot in held],
            [self.depths[slot] for slot in held],
            [self.recycles[slot] for slot in held],
            waiting,
        )
        self.counters.rounds_opened += 1
        self.counters.candidates_drawn += len(held)
        return number

    def choose_candidates(self) -> list[int]:
        """Slots."""
        match self.config.recycle_choice:
            case "low":
                return self.sample_distinct(self.replacing_masses())
            case "high":
                return self.sample_distinct(np.array([priority**self.gamma for priority in self.priorities]))
            case "novel":
                keys = [self.stored_row(slot)[7] for slot in range(len(self.rows))]
                return self.sample_distinct(np.array([1 / (self.visits[key] * keys.count(key)) for key in keys]))
            case "failure":
                eligible = [slot for slot in range(len(self.rows)) if self.is_before_terminal(self.stored_row(slot))]
                if not eligible:
                    return self.sample_distinct(self.replacing_masses())
                count = min(self.config.recycle_candidates, len(eligible))
                return list(self.rng.choice(eligible, count, replace=False, shuffle=False).tolist())

    def is_before_terminal(self, row: Row) -> bool:
        """Whether the last step of its episode is stored and is at most `recycle_failure_steps` - 1 after it."""
        ends = [end[9] + end[5] - 1 for end in self.rows if end and end[4] and end[8] == row[8]]
        return any(last - row[9] < self.config.recycle_failure_steps for last in ends)

    def sample_distinct(self, masses: Floats) -> list[int]:
        held: list[int] = []
        while len(held) < min(self.config.recycle_candidates, len(self.rows)):
            for slot in stratified(masses, self.rng.random(self.config.recycle_candidates - len(held))):
                if slot not in held:
                    held.append(slot)
            masses[held] = 0.0
        return held

    def answer(self, number: int, identities: Sequence[int], chains: Sequence[NaiveChain]) -> None:
        for identity, chain in zip(identities, chains, strict=True):
            if number not in self.rounds:
                self.counters.answers_late += 1
                self.counters.chain_steps_late += len(chain.rows)
            elif identity in self.rounds[number].answers:
                self.counters.answers_late += 1
            else:
                self.rounds[number].answers[identity] = chain
        if number not in self.rounds:
            return
        round_ = self.rounds[number]
        if set(round_.answers) == set(round_.candidates):
            self.counters.rounds_closed += 1
            self.end_round(number)

    def expire(self, number: int) -> None:
        self.counters.rounds_expired += 1
        self.end_round(number)

    def end_round(self, number: int) -> None:
        round_ = self.rounds.pop(number)
        answered = [name for name in round_.candidates if name in round_.answers]
        present = [name for name in answered if name in self.identities]
        self.counters.candidates_lost += len(round_.candidates) - len(answered)
        self.counters.candidates_stale += len(answered) - len(present)
        self.counters.candidates_applied += len(present)
        if present:
            self.end_as_in_the_paper(round_, present)
        else:
            self.place(round_.waiting)
        for name in answered:
            self.continue_chain(round_.answers[name], round_, name)

    def continue_chain(self, chain: NaiveChain, round_: NaiveRound, candidate: int) -> None:
        """Insert the steps after the first one, until the last t."""
        place = round_.candidates.index(candidate)
        depth, recycles = max(1, round_.depths[place]), round_.recycles[place] + 1
        self.visit(chain.rows)
        self.counters.chains += 1
        self.counters.chain_steps += len(chain.rows)
        self.counters.chain_reward += chain.reward
        self.counters.chain_reward_best = max(self.counters.chain_reward_best, chain.reward)
        for i in range(1, len(chain.rows)):
            if self.t >= self.total_steps:
                self.counters.chain_steps_dropped += 1
                continue
            self.t += 1
            own = chain.td_errors[i] + self.config.priority_floor
            priority = own if self.config.initial_priority == "td_error" else None
            serial = self.take_serial()
            self.place(Arrival(chain.rows[i], priority, self.t, serial, depth + i, recycles, candidate))
            self.counters.chain_steps_stored += 1

    def end_as_in_the_paper(self, round_: NaiveRound, present: list[int]) -> None:
        greatest = self.greatest()
        weakest = min(present, key=lambda name: round_.answers[name].td_errors[0])
        for name in present:
            if name == weakest:
                continue
            row, td_error = round_.answers[name].rows[0], round_.answers[name].td_errors[0]
            priority = greatest if self.config.recycle_at_max_priority else td_error + self.config.priority_floor
            place = round_.candidates.index(name)
            lineage = max(1, round_.depths[place]), round_.recycles[place] + 1, name
            slot, arrival = self.identities.index(name), Arrival(row, None, self.t, self.take_serial(), *lineage)
            gain = td_error + self.config.priority_floor - self.priorities[slot]
            self.count_replaced(slot, arrival)
            self.put(slot, arrival, priority)
            self.gains[slot] = gain
            self.counters.recycled += 1
            self.counters.recycled_gain += gain
        entry = round_.waiting.priority
        self.count_replaced(self.identities.index(weakest), round_.waiting)
        self.put(self.identities.index(weakest), round_.waiting, greatest if entry is None else entry)
