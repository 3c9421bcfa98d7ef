from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dpsr_apex.config import ConfigError, settings
from dpsr_apex.config_files import load_config, shipped_experiments
from dpsr_apex.experiment.grid import Experiment, load_experiment

GRID = """
at_once = 3

[[grid]]
configs = ["cartpole"]
methods = ["per", "dpsr"]
params = ["small", "dpsr3"]
seeds = [4, 2]

[grid.settings]
run = { total_steps = 2_000 }

[sets.small.replay]
capacity = 700
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "mine.toml"
    path.write_text(text)
    return path


def test_every_combination_is_planned_with_the_first_seed_of_everything_first(tmp_path: Path) -> None:
    experiment = load_experiment(write(tmp_path, GRID))
    kinds = [f"cartpole-{method}-{params}" for params in ("small", "dpsr3") for method in ("per", "dpsr")]
    assert [plan.name for plan in experiment.plans] == [f"{kind}-seed{seed}" for seed in (2, 4) for kind in kinds]
    assert experiment.at_once == 3
    assert experiment.total_steps == 8 * 2_000
    assert experiment.name == "mine"


def test_a_plan_is_the_config_with_its_set_its_method_and_its_seed(tmp_path: Path) -> None:
    plans = {plan.name: plan.config for plan in load_experiment(write(tmp_path, GRID)).plans}
    common = ["run.total_steps=2000", "run.seed=4", "run.threads=1", "system.actors=0", "replay.method=per"]
    assert plans["cartpole-per-small-seed4"] == load_config("cartpole", overrides=[*common, "replay.capacity=700"])
    assert plans["cartpole-per-dpsr3-seed4"] == load_config("cartpole", params="dpsr3", overrides=common)


def test_a_set_of_the_experiment_wins_over_a_shipped_one_of_its_name(tmp_path: Path) -> None:
    experiment = load_experiment(write(tmp_path, GRID.replace("small", "dpsr0")))
    assert {plan.config.replay.capacity for plan in experiment.plans if "dpsr0" in plan.name} == {700}


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ('["cartpole"]', '["cartpol"]', "did you mean cartpole"),
        (
            '["per", "dpsr"]',
            '["per", "dspr"]',
            "grid.methods must be one of dpsr, double, per, per_rank, uniform \\(got 'dspr'\\) \\(from",
        ),
        ('["per", "dpsr"]', "[]", "grid.methods must be a list of one or more names \\(got \\[\\]\\)"),
        ('"dpsr3"', '"dpsr9"', "params must be one of .* \\(got 'dpsr9'\\)"),
        ("seeds = [4, 2]", "seeds = 0", "grid.seeds must be a number of seeds, or a list of them \\(got 0\\)"),
        ("seeds = [4, 2]", "seeds = [2, 2]", "planned twice: cartpole-dpsr-dpsr3-seed2"),
        ("at_once = 3", "at_once = 0", "at_once must be an integer >= 1 \\(got 0\\)"),
        ("at_once = 3", "atonce = 3", "unknown key atonce"),
        ("seeds = [4, 2]", "sedes = 1", "unknown key sedes"),
        ("capacity = 700", "capacity = -1", "replay.capacity must be .* \\(got -1\\)"),
        ("capacity = 700", "capazity = 7", "did you mean replay.capacity"),
        ("total_steps", "total_stepz", "did you mean run.total_steps"),
        ("[[grid]]", "[[gird]]", "unknown key gird"),
        ("run = { total_steps", "run = { seed = 7, total_steps", "the grid does"),
        ("capacity = 700", 'method = "uniform"', "the grid does"),
        ("[sets.small.replay]", "[sets.smal.replay]", "no grid has the parameter set smal"),
        ("at_once = 3", 'success = "many"', "success must be a number of points \\(got 'many'\\)"),
        ("[sets.small.replay]\ncapacity = 700", 'sets = ["small"]', "sets is not a setting|sets must be a table"),
    ],
)
def test_a_mistake_is_named(tmp_path: Path, old: str, new: str, reason: str) -> None:
    assert old in GRID
    with pytest.raises(ConfigError, match=reason):
        load_experiment(write(tmp_path, GRID.replace(old, new)))


def test_an_unknown_experiment_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(ConfigError, match="did you mean cartpole"):
        load_experiment("cartpool")


@pytest.fixture(scope="module")
def shipped() -> dict[str, Experiment]:
    return {name: load_experiment(name) for name in shipped_experiments()}


def test_the_papers_experiments_are_shipped(shipped: dict[str, Experiment]) -> None:
    assert {name: len(experiment.plans) for name, experiment in shipped.items()} == {
        "ablation": 5 * 4 * 10,
        "breakout_100k": 3,
        "cartpole": 5 * 10,
        "corridor": 5 * 6 * 20,
        "distributed": 2 * 10,
        "minatar": 2 * 3 * 5,
        "modern": 3 * 2 * 3,
        "motivating_example": 3 * 5 * 10,
        "table1": 24 * 3,
        "table4": 24 * (2 + 5),
        "verdict_atari": 5 * 3 * 3,
        "verdict_exploration": 3 * 3 * 10,
        "verdict_minatar": 5 * 5 * 10,
    }


def test_table_1_is_a_million_steps_with_the_papers_settings(shipped: dict[str, Experiment]) -> None:
    paper = settings(load_config("atari/breakout"))
    plans = {plan.name: settings(plan.config) for plan in shipped["table1"].plans}
    differing = {key for key, value in plans["atari-breakout-dpsr-best-seed0"].items() if value != paper[key]}
    assert differing == {"run.threads", "system.actors"}
    assert {plan["env.name"] for plan in plans.values()} >= {"AirRaid", "Zaxxon"}
    assert {plan["run.total_steps"] for plan in plans.values()} == {1_000_000}


VERDICT = ("verdict_minatar", "verdict_exploration", "verdict_atari")
RECYCLING = {
    "replay.recycle_candidates",
    "replay.recycle_period",
    "replay.recycle_share",
    "replay.recycle_steps",
    "replay.recycle_choice",
    "replay.recycle_exploration",
}


def by_environment(experiment: Experiment) -> dict[str, dict[str, dict[str, Any]]]:
    """Return the settings of every method of the first seed, by environment, then by name of the run."""
    found: dict[str, dict[str, dict[str, Any]]] = {}
    seed = experiment.plans[0].config.run.seed
    for plan in experiment.plans:
        if plan.config.run.seed == seed:
            found.setdefault(plan.config.env.name, {})[plan.name] = settings(plan.config)
    return found


@pytest.mark.parametrize("name", VERDICT)
def test_the_methods_of_the_verdict_differ_in_nothing_but_what_they_are_about(
    name: str, shipped: dict[str, Experiment]
) -> None:
    for runs in by_environment(shipped[name]).values():
        (deep,) = (values for run, values in runs.items() if "-deep-" in run)
        assert len(runs) == (5 if name == "verdict_minatar" else 3)
        assert {values["run.environment_steps"] for values in runs.values()} == {deep["run.total_steps"]}
        for values in runs.values():
            assert {key for key in deep if values[key] != deep[key]} <= {"replay.method"} | RECYCLING


@pytest.mark.parametrize("name", VERDICT)
def test_a_deep_variant_is_the_same_in_every_environment_so_that_a_report_pools_them(
    name: str, shipped: dict[str, Experiment]
) -> None:
    keys = sorted(RECYCLING)
    for variant in ("-one_step-", "-deep-"):
        all_runs = [item for runs in by_environment(shipped[name]).values() for item in runs.items()]
        assert len({tuple(str(values[key]) for key in keys) for run, values in all_runs if variant in run}) == 1


def test_all_parts_of_the_verdict_have_the_same_deep_variant(shipped: dict[str, Experiment]) -> None:
    plans = [plan for name in VERDICT for plan in shipped[name].plans if "-deep-" in plan.name]
    assert len({str([settings(plan.config)[key] for key in sorted(RECYCLING)]) for plan in plans}) == 1
    assert all(plan.config.replay.recycle_steps > 1 for plan in plans)


@pytest.mark.parametrize("name", VERDICT)
def test_every_seed_of_the_verdict_is_complete_before_the_next_one_starts(
    name: str, shipped: dict[str, Experiment]
) -> None:
    seeds = [plan.config.run.seed for plan in shipped[name].plans]
    assert seeds == sorted(seeds)
    assert len({seeds.count(seed) for seed in seeds}) == 1
