from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dpsr_apex as da
from dpsr_apex.config import INCIDENTAL
from dpsr_apex.files import read_rows
from dpsr_apex.methods import METHODS
from dpsr_apex.report.comparison import compare_across, compare_within, conclusions
from dpsr_apex.report.curves import align, evaluation_curve, gain_points
from dpsr_apex.report.groups import Environment, differing_keys, group_runs, show_setting
from dpsr_apex.report.records import RunRecord, read_run
from dpsr_apex.report.style import styles_of
from dpsr_apex.report.tables import chains_table, differences_table, paper_table
from dpsr_apex.schedules import Schedule, constant
from tests.unit.report.made_runs import make_run, write_rows


def rng() -> np.random.Generator:
    return np.random.default_rng(1)


def environments_of(folder: Path) -> list[Environment]:
    records = [record for path in sorted(folder.iterdir()) if isinstance(record := read_run(path), RunRecord)]
    return group_runs(records)


def test_runs_that_differ_only_in_the_seed_form_a_group(tmp_path: Path) -> None:
    for method in ("uniform", "dpsr"):
        for seed in range(3):
            make_run(tmp_path / f"{method}{seed}", method=method, seed=seed)
    (environment,) = environments_of(tmp_path)
    assert environment.name == "CartPole-v1"
    assert [group.label for group in environment.groups] == ["dpsr", "uniform"]
    assert [len(group.runs) for group in environment.groups] == [3, 3]


def test_groups_are_in_the_order_and_style_of_the_table_of_methods(tmp_path: Path) -> None:
    for method in sorted(METHODS):
        make_run(tmp_path / method, method=method)
    (environment,) = environments_of(tmp_path)
    assert [group.method for group in environment.groups] == list(METHODS)
    styles = styles_of(environment.groups)
    assert {label: style[:2] for label, style in styles.items()} == {
        name: (method.colour, method.marker) for name, method in METHODS.items()
    }


def test_a_setting_that_differs_within_a_method_is_in_its_labels_alone(tmp_path: Path) -> None:
    make_run(tmp_path / "a", "replay.replacing_exponent=0.1", "learner.hidden=[32, 32]")
    make_run(tmp_path / "b", "replay.replacing_exponent=0.6", "learner.hidden=[64, 64]")
    make_run(tmp_path / "c", "learner.hidden=[64, 64]", method="per")
    (environment,) = environments_of(tmp_path)
    labels = [group.label for group in environment.groups]
    assert labels == ["dpsr · γ 0.1, hidden 32 × 32", "dpsr · γ 0.6, hidden 64 × 64", "per"]
    keys = ["replay.method", "replay.replacing_exponent", "learner.hidden"]
    assert differing_keys(environment.groups) == keys
    table = differences_table([environment])
    assert table
    assert table.columns == ["group", *keys]
    assert table.rows[0] == [labels[0], "dpsr", "0.1", "32 × 32"]
    assert [row[0] for row in table.rows] == labels


SHORT: dict[str, Any] = {
    "replay.capacity": 100,
    "replay.recycle_period": 50,
    "replay.replace_candidates": 16,
    "replay.recycle_candidates": 4,
    "learner.learning_starts": 50,
    "learner.batch_size": 16,
    "learner.hidden": [8],
    "learner.head": 8,
    "evaluation.episodes": 2,
    "run.log_period": 100,
    "run.threads": 1,
}
OTHERWISE = {
    "run.log_period": 30,
    "run.checkpoint_period": 70,
    "run.track": ("csv",),
    "run.checkpoints_kept": 1,
    "run.durability": "none",
    "run.learner_state_period": 100,
    "evaluation.random_episodes": 1,
    "evaluation.video": True,
    "system.memory_check": False,
    "system.memory_limit": 4096,
}


def test_settings_of_what_is_recorded_change_neither_learning_nor_groups(tmp_path: Path) -> None:
    """Of real runs: the second repeats the first one, bit for bit, and the third one is another seed of both."""
    assert OTHERWISE.keys() == set(INCIDENTAL)
    runs = [
        da.train("cartpole", seed=seed, steps=200, set=SHORT | more, run_dir=tmp_path / name)
        for name, seed, more in (("a", 0, {}), ("b", 0, OTHERWISE), ("c", 1, OTHERWISE))
    ]
    first, second, third = (read_rows(run.path / "evaluations.jsonl") for run in runs)
    assert first == second
    assert first != third
    weights = [(run.path / "weights" / "last.safetensors").read_bytes() for run in runs]
    assert weights[0] == weights[1] != weights[2]
    ((group,),) = [environment.groups for environment in environments_of(tmp_path)]
    assert group.label == "dpsr"
    assert [run.path.name for run in group.runs] == ["a", "c"]
    assert [run.path.name for run in group.copies] == ["b"], "not a replication, although it was logged more often"
    assert differences_table(environments_of(tmp_path)) is None


def test_environments_are_distinguished_by_name_and_arguments(tmp_path: Path) -> None:
    make_run(tmp_path / "a", "env.name=Corridor", "env.arguments={ length = 5 }")
    make_run(tmp_path / "b", "env.name=Corridor", "env.arguments={ length = 9 }")
    make_run(tmp_path / "c")
    names = [environment.name for environment in environments_of(tmp_path)]
    assert names == ["CartPole-v1", "Corridor (length = 5)", "Corridor (length = 9)"]


def test_a_copy_of_a_run_is_not_counted_as_a_replication(tmp_path: Path) -> None:
    shutil.copytree(make_run(tmp_path / "a"), tmp_path / "b")
    make_run(tmp_path / "c", level=150)  # the same seed with another outcome, as in multi-process runs
    ((group,),) = [environment.groups for environment in environments_of(tmp_path)]
    assert [run.path.name for run in group.runs] == ["a", "c"]
    assert [run.path.name for run in group.copies] == ["b"]


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (constant(0.6), "0.6"),
        (Schedule(1.0, 0.02, over=0.1), "1 → 0.02 over 0.1 T"),
        (0.1 + 0.2, "0.30000000000000004"),
        (50_000, "50,000"),
        (None, "–"),
        ({}, "–"),
        (True, "true"),
    ],
)
def test_settings_are_formatted_short_and_exact(value: object, shown: str) -> None:
    assert show_setting(value) == shown


def test_the_first_group_of_a_method_has_its_colour_and_each_group_its_own_shade_and_line(tmp_path: Path) -> None:
    for gamma in (0.1, 0.6):
        make_run(tmp_path / f"{gamma}", f"replay.replacing_exponent={gamma}")
    (environment,) = environments_of(tmp_path)
    styles = list(styles_of(environment.groups).values())
    assert styles[0].colour == METHODS["dpsr"].colour
    assert styles[1].colour != styles[0].colour
    assert styles[1].line != styles[0].line
    assert {style.marker for style in styles} == {METHODS["dpsr"].marker}


def test_only_finished_runs_count_in_a_comparison(tmp_path: Path) -> None:
    for seed in range(3):
        make_run(tmp_path / f"{seed}", seed=seed, until=10_000 if seed else 5_000)
    (environment,) = environments_of(tmp_path)
    comparison = compare_within(environment, rng())
    assert comparison
    assert comparison.seeds == {"dpsr": 2}


def test_groups_are_ranked_only_with_enough_seeds(tmp_path: Path) -> None:
    for seeds, folder in ((3, "few"), (6, "many")):
        for seed in range(seeds):
            for method, level in (("dpsr", 400.0), ("per", 404.0), ("uniform", 50.0)):
                make_run(tmp_path / folder / f"{method}{seed}", method=method, seed=seed, level=level, row_count=10)
    few, many = (compare_within(environments_of(tmp_path / folder)[0], rng()) for folder in ("few", "many"))
    assert few
    assert many
    assert conclusions(few) == ["No pair is ranked: ranking needs 5 finished seeds in each group."]
    assert [sentence.partition(" (")[0] for sentence in conclusions(many)] == [
        "dpsr scored higher than uniform",
        "per scored higher than uniform",
        "No significant difference: dpsr vs per.",
    ]


def test_scores_across_games_are_human_normalised_and_games_without_reference_are_listed(tmp_path: Path) -> None:
    for game, level in (("Breakout", 30.5), ("Freeway", 29.6), ("AirRaid", 9000.0)):
        for seed in range(2):
            make_run(tmp_path / f"{game}{seed}", f"env.name={game}", seed=seed, level=level)
    comparison = compare_across(environments_of(tmp_path), rng())
    assert comparison
    assert comparison.unit == "human-normalised"
    assert comparison.seeds == {"dpsr": 4}
    assert comparison.means["dpsr"].value == pytest.approx(1.0, abs=0.2)
    assert "AirRaid" in comparison.notes[0]


def test_without_a_common_scale_there_is_no_mean_over_environments(tmp_path: Path) -> None:
    for name in ("CartPole-v1", "Acrobot-v1"):
        for method in ("dpsr", "per"):
            make_run(tmp_path / f"{name}{method}", f"env.name={name}", method=method)
    comparison = compare_across(environments_of(tmp_path), rng())
    assert comparison
    assert (comparison.means, comparison.unit) == ({}, "")
    assert len(comparison.improvements) == 1
    assert any("no mean over environments" in note for note in comparison.notes)


def test_one_group_without_a_common_scale_is_not_compared_across(tmp_path: Path) -> None:
    for name in ("CartPole-v1", "Acrobot-v1"):
        make_run(tmp_path / name, f"env.name={name}")
    assert compare_across(environments_of(tmp_path), rng()) is None


def test_one_environment_is_not_compared_across(tmp_path: Path) -> None:
    make_run(tmp_path / "a")
    assert compare_across(environments_of(tmp_path), rng()) is None


def test_games_of_the_paper_are_compared_with_its_scores(tmp_path: Path) -> None:
    make_run(tmp_path / "a", "env.name=BreakoutNoFrameskip-v4")
    make_run(tmp_path / "b")
    breakout, cartpole = environments_of(tmp_path)
    table = paper_table(breakout)
    assert table
    assert ["DPSR4", "paper", "145.8", "–", "0.3, 256, 10,000, 16"] in table.rows
    assert paper_table(cartpole) is None


def test_seeds_are_interpolated_on_the_grid_only_within_their_range() -> None:
    early = (np.array([0.0, 10.0, 20.0]), np.array([0.0, 1.0, 2.0]))
    late = (np.array([9.0, 41.0]), np.array([0.0, 32.0]))
    aligned = align([early, late], np.array([0.0, 10.0, 20.0, 30.0, 40.0]))
    np.testing.assert_array_equal(aligned, [[0, 1, 2, np.nan, np.nan], [np.nan, 1, 11, 21, 31]])


def test_a_curve_continues_with_the_remaining_seeds(tmp_path: Path) -> None:
    make_run(tmp_path / "a", seed=0, until=4_000)
    make_run(tmp_path / "b", seed=1)
    ((group,),) = [environment.groups for environment in environments_of(tmp_path)]
    curve = evaluation_curve(group, rng())
    assert curve
    assert np.isfinite(curve.band.middle).all()
    assert np.isfinite(curve.band.low).tolist() == [True] * 4 + [False] * 6


def test_the_recycling_gain_is_computed_between_rows(tmp_path: Path) -> None:
    make_run(tmp_path / "a")
    ((group,),) = [environment.groups for environment in environments_of(tmp_path)]
    assert gain_points(group)[1] == pytest.approx(0.05)


def test_the_table_of_chains_sums_over_seeds_and_is_absent_without_chains(tmp_path: Path) -> None:
    for seed in (0, 1):
        path = make_run(tmp_path / f"deep{seed}", "replay.recycle_steps=5", seed=seed)
        rows = read_rows(path / "metrics.jsonl")
        rows[-1] |= {"chains": 100, "chain_steps": 250, "chain_steps_stored": 150, "chain_reward": -50.0}
        rows[-1] |= {"sampled": 4_000, "sampled_recycled": 1_000, "environment_steps": 12_500}
        write_rows(path / "metrics.jsonl", [*rows[:-1], rows[-1] | {"depth_mean": 2.0 + seed, "depth_max": 7 - seed}])
    (deep,) = environments_of(tmp_path)
    table = chains_table(deep)
    assert table is not None
    assert [row[1:] for row in table.rows] == [["200", "2.5", "-0.5", "2.0%", "25.0%", "2.5", "7"]]
    make_run(tmp_path / "other" / "run")
    (other,) = environments_of(tmp_path / "other")
    assert chains_table(other) is None
