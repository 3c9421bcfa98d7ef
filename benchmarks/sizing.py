"""The estimates in docs/machines.md and docs/experiments.md: how many steps a core makes, and how long a run takes.

Nothing is measured here. The figures are from `make bench` (docs/bench/results.json).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from benchmarks.measure import APEX_IN, APEX_OUT, comparison_from, markdown_table
from dpsr_apex.config_files import load_config, shipped_experiments
from dpsr_apex.experiment.grid import load_experiment

HOUR, DAY = 3_600.0, 86_400.0  # seconds
FOUR = 4  # steps per update, as with the base `released`
TABLES = ("table1", "table4")  # experiments
BASES = ("paper", "released")


class Costs(NamedTuple):
    """CPU seconds, as measured on Breakout with batches of 32."""

    update: float
    step: float  # of an actor, including the network that chooses actions


def costs_of(results: Mapping[str, Any]) -> Costs:
    """Extract the costs from the results of `make bench`."""
    learner, whole = (results["benchmarks"][name]["figures"] for name in ("learner", "whole_system"))
    step = whole["cores used by the actor"]["median"] / whole["steps per second"]["median"]
    return Costs(learner["CPU seconds per update"]["ours, both threads"]["median"], step)


def sizing(results: Mapping[str, Any]) -> str:
    """Return how many actors a learner can use, and what a replay carries, in Markdown."""
    costs = costs_of(results)
    lines = map(comparison_from, results["benchmarks"]["replay_traffic"]["comparisons"])
    loads = next(line.ratio.median for line in lines if line.work.startswith("one replay process on one core"))
    return f"""**How many steps can the learner use?** Its updates per second times `learner.steps_per_update`. An
update took {1_000 * costs.update:.0f} ms of CPU time, so a learner on one core makes {1 / costs.update:.0f} updates a
second, and with an update every {FOUR} steps it uses {FOUR / costs.update:.0f} steps a second.

**How many actors produce them?** A step of an actor took {1_000 * costs.step:.1f} ms of CPU time, including the network
that chooses actions. So one actor on its own core makes {1 / costs.step:.0f} steps a second, more than such a learner
can use. **With a learner on a CPU, one actor is enough**; others would wait. Many actors are worth it with a fast
learner, with a large `learner.steps_per_update`, or in free running (0).

**Can the replay keep up?** One replay process on one core sustained {loads:.1f} times the published load of Ape-X
({APEX_IN:,} transitions in and {APEX_OUT} batches of 512 out per second, N = 1,000,000). The number of actors hardly
matters to it. [scaling.md](scaling.md) shows how many actors fit on which network, and what several replays would
take."""


def durations(results: Mapping[str, Any]) -> str:
    """Return how long the paper's tables take on one core, in Markdown."""
    costs = costs_of(results)
    counts = {name: len(load_experiment(shipped_experiments()[name]).plans) for name in TABLES}
    rows = []
    for base in BASES:
        config = load_config("atari/breakout", base=base)
        per_update, total = config.learner.steps_per_update, config.run.total_steps
        seconds = total / per_update * costs.update + total * costs.step
        days = [f"{count * seconds / DAY:.0f} days of one core" for count in counts.values()]
        rows.append((f"`{base}`", str(per_update), f"{seconds / HOUR:.1f} hours", *days))
    titles = [f"Table {name[-1]}, {count} runs" for name, count in counts.items()]
    columns = ("base", "F_s", f"a run of T = {total:,}", *titles)
    return f"""- an update of batch 32 takes {1_000 * costs.update:.1f} ms of CPU time;
- a step of an actor takes {1_000 * costs.step:.2f} ms, including the network that chooses actions.

Seconds on one core ≈ T / F_s × {costs.update:.4f} + T × {costs.step:.5f}, without evaluations:

{markdown_table(columns, rows)}"""
