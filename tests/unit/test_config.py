"""The tree refuses whatever cannot be run, and says which key, which value and what would be allowed."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import Any, get_args

import pytest

from dpsr_apex.config import SETTINGS, Config, ConfigError, ReplayConfig, find_faults, settings, validate
from dpsr_apex.kinds import OneOf, Range
from dpsr_apex.methods import METHODS
from dpsr_apex.schedules import Schedule, constant


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
    {"env.wrappers": ("my.module:Wrapper", "other:Wrapper_2")},
    {"env.arguments": {"depth": 3, "names": ["a", {"b": 1.5}], "loud": True}},
    {"evaluation.period": 0, "run.checkpoint_period": 0},
]

REFUSED: list[tuple[dict[str, Any], str]] = [
    (
        {"replay.replace_candidates": 60_000},
        "replay.replace_candidates must be at most replay.capacity, which is 50000 (got 60000)",
    ),
    (
        {"replay.recycle_candidates": 10_001, "replay.capacity": 10_000},
        "replay.recycle_candidates must be at most replay.capacity, which is 10000 (got 10001)",
    ),
    (
        {"replay.recycle_candidates": 50_001, "replay.capacity": 100_000},
        "replay.recycle_candidates must be between 0 and 50000 (got 50001)",
    ),
    ({"replay.replace_candidates": 0}, "replay.replace_candidates must be >= 1 with replay.method = 'dpsr' (got 0)"),
    ({"replay.replace_candidates": -1}, "replay.replace_candidates must be >= 0 (got -1)"),
    ({"replay.recycle_candidates": 1}, "replay.recycle_candidates must be >= 2, since"),
    ({"replay.recycle_candidates": 0}, "replay.recycle_candidates must be >= 2, since"),
    ({"replay.recycle_period": -1}, "replay.recycle_period must be >= 0 (got -1)"),
    ({"replay.recycle_share": 1.0}, "replay.recycle_share must be between 0 and 0.99 (got 1.0)"),
    ({"replay.recycle_steps": 0}, "replay.recycle_steps must be between 1 and 1000 (got 0)"),
    (
        {"replay.recycle_steps": 60, "replay.recycle_candidates": 1_000},
        "replay.recycle_steps must be at most 50: 1000 candidates may take 50000 steps together (got 60)",
    ),
    (
        {"replay.recycle_choice": "new"},
        "replay.recycle_choice must be one of 'low', 'high', 'novel', 'failure' (got 'new')",
    ),
    ({"run.environment_steps": 0}, "run.environment_steps must be >= 1 (got 0)"),
    (
        {"replay.capacity": 31, "replay.method": "per"},
        "learner.batch_size must be at most replay.capacity, which is 31 (got 32)",
    ),
    ({"replay.capacity": 0}, "replay.capacity must be between 1 and 2147483647 (got 0)"),
    (
        {"replay.method": "prioritized"},
        "replay.method must be one of 'dpsr', 'double', 'per', 'per_rank', 'uniform' (got 'prioritized')",
    ),
    ({"replay.initial_priority": "td"}, "replay.initial_priority must be one of 'max', 'td_error' (got 'td')"),
    ({"replay.sampling_exponent": constant(5.1)}, "replay.sampling_exponent must be between 0 and 5 (got 5.1)"),
    ({"replay.replacing_exponent": constant(-0.1)}, "replay.replacing_exponent must be between 0 and 5 (got -0.1)"),
    (
        {"replay.replacing_exponent": Schedule(0.1, -0.1)},
        "replay.replacing_exponent.end must be between 0 and 5 (got -0.1)",
    ),
    ({"replay.bias_annealing": Schedule(0.4, 1.1)}, "replay.bias_annealing.end must be between 0 and 1 (got 1.1)"),
    ({"actor.exploration": Schedule(1.5, 0.0)}, "actor.exploration.start must be between 0 and 1 (got 1.5)"),
    ({"actor.exploration": Schedule(1.0, 0.0, 0.0)}, "actor.exploration.over must be > 0 and <= 1 (got 0.0)"),
    ({"actor.exploration": Schedule(0.5, 0.5, 1.5)}, "actor.exploration.over must be > 0 and <= 1 (got 1.5)"),
    (
        {"actor.exploration": Schedule(1.0, math.nan)},
        "actor.exploration must be a finite number, or a schedule such as { start = 1.0, end = 0.1, over = 0.5 } (got",
    ),
    ({"replay.priority_floor": 0.0}, "replay.priority_floor must be between 1e-50 and 1 (got 0.0)"),
    ({"replay.priority_floor": 1e-51}, "replay.priority_floor must be between 1e-50 and 1 (got 1e-51)"),
    ({"replay.priority_floor": 1.5}, "replay.priority_floor must be between 1e-50 and 1 (got 1.5)"),
    ({"replay.exponent_tolerance": -0.1}, "replay.exponent_tolerance must be between 0 and 1 (got -0.1)"),
    ({"actor.n_steps": 0}, "actor.n_steps must be between 1 and 255 (got 0)"),
    ({"actor.n_steps": 256}, "actor.n_steps must be between 1 and 255 (got 256)"),
    ({"actor.environments": 0}, "actor.environments must be >= 1 (got 0)"),
    ({"learner.discount": 1.01}, "learner.discount must be between 0 and 1 (got 1.01)"),
    ({"learner.discount": math.nan}, "learner.discount must be a finite number (got nan)"),
    ({"learner.learning_rate": constant(0.0)}, "learner.learning_rate must be > 0 (got 0.0)"),
    ({"learner.learning_rate": constant(math.inf)}, "learner.learning_rate must be a finite number, or a schedule"),
    ({"learner.gradient_clip": -1.0}, "learner.gradient_clip must be > 0 (got -1.0)"),
    ({"learner.gradient_clip": 10**400}, "a finite number"),
    (
        {"learner.batch_size": 1_001},
        "learner.batch_size must be at most learner.learning_starts, which is 1000 (got 1001)",
    ),
    ({"run.total_steps": 10**30}, "run.total_steps must be between 1 and 1000000000000 (got 10000"),
    ({"learner.batch_size": 0}, "learner.batch_size must be between 1 and 100000 (got 0)"),
    ({"learner.batch_size": 100_001}, "learner.batch_size must be between 1 and 100000 (got 100001)"),
    ({"learner.learning_starts": 0}, "learner.learning_starts must be >= 1 (got 0)"),
    ({"run.total_steps": 999}, "learner.learning_starts must be at most run.total_steps, which is 999 (got 1000)"),
    ({"learner.steps_per_update": -1}, "learner.steps_per_update must be >= 0 (got -1)"),
    (
        {"learner.steps_per_update": 0, "system.actors": 0},
        "learner.steps_per_update must be >= 1 in a single process",
    ),
    ({"learner.target_period": 0}, "learner.target_period must be >= 1 (got 0)"),
    ({"learner.hidden": ()}, "learner.hidden must be a list of one or more integers (got ())"),
    ({"learner.hidden": (64, 0)}, "learner.hidden[1] must be >= 1 (got 0)"),
    ({"learner.head": 0}, "learner.head must be >= 1 (got 0)"),
    ({"learner.device": "tpu"}, "learner.device must be one of 'auto', 'cpu', 'cuda' (got 'tpu')"),
    ({"evaluation.period": -1}, "evaluation.period must be >= 0 (got -1)"),
    ({"evaluation.episodes": 0}, "evaluation.episodes must be >= 1 (got 0)"),
    ({"evaluation.epsilon": 1.1}, "evaluation.epsilon must be between 0 and 1 (got 1.1)"),
    ({"evaluation.max_steps": 0}, "evaluation.max_steps must be >= 1 (got 0)"),
    ({"run.seed": -1}, "run.seed must be between 0 and 2147483647 (got -1)"),
    ({"run.seed": True}, "run.seed must be an integer (got True)"),
    ({"run.log_period": 0}, "run.log_period must be >= 1 (got 0)"),
    ({"run.checkpoint_period": -1}, "run.checkpoint_period must be >= 0 (got -1)"),
    ({"run.checkpoints_kept": 0}, "run.checkpoints_kept must be >= 1 (got 0)"),
    ({"run.threads": 0}, "run.threads must be >= 1 (got 0)"),
    ({"run.threads": 1.0}, "run.threads must be an integer or left out (got 1.0)"),
    ({"env.stack": 0}, "env.stack must be between 1 and 255 (got 0)"),
    ({"env.name": ""}, "env.name must be a non-empty string (got '')"),
    ({"env.wrappers": ("my.module",)}, "env.wrappers must be a list of \"package.module:Class\" (got ('my.module',))"),
    ({"env.wrappers": "my:Wrapper"}, 'env.wrappers must be a list of "package.module:Class"'),
    ({"env.wrappers": (1,)}, 'env.wrappers must be a list of "package.module:Class"'),
    ({"env.arguments": {"x": None}}, "env.arguments must be a table of"),
    ({"env.arguments": {"x": [math.inf]}}, "(got {'x': [inf]})"),
    ({"replay.recycle_at_max_priority": 1}, "replay.recycle_at_max_priority must be true or false (got 1)"),
]


@pytest.mark.parametrize("values", SOUND, ids=str)
def test_a_sound_configuration_has_no_fault(values: dict[str, Any]) -> None:
    validate(changed(values))


@pytest.mark.parametrize(("values", "words"), REFUSED, ids=str)
def test_a_refusal_names_the_key_the_value_and_what_is_allowed(values: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        validate(changed(values))
    assert words in str(refusal.value)
    assert all(re.fullmatch(r"\S+ must be .+ \(got .+\)", line) for line in str(refusal.value).splitlines())


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
    kinds = {key: setting.kind for key, setting in SETTINGS.items()}
    numeric = {key for key, kind in kinds.items() if kind in (int, float, Schedule) or int in get_args(kind)}
    assert numeric == {key for key, setting in SETTINGS.items() if setting.range}


@pytest.mark.parametrize(
    ("allowed", "words", "inside", "outside"),
    [
        (Range(1), ">= 1", [1, 10**30], [0, 0.999]),
        (Range(0, above=True), "> 0", [1e-300], [0, -1]),
        (Range(0, 5), "between 0 and 5", [0, 5], [-1e-9, 5.1]),
        (Range(0, 1, above=True), "> 0 and <= 1", [1e-300, 1], [0, 1.1]),
    ],
)
def test_a_range_says_what_it_holds(allowed: Range, words: str, inside: list[float], outside: list[float]) -> None:
    assert str(allowed) == words
    assert all(map(allowed.holds, inside))
    assert not any(map(allowed.holds, outside))


def test_a_fault_within_a_setting_knows_the_setting() -> None:
    faults = find_faults(changed({"learner.hidden": (0,), "actor.exploration": Schedule(1.0, 2.0)}))
    assert {fault.setting for fault in faults} == {"learner.hidden", "actor.exploration"}


def test_settings_names_every_leaf_of_the_tree() -> None:
    values = settings(Config())
    assert values.keys() == SETTINGS.keys()
    assert values["replay.capacity"] == 50_000
    assert len(values) == 77


def test_dpsr_with_period_zero_does_not_recycle() -> None:
    assert not ReplayConfig(method="dpsr", recycle_period=0).recycles


def test_a_share_replaces_the_period() -> None:
    assert ReplayConfig(method="dpsr", recycle_period=0, recycle_share=0.1).recycles
    assert not ReplayConfig(method="per", recycle_share=0.1).recycles


def test_the_method_is_one_of_the_table() -> None:
    assert SETTINGS["replay.method"].kind == OneOf(tuple(METHODS))
    assert all(ReplayConfig(method=name).parts is method for name, method in METHODS.items())
