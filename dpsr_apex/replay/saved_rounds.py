"""Open recycling rounds as columns of numbers and transitions, so that a saved replay continues with them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from dpsr_apex.replay.records import Arrivals, Chain, Chains, Integers, Round, played
from dpsr_apex.replay.transitions import Transitions, concatenate, unpack

_PREFIX = "rounds/"  # of the names of all columns
_OF_ARRIVALS = ("priorities", "births", "serials")  # of the transitions that wait
_OF_CHAINS = ("answered", "lengths", "rewards", "td_errors")

Numbers = dict[str, NDArray[Any]]
_Column = TypeVar("_Column", NDArray[Any], Transitions)


def save_rounds(rounds: Sequence[Round]) -> tuple[Numbers, dict[str, Transitions]]:
    """Return all rounds as columns of numbers, by name, and transitions, by the beginning of their columns' names.

    There are none if no round is open.
    """
    if not rounds:
        return {}, {}
    waiting = [round_.waiting for round_ in rounds]
    answers = [_joined(round_.answers, round_.stored.rows(0, 0)) for round_ in rounds]
    arrivals = zip(*((each.priorities, each.births, each.serials) for each in waiting), strict=True)
    chains = zip(*((each.identities, each.lengths, each.rewards, each.td_errors) for each in answers), strict=True)
    numbers = {
        "numbers": _integers(round_.number for round_ in rounds),
        "candidate_counts": _integers(round_.candidates.size for round_ in rounds),
        "candidates": np.concatenate([round_.candidates for round_ in rounds]),
        "depths": np.concatenate([round_.depths for round_ in rounds]),
        "recycles": np.concatenate([round_.recycles for round_ in rounds]),
        "answer_counts": _integers(chains.identities.size for chains in answers),
        **dict(zip((*_OF_ARRIVALS, *_OF_CHAINS), map(np.concatenate, (*arrivals, *chains)), strict=True)),
    }
    transitions = {
        "stored/": concatenate([round_.stored for round_ in rounds]),
        "waiting/": concatenate([each.transitions for each in waiting]),
        "recycled/": concatenate([each.transitions for each in answers]),
    }
    return _prefixed(numbers), _prefixed(transitions)


def load_rounds(arrays: Mapping[str, NDArray[Any]]) -> dict[int, Round]:
    """Return the rounds whose columns, with packed transitions, are among these arrays."""
    found = {name.removeprefix(_PREFIX): arrays[name] for name in arrays if name.startswith(_PREFIX)}
    if not found:
        return {}
    stored, waiting, recycled = (_unpacked(f"{name}/", found) for name in ("stored", "waiting", "recycled"))
    priorities, births, serials = (found[name] for name in _OF_ARRIVALS)
    arrivals = Arrivals(waiting, priorities, births, serials, played(len(waiting)))
    answered, lengths, rewards, td_errors = (found[name] for name in _OF_CHAINS)
    chains = Chains(answered, lengths, rewards, recycled, td_errors).split()
    rounds = {}
    counts = zip(*(found[name].tolist() for name in ("numbers", "candidate_counts", "answer_counts")), strict=True)
    end = 0
    for row, (number, candidates, answers) in enumerate(counts):
        start, end = end, end + candidates
        names, depths, recycles = (found[name][start:end] for name in ("candidates", "depths", "recycles"))
        round_ = Round(number, names, stored.rows(start, end), depths, recycles, arrivals.rows(row, row + 1))
        round_.answers.update(islice(chains, answers))
        rounds[number] = round_
    return rounds


def _prefixed(columns: dict[str, _Column]) -> dict[str, _Column]:
    return {_PREFIX + name: column for name, column in columns.items()}


def _unpacked(start: str, arrays: Numbers) -> Transitions:
    return unpack({name.removeprefix(start): array for name, array in arrays.items() if name.startswith(start)})


def _joined(answers: Mapping[int, Chain], empty: Transitions) -> Chains:
    """Return the chains of a round, concatenated; `empty` has no rows."""
    chains = list(answers.values())
    return Chains(
        _integers(answers),
        _integers(len(chain.transitions) for chain in chains),
        np.array([chain.reward for chain in chains], dtype=np.float64),
        concatenate([empty, *(chain.transitions for chain in chains)]),
        np.concatenate([np.zeros(0), *(chain.td_errors for chain in chains)]),
    )


def _integers(numbers: Iterable[int]) -> Integers:
    return np.fromiter(numbers, dtype=np.int64)
