"""The settings that a checkpoint was written with, and which of them may have changed when it is read again."""

from __future__ import annotations

from pathlib import Path

from dpsr_apex.config import CHANGEABLE, FIXED, SETTINGS, Config, ConfigError, settings
from dpsr_apex.config_files import toml_value
from dpsr_apex.record.checkpoint import Checkpoint
from dpsr_apex.state import State

PART = "settings"
_ACTORS = "system.actors"
_LEFT_OUT = "left out"


def settings_part(config: Config) -> State:
    """Return the part of a checkpoint that contains every setting, as TOML."""
    return State(_shown(config), {})


def ensure_fits(config: Config, checkpoint: Checkpoint, origin: Path) -> None:
    """Raise ConfigError if a setting on which the checkpoint depends differs; `origin` is the file of `config`."""
    written, now = _written(checkpoint), _shown(config)
    faults = [
        f"{key} = {now[key]} in {origin}, but the checkpoint at t = {checkpoint.t:,} was written with {written[key]}: "
        f"set it back, or start a new run{_OTHER_WAYS.get(key, '')}"
        for key in FIXED
        if written.get(key, now[key]) != now[key]
    ]
    if is_solo(written.get(_ACTORS, now[_ACTORS])) != is_solo(now[_ACTORS]):
        kinds = {True: "of a single process (0)", False: "of several processes (> 0)"}
        faults.append(
            f"{_ACTORS} = {now[_ACTORS]} in {origin}, but the checkpoint at t = {checkpoint.t:,} is "
            f"{kinds[is_solo(written[_ACTORS])]}: set it back to {written[_ACTORS]}, or start a new run"
        )
    if checkpoint.t > config.run.total_steps:
        faults.append(
            f"run.total_steps = {config.run.total_steps} in {origin}, but the checkpoint is at t = {checkpoint.t}: "
            "set it to at least that, or start a new run"
        )
    if faults:
        raise ConfigError(*faults)


def describe_changes(config: Config, checkpoint: Checkpoint, t: int) -> list[str]:
    """Return a line for each setting that has changed since the checkpoint was written, among those that may.

    The run continues at clock `t`, which is later than that of the checkpoint if there is a journal after it.
    """
    written, now = _written(checkpoint), _shown(config)
    changed = [key for key in CHANGEABLE if written.get(key, now[key]) != now[key]]
    return [f"{key} was {written[key]}, and is {now[key]} from t = {t:,} on" for key in changed]


def is_solo(actors: str) -> bool:
    """Whether this value of `system.actors`, as TOML, is that of a single-process run."""
    return actors == "0"


_OTHER_WAYS = {"learner.steps_per_update": "; in a run of several processes, `dpsr-apex rate` changes it"}


def _shown(config: Config) -> dict[str, str]:
    """Return every setting as TOML, by its dotted key."""
    return {key: _LEFT_OUT if value is None else toml_value(value) for key, value in settings(config).items()}


def _written(checkpoint: Checkpoint) -> dict[str, str]:
    """Return the settings in a checkpoint that exist today; those of earlier versions may lack some, or all."""
    part = checkpoint.parts.get(PART, State({}, {}))
    return {key: value for key, value in part.facts.items() if key in SETTINGS}
