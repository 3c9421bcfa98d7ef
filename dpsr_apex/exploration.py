"""Exploration rates of actors. Does not import torch, because the replay process reports the epsilon of each actor."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dpsr_apex.config import Config

Floats = NDArray[np.float64]


def ladder(first: int, count: int) -> Floats:
    """Return Ape-X's constant epsilons of the environments from `first` to the last of `count`."""
    return 0.4 ** (1 + 7 * np.arange(first, count) / max(count - 1, 1))


def rungs(index: int, actors: int, environments: int) -> Floats:
    """Return the epsilon of each environment of actor `index` of `actors`; surplus actors share a position."""
    return ladder(index % actors * environments, actors * environments)[:environments]


def epsilons(config: Config, constants: Floats, t: int) -> Floats:
    """Return the epsilon of each environment at clock t; `constants` are those of Ape-X, used with `actor.ladder`."""
    if config.actor.ladder:
        return constants
    return np.full_like(constants, config.actor.exploration.at(t, config.run.total_steps))


def epsilon_ranges(config: Config, actors: int, t: int) -> list[list[float]]:
    """Return the minimum and maximum epsilon of each of `actors` actors."""
    every = ladder(0, actors * config.actor.environments).reshape(actors, -1)
    now = epsilons(config, every, t)
    ranges: list[list[float]] = np.stack([now.min(axis=1), now.max(axis=1)], axis=1).tolist()
    return ranges
