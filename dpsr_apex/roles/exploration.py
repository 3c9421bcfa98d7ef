"""How much actors explore. No torch here: the replay's process tells onlookers what its actors do."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dpsr_apex.config import Config

Floats = NDArray[np.float64]


def ladder(first: int, count: int) -> Floats:
    """Ape-X's exploration of environments `first` to the last of `count`: each keeps its own epsilon."""
    return 0.4 ** (1 + 7 * np.arange(first, count) / max(count - 1, 1))


def rungs(index: int, actors: int, environments: int) -> Floats:
    """The part of the ladder on which actor `index` of so many stands; one that is more than planned shares it."""
    return ladder(index % actors * environments, actors * environments)[:environments]


def epsilons(config: Config, on: Floats, t: int) -> Floats:
    """The share of random actions at clock t, in each environment that stands `on` these rungs."""
    return on if config.actor.ladder else np.full_like(on, config.actor.exploration.at(t, config.run.total_steps))


def epsilon_ranges(config: Config, actors: int, t: int) -> list[list[float]]:
    """The least and the greatest epsilon of each of so many actors."""
    every = ladder(0, actors * config.actor.environments).reshape(actors, -1)
    now = epsilons(config, every, t)
    ranges: list[list[float]] = np.stack([now.min(axis=1), now.max(axis=1)], axis=1).tolist()
    return ranges
