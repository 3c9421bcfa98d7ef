"""Recycling rounds: candidates are chosen here and re-entered elsewhere; their chains are written into the table.

A round waits for the chains of its candidates, and ends as in the paper's Algorithm 1: the first step of each chain
takes the slot of its candidate, except the one with the least |TD error|, whose slot goes to the new transition that
opened the round. Nothing here has a clock: t is passed in.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dpsr_apex.config import ReplayConfig
from dpsr_apex.replay.records import Arrivals, Chain, Chains, Counters, Floats, Integers, Lineage, Round
from dpsr_apex.replay.recyclers import Recycler
from dpsr_apex.replay.slots import GREATEST_TD_ERROR, MAX_PRIORITY, priorities_of
from dpsr_apex.replay.table import Table
from dpsr_apex.replay.transitions import Transitions, concatenate


class LaterSteps(NamedTuple):
    """The steps of chains after their first ones, which enter the table as new transitions."""

    transitions: Transitions
    priorities: Floats
    lineage: Lineage


class OpenRounds:
    """The recycling rounds of a table that wait for chains."""

    def __init__(self, config: ReplayConfig, table: Table, recycler: Recycler, counters: Counters) -> None:
        self.by_number: dict[int, Round] = {}
        self.counters = counters
        self._config = config
        self._table = table
        self._recycler = recycler

    @property
    def reserved_steps(self) -> int:
        """Environment steps that the candidates of open rounds may take."""
        return self._config.recycle_steps * sum(round_.candidates.size for round_ in self.by_number.values())

    def open(self, waiting: Arrivals, rng: np.random.Generator) -> Round:
        """Open a round in which `waiting`, a single new transition, waits for the slot of the weakest candidate."""
        slots = self._recycler.candidates(rng)
        about, number = self._table.slots, self.counters.rounds_opened
        depths, recycles = (column[slots].astype(np.int64) for column in (about.depths, about.recycles))
        stored = self._table.store.read(slots)
        round_ = self.by_number[number] = Round(number, about.identities[slots], stored, depths, recycles, waiting)
        self.counters.rounds_opened += 1
        self.counters.candidates_drawn += slots.size
        return round_

    def collect(self, number: int, chains: Chains) -> Round | None:
        """Add the results for some candidates of a round; return the round if these were the last ones.

        Results for a round that has ended, and duplicate results, are counted and dropped. Raise ValueError, without
        changing anything, if the chains are invalid or their candidates are not of this round.
        """
        self._check(chains)
        round_ = self.by_number.get(number)
        if round_ is None:
            self.count_late(chains.identities.size, len(chains.transitions))
            return None
        others = np.setdiff1d(chains.identities, round_.candidates)
        if others.size:
            raise ValueError(f"transition {others[0]} is not a candidate of round {number}")
        for identity, chain in chains.split():
            if identity in round_.answers:
                self.count_late(1, 0)  # steps that nobody asked for; counted, they could end a run
            else:
                round_.answers[identity] = chain
        return round_ if len(round_.answers) == round_.candidates.size else None

    def count_late(self, chains: int, steps: int) -> None:
        """Count results that came after the end of their round, with their steps, or twice."""
        self.counters.answers_late += chains
        self.counters.chain_steps_late += steps

    def end(self, round_: Round, t: int, most: int, rng: np.random.Generator) -> LaterSteps | None:
        """End a round at clock t as in the paper; return at most `most` later steps of its chains, if there are any.

        The first steps of chains are written into the slots of those candidates that are still stored. If there are
        none, the waiting transition goes where the method's remover places it.
        """
        del self.by_number[round_.number]
        answered = [identity for identity in round_.candidates.tolist() if identity in round_.answers]
        present: list[int] = self._table.stored(np.array(answered, np.int64)).tolist()
        self.counters.candidates_lost += round_.candidates.size - len(answered)
        self.counters.candidates_stale += len(answered) - len(present)
        self.counters.candidates_applied += len(present)
        if present:
            self._write_first_steps(round_, present, t)
        else:
            self._table.place(round_.waiting, rng)
        return self._later_steps(round_, answered, most) if answered else None

    def _check(self, chains: Chains) -> None:
        identities, lengths, rewards, transitions, td_errors = chains
        if not identities.size == lengths.size == rewards.size:
            counts = f"{lengths.size} lengths and {rewards.size} rewards"
            raise ValueError(f"there are {counts} for {identities.size} chains")
        is_reward_bounded = np.abs(rewards) <= GREATEST_TD_ERROR
        wrong = np.flatnonzero((lengths < 1) | (lengths > self._config.recycle_steps) | ~is_reward_bounded)
        if wrong.size:
            raise ValueError(
                f"the chain of transition {identities[wrong[0]]} has {lengths[wrong[0]]} steps and the reward "
                f"{rewards[wrong[0]]}; it must have 1 to {self._config.recycle_steps} steps and a finite reward"
            )
        if lengths.sum() != len(transitions):
            raise ValueError(f"there are {len(transitions)} transitions in chains of {lengths.sum()} steps")
        names = np.repeat(identities, lengths)
        priorities_of(td_errors, self._config.priority_floor, names, "recycled transition")
        self._table.admit(transitions)

    def _write_first_steps(self, round_: Round, present: list[int], t: int) -> None:
        """Write each result into its candidate's slot, except the weakest: the waiting transition gets that slot."""
        greatest = self._table.trees.greatest
        places = {identity: place for place, identity in enumerate(round_.candidates.tolist())}
        weakest = min(present, key=lambda identity: float(round_.answers[identity].td_errors[0]))
        for identity in present:
            if identity != weakest:
                lineage = _lineage_of_chains(round_, np.array([places[identity]]))
                self._write_recycled(identity, round_.answers[identity], lineage, greatest, t)
        priority = round_.waiting.priorities
        waiting = round_.waiting._replace(priorities=np.where(np.isnan(priority), greatest, priority))
        self._table.write(self._table.slots_of(np.array([weakest])), waiting)

    def _write_recycled(self, candidate: int, chain: Chain, lineage: Lineage, greatest: float, t: int) -> None:
        """Write the first step of a chain into the slot of its candidate."""
        slots = self._table.slots_of(np.array([candidate]))
        own = float(chain.td_errors[0]) + self._config.priority_floor
        gain = own - float(self._table.trees.priorities[slots[0]])
        priority = greatest if self._config.recycle_at_max_priority else own
        first, serials = chain.transitions.rows(0, 1), self._table.take_serials(1)
        self._table.write(slots, Arrivals(first, np.array([priority]), np.array([t]), serials, lineage))
        self._table.slots.gains[slots] = gain
        self.counters.recycled += 1
        self.counters.recycled_gain += gain

    def _later_steps(self, round_: Round, answered: list[int], most: int) -> LaterSteps | None:
        """Return all but the first step of each chain, also of stale candidates; count the steps of these chains."""
        chains = [round_.answers[identity] for identity in answered]
        lengths = np.array([len(chain.transitions) for chain in chains])
        steps = concatenate([chain.transitions for chain in chains])
        self._recycler.observe(steps)
        candidates = np.repeat(np.flatnonzero(np.isin(round_.candidates, answered)), lengths)  # their places in it
        places = np.arange(len(steps)) - np.repeat(np.cumsum(lengths) - lengths, lengths)  # of each step in its chain
        kept = np.flatnonzero(places > 0)[:most]
        self._count_chains([chain.reward for chain in chains], len(steps), kept.size)
        if not kept.size:
            return None
        own = np.concatenate([chain.td_errors for chain in chains])[kept] + self._config.priority_floor
        priorities = own if self._config.initial_priority == "td_error" else np.full(kept.size, MAX_PRIORITY)
        lineage = _lineage_of_chains(round_, candidates[kept])
        return LaterSteps(steps.pick(kept), priorities, lineage._replace(depths=lineage.depths + places[kept]))

    def _count_chains(self, rewards: list[float], steps: int, stored: int) -> None:
        counters = self.counters
        counters.chains += len(rewards)
        counters.chain_steps += steps
        counters.chain_reward += sum(rewards)
        counters.chain_reward_best = max(counters.chain_reward_best, *rewards)
        counters.chain_steps_stored += stored
        counters.chain_steps_dropped += steps - len(rewards) - stored


def _lineage_of_chains(round_: Round, places: Integers) -> Lineage:
    """Return the lineage of the first step from the state of each candidate, given their places in the round."""
    depths, recycles = np.maximum(round_.depths[places], 1), round_.recycles[places] + 1
    return Lineage(depths, recycles, round_.candidates[places])
