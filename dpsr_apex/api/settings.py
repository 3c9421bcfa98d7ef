"""The settings of a buffer: checked with the rules of the config, and named as the arguments of `ReplayBuffer`."""

from __future__ import annotations

import re
from dataclasses import fields
from typing import Any, Final, TypedDict

import numpy as np

from dpsr_apex.config import ActorConfig, Config, LearnerConfig, ReplayConfig, RunConfig, find_faults
from dpsr_apex.errors import UserError
from dpsr_apex.kinds import is_number
from dpsr_apex.schedules import Schedule

_SECTION: Final = re.compile(r"\b(?:replay|actor|learner|run)\.")
_SCHEDULES: Final = {item.name for item in fields(ReplayConfig) if isinstance(item.default, Schedule)}
_CANDIDATES: Final = ("replace_candidates", "recycle_candidates")


class ReplaySettings(TypedDict, total=False):
    """The optional settings of the replay, with the names and defaults of the section `replay` of a config.

    A schedule is a number, or `(start, end)` for a line over `total_steps`.
    """

    sampling_exponent: float | tuple[float, float]
    bias_annealing: float | tuple[float, float]
    replacing_exponent: float | tuple[float, float]
    replace_candidates: int
    recycle_candidates: int
    recycle_period: int
    recycle_at_max_priority: bool
    recycle_share: float
    recycle_steps: int
    recycle_exploration: float
    recycle_choice: str
    recycle_failure_steps: int
    priority_floor: float
    exponent_tolerance: float


def buffer_config(
    capacity: int, method: str, n_steps: int, discount: float, total_steps: int, seed: int, settings: ReplaySettings
) -> Config:
    """Return the config of a buffer; raise UserError with one line about the first wrong argument."""
    given = {name: _plain(name, value) for name, value in settings.items()}
    if unknown := sorted(given.keys() - ReplaySettings.__annotations__.keys()):
        raise UserError(
            f"ReplayBuffer has no setting {unknown[0]!r}; it has {', '.join(ReplaySettings.__annotations__)}"
        )
    size, steps = _number(capacity), _number(total_steps)
    defaults = ReplayConfig()
    for name in _CANDIDATES:  # only the defaults: a number that was given is refused instead
        if isinstance(size, int) and size >= 1:
            given.setdefault(name, min(getattr(defaults, name), size))
    values: dict[str, Any] = {"method": method, "capacity": size, **given}
    config = Config(
        replay=ReplayConfig(**values),
        actor=ActorConfig(n_steps=_number(n_steps)),
        learner=LearnerConfig(discount=_number(discount), batch_size=1, learning_starts=1),
        run=RunConfig(seed=_number(seed), total_steps=steps),
    )
    if faults := find_faults(config):
        raise UserError(_SECTION.sub("", str(faults[0])))
    return config


def _plain(name: str, value: Any) -> Any:
    if name not in _SCHEDULES or isinstance(value, Schedule):
        return _number(value)
    ends = [_number(end) for end in (value if isinstance(value, tuple | list) else (value, value))]
    if len(ends) != 2 or not all(map(is_number, ends)):
        raise UserError(f"{name} must be a finite number, or (start, end) for a schedule (got {value!r})")
    return Schedule(*ends)


def _number(value: Any) -> Any:
    """Return a number of numpy as Python's own."""
    return value.item() if isinstance(value, np.generic) else value
