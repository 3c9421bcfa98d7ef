"""The replay methods, as data: each is composed of a sampler, a remover and a recycler.

Config, command line, experiments, reports and docs read this one table, and list methods in its order. The parts are
named by their keys in `dpsr_apex.replay.samplers`, `dpsr_apex.replay.removers` and `dpsr_apex.replay.recyclers`. A new
method is one entry here, and a class there if no existing part fits.
"""

from __future__ import annotations

from typing import Final, NamedTuple


class Method(NamedTuple):
    """One replay method."""

    name: str
    sampler: str  # of batches
    remover: str  # of stored transitions from a full replay
    recycler: str  # of stored states; "none" if they are never re-entered
    description: str
    paper: str  # its label in the paper's tables, or the section that describes it
    colour: str  # in figures; colours also differ in lightness, for print and for colour-blind readers
    marker: str  # in figures, as matplotlib spells it

    @property
    def replaces_by_priority(self) -> bool:
        """Whether `replay.replacing_exponent` and `replay.replace_candidates` are used."""
        return self.remover == "priority"

    @property
    def recycles(self) -> bool:
        """Whether stored states are re-entered, unless `replay.recycle_period` and `replay.recycle_share` are 0."""
        return self.recycler != "none"


METHODS: Final[dict[str, Method]] = {
    method.name: method
    for method in (
        Method("dpsr", "proportional", "priority", "rounds", "the paper's method", "DPSR", "#cc3311", "o"),
        Method("double", "proportional", "priority", "none", "DPSR without recycling", "section 5", "#ee8833", "s"),
        Method("per", "proportional", "oldest", "none", "prioritized replay", "Prioritized", "#0077bb", "^"),
        Method("per_rank", "rank", "oldest", "none", "rank-based prioritized replay", "section 2.2", "#33bbee", "v"),
        Method("uniform", "uniform", "oldest", "none", "the replay of the original DQN", "Original", "#828a93", "D"),
    )
}
