"""The settings that a checkpoint was written with: every one either may change when a run is resumed, or is fixed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dpsr_apex.config import CHANGEABLE, FIXED, SETTINGS, Config, ConfigError, settings
from dpsr_apex.config_files import toml_value
from dpsr_apex.record.checkpoint import Checkpoint
from dpsr_apex.record.settings import PART, describe_changes, ensure_fits, settings_part
from dpsr_apex.schedules import constant
from dpsr_apex.state import State

ORIGIN = Path("runs/x/config.toml")
CONFIG = Config()
OTHERS = {  # where another value cannot be derived from the default
    "env.arguments": {"depth": 5},
    "env.stack": 2,
    "env.wrappers": ("tasks:Wrapper",),
    "learner.network_arguments": {"width": 5},
    "system.actors": 7,
    "actor.start_from": "x",
    "run.environment_steps": 5_000,
    "run.track": ("csv",),
    "run.threads": 3,
}


def saved(config: Config, t: int = 1_000) -> Checkpoint:
    return Checkpoint(t, {PART: settings_part(config)})


def changed(key: str, value: Any) -> Config:
    section, name = key.split(".")
    return replace(CONFIG, **{section: replace(getattr(CONFIG, section), **{name: value})})


def another(key: str) -> Any:
    """Return a value of this setting that is not its default; it need not be a valid one."""
    value = settings(CONFIG)[key]
    if key in OTHERS:
        return OTHERS[key]
    if isinstance(value, bool):
        return not value
    if isinstance(value, str):
        return f"{value}x"
    if isinstance(value, tuple):
        return (*value, 8)
    return constant(0.125) if not isinstance(value, int | float) else value + 1


def test_every_setting_is_classified_once() -> None:
    assert sorted([*FIXED, *CHANGEABLE]) == sorted(SETTINGS)


@pytest.mark.parametrize("key", FIXED)
def test_a_setting_on_which_a_checkpoint_depends_is_refused_with_both_values_and_the_way_out(key: str) -> None:
    edited = changed(key, another(key))
    was, now = settings(CONFIG)[key], settings(edited)[key]
    with pytest.raises(ConfigError) as refusal:
        ensure_fits(edited, saved(CONFIG), ORIGIN)
    shown = ["left out" if value is None else toml_value(value) for value in (now, was)]
    assert str(refusal.value).startswith(
        f"{key} = {shown[0]} in {ORIGIN}, but the checkpoint at t = 1,000 was written with {shown[1]}: set it back"
    )


@pytest.mark.parametrize("key", CHANGEABLE)
def test_any_other_setting_may_change_and_the_change_is_described(key: str) -> None:
    before = changed("system.actors", 2) if key != "system.actors" else changed(key, 5)
    section, name = key.split(".")
    after = replace(before, **{section: replace(getattr(before, section), **{name: another(key)})})
    ensure_fits(after, saved(before), ORIGIN)
    (line,) = describe_changes(after, saved(before), 1_234)
    assert line.startswith(f"{key} was ")
    assert line.endswith("from t = 1,234 on")


@pytest.mark.parametrize(("was", "now"), [(0, 2), (2, 0)])
def test_a_run_of_one_process_cannot_become_one_of_many(was: int, now: int) -> None:
    before, after = changed("system.actors", was), changed("system.actors", now)
    with pytest.raises(ConfigError, match=rf"system\.actors = {now} .* set it back to {was}"):
        ensure_fits(after, saved(before), ORIGIN)


def test_a_run_cannot_end_before_its_checkpoint() -> None:
    ensure_fits(changed("run.total_steps", 1_000), saved(CONFIG), ORIGIN)
    with pytest.raises(ConfigError, match=r"run\.total_steps = 999 .* at t = 1000"):
        ensure_fits(changed("run.total_steps", 999), saved(CONFIG), ORIGIN)


def test_a_checkpoint_of_an_earlier_version_may_lack_settings() -> None:
    for parts in ({}, {PART: State({"replay.gone": "1"}, {})}):
        checkpoint = Checkpoint(0, parts)
        ensure_fits(CONFIG, checkpoint, ORIGIN)
        assert describe_changes(CONFIG, checkpoint, 0) == []


def test_every_fault_has_its_own_line() -> None:
    edited = replace(changed("replay.capacity", 5), learner=replace(CONFIG.learner, head=5))
    with pytest.raises(ConfigError) as refusal:
        ensure_fits(edited, saved(CONFIG), ORIGIN)
    assert [line.split(" ")[0] for line in str(refusal.value).splitlines()] == ["replay.capacity", "learner.head"]
