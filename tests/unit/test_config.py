"""The tree refuses whatever cannot be run, and says which key, which value and what would be allowed."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, get_args

import pytest

from dpsr_apex.config import (
    KINDS,
    RANGES,
    Config,
    ConfigError,
    Method,
    ReplayConfig,
    find_faults,
    settings,
    validate,
)
from dpsr_apex.replay.schedules import Schedule, constant


def changed(values: dict[str, Any]) -> Config:
    """The default configuration with some settings, named by dotted key, changed."""
    config = Config()
    for key, value in values.items():
        section, name = key.split(".")
        config = replace(config, **{section: replace(getattr(config, section), **{name: value})})
    return config


SOUND: list[dict[str, Any]] = [
    {},
    {"replay.capacity": 256, "replay.replace_candidates": 256},
    {"replay.capacity": 32, "replay.replace_candidates": 32, "replay.recycle_candidates": 32},
    {"replay.recycle_candidates": 2},
    {"replay.recycle_candidates": 0, "replay.recycle_period": 0},
    {"replay.method": "double", "replay.recycle_candidates": 0},
    {"replay.method": "per", "replay.capacity": 100, "replay.replace_candidates": 256},
    {"replay.method": "uniform", "replay.replace_candidates": 0},
    {"replay.sampling_exponent": Schedule(0.0, 5.0, over=1.0)},
    {"actor.exploration": constant(0)},
    {"learner.discount": 0},
    {"learner.discount": 1},
    {"learner.learning_starts": 32},
    {"learner.learning_starts": 1_000_000},
    {"replay.priority_floor": 1.0},
    {"actor.n_steps": 255},
    {"env.stack": 1, "run.threads": 1},
    {"env.arguments": {"depth": 3, "names": ["a", {"b": 1.5}], "loud": True}},
    {"evaluation.period": 0, "run.checkpoint_period": 0},
]

REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"replay.replace_candidates": 60_000}, "replay.replace_candidates = 60000: at most replay.capacity (50000)"),
    ({"replay.recycle_candidates": 50_001}, "replay.recycle_candidates = 50001: at most replay.capacity (50000)"),
    ({"replay.replace_candidates": 0}, "replay.replace_candidates = 0: at least 1 with method 'dpsr'"),
    ({"replay.replace_candidates": -1}, "replay.replace_candidates = -1: at least 0"),
    ({"replay.recycle_candidates": 1}, "replay.recycle_candidates = 1: at least 2"),
    ({"replay.recycle_candidates": 0}, "replay.recycle_candidates = 0: at least 2"),
    ({"replay.recycle_period": -1}, "replay.recycle_period = -1: at least 0"),
    ({"replay.capacity": 31, "replay.method": "per"}, "learner.batch_size = 32: at most replay.capacity (31)"),
    ({"replay.capacity": 0}, "replay.capacity = 0: from 1 to 2147483647"),
    ({"replay.method": "prioritized"}, "replay.method = 'prioritized': one of 'uniform', 'per', 'per_rank', 'double'"),
    ({"replay.initial_priority": "td"}, "replay.initial_priority = 'td': one of 'max', 'td_error'"),
    ({"replay.sampling_exponent": constant(5.1)}, "replay.sampling_exponent = 5.1: from 0 to 5"),
    ({"replay.replacing_exponent": constant(-0.1)}, "replay.replacing_exponent = -0.1: from 0 to 5"),
    ({"replay.replacing_exponent": Schedule(0.1, -0.1)}, "replay.replacing_exponent.end = -0.1: from 0 to 5"),
    ({"replay.bias_annealing": Schedule(0.4, 1.1)}, "replay.bias_annealing.end = 1.1: from 0 to 1"),
    ({"actor.exploration": Schedule(1.5, 0.0)}, "actor.exploration.start = 1.5: from 0 to 1"),
    ({"actor.exploration": Schedule(1.0, 0.0, 0.0)}, "actor.exploration.over = 0.0: above 0 and at most 1"),
    ({"actor.exploration": Schedule(0.5, 0.5, 1.5)}, "actor.exploration.over = 1.5: above 0 and at most 1"),
    (
        {"actor.exploration": Schedule(1.0, math.nan)},
        "actor.exploration = Schedule(start=1.0, end=nan, over=1.0): a fi",
    ),
    ({"replay.priority_floor": 0.0}, "replay.priority_floor = 0.0: from 1e-50 to 1"),
    ({"replay.priority_floor": 1e-51}, "replay.priority_floor = 1e-51: from 1e-50 to 1"),
    ({"replay.priority_floor": 1.5}, "replay.priority_floor = 1.5: from 1e-50 to 1"),
    ({"replay.exponent_tolerance": -0.1}, "replay.exponent_tolerance = -0.1: from 0 to 1"),
    ({"actor.n_steps": 0}, "actor.n_steps = 0: from 1 to 255"),
    ({"actor.n_steps": 256}, "actor.n_steps = 256: from 1 to 255"),
    ({"actor.environments": 0}, "actor.environments = 0: at least 1"),
    ({"learner.discount": 1.01}, "learner.discount = 1.01: from 0 to 1"),
    ({"learner.discount": math.nan}, "learner.discount = nan: a finite number"),
    ({"learner.learning_rate": 0.0}, "learner.learning_rate = 0.0: above 0"),
    ({"learner.learning_rate": math.inf}, "learner.learning_rate = inf: a finite number"),
    ({"learner.gradient_clip": -1.0}, "learner.gradient_clip = -1.0: above 0"),
    ({"learner.gradient_clip": 10**400}, "a finite number"),
    ({"learner.batch_size": 1_001}, "learner.batch_size = 1001: at most learner.learning_starts (1000)"),
    ({"learner.batch_size": 0}, "learner.batch_size = 0: at least 1"),
    ({"learner.learning_starts": 0}, "learner.learning_starts = 0: at least 1"),
    ({"run.total_steps": 999}, "learner.learning_starts = 1000: at most run.total_steps (999)"),
    ({"learner.steps_per_update": -1}, "learner.steps_per_update = -1: at least 0"),
    (
        {"learner.steps_per_update": 0, "system.actors": 0},
        "learner.steps_per_update = 0: at least 1 in a single process",
    ),
    ({"learner.target_period": 0}, "learner.target_period = 0: at least 1"),
    ({"learner.hidden": ()}, "learner.hidden = (): a list of one or more integers"),
    ({"learner.hidden": (64, 0)}, "learner.hidden[1] = 0: at least 1"),
    ({"learner.head": 0}, "learner.head = 0: at least 1"),
    ({"learner.device": "tpu"}, "learner.device = 'tpu': one of 'auto', 'cpu', 'cuda'"),
    ({"evaluation.period": -1}, "evaluation.period = -1: at least 0"),
    ({"evaluation.episodes": 0}, "evaluation.episodes = 0: at least 1"),
    ({"evaluation.epsilon": 1.1}, "evaluation.epsilon = 1.1: from 0 to 1"),
    ({"evaluation.max_steps": 0}, "evaluation.max_steps = 0: at least 1"),
    ({"run.seed": -1}, "run.seed = -1: from 0 to 2147483647"),
    ({"run.seed": True}, "run.seed = True: an integer"),
    ({"run.log_period": 0}, "run.log_period = 0: at least 1"),
    ({"run.checkpoint_period": -1}, "run.checkpoint_period = -1: at least 0"),
    ({"run.checkpoints_kept": 0}, "run.checkpoints_kept = 0: at least 1"),
    ({"run.threads": 0}, "run.threads = 0: at least 1"),
    ({"run.threads": 1.0}, "run.threads = 1.0: an integer or left out"),
    ({"env.stack": 0}, "env.stack = 0: from 1 to 255"),
    ({"env.name": ""}, "env.name = '': text that is not empty"),
    ({"env.arguments": {"x": None}}, "env.arguments = {'x': None}: a table of"),
    ({"env.arguments": {"x": [math.inf]}}, "env.arguments = {'x': [inf]}: a table of"),
    ({"replay.recycle_at_max_priority": 1}, "replay.recycle_at_max_priority = 1: true or false"),
]


@pytest.mark.parametrize("values", SOUND, ids=str)
def test_a_sound_configuration_has_no_fault(values: dict[str, Any]) -> None:
    validate(changed(values))


@pytest.mark.parametrize(("values", "words"), REFUSED, ids=str)
def test_a_refusal_names_the_key_the_value_and_what_is_allowed(values: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        validate(changed(values))
    assert words in str(refusal.value)


def test_all_faults_are_reported_together() -> None:
    with pytest.raises(ConfigError) as refusal:
        validate(changed({"learner.head": 0, "run.seed": -1, "replay.replace_candidates": 60_000}))
    assert len(str(refusal.value).splitlines()) == 3
    assert all(word in str(refusal.value) for word in ("learner.head", "run.seed", "replay.replace_candidates"))


def test_a_value_of_the_wrong_kind_does_not_hide_one_out_of_range() -> None:
    faults = find_faults(changed({"learner.head": 0, "learner.discount": math.nan, "replay.method": "x"}))
    assert {fault.key for fault in faults} == {"learner.head", "learner.discount", "replay.method"}


def test_a_long_value_is_cut_short() -> None:
    [fault] = find_faults(changed({"env.arguments": {"x": "y" * 10_000, "z": None}}))
    assert len(str(fault)) < 250


def test_every_number_of_the_tree_has_a_range() -> None:
    numeric = {key for key, kind in KINDS.items() if kind in (int, float, Schedule) or int in get_args(kind)}
    assert numeric == set(RANGES)


def test_a_fault_within_a_setting_knows_the_setting() -> None:
    faults = find_faults(changed({"learner.hidden": (0,), "actor.exploration": Schedule(1.0, 2.0)}))
    assert {fault.setting for fault in faults} == {"learner.hidden", "actor.exploration"}


def test_settings_names_every_leaf_of_the_tree() -> None:
    values = settings(Config())
    assert values.keys() == KINDS.keys()
    assert values["replay.capacity"] == 50_000
    assert len(values) == 47


@pytest.mark.parametrize(
    ("method", "sampling", "replaces", "recycles", "alpha"),
    [
        ("uniform", "proportional", False, False, 0.0),
        ("per", "proportional", False, False, 0.6),
        ("per_rank", "rank", False, False, 0.6),
        ("double", "proportional", True, False, 0.6),
        ("dpsr", "proportional", True, True, 0.6),
    ],
)
def test_the_table_of_methods(method: Method, sampling: str, replaces: bool, recycles: bool, alpha: float) -> None:
    replay = ReplayConfig(method=method)
    assert (replay.sampling, replay.replaces_by_priority, replay.recycles) == (sampling, replaces, recycles)
    assert replay.alpha == constant(alpha)


def test_dpsr_with_period_zero_does_not_recycle() -> None:
    assert not ReplayConfig(method="dpsr", recycle_period=0).recycles


def test_methods_are_the_five_of_the_design() -> None:
    assert KINDS["replay.method"] is Method
    assert get_args(Method) == ("uniform", "per", "per_rank", "double", "dpsr")
