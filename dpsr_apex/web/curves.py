"""Overlaid curves of several runs: grouped, with an interval over the seeds of each group, as in a report."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from dpsr_apex.files import to_json
from dpsr_apex.live.curve import Points, points, smoothed
from dpsr_apex.report.curves import Curve, evaluation_curve, training_curve
from dpsr_apex.report.groups import Group, group_runs
from dpsr_apex.report.records import RunRecord, read_run
from dpsr_apex.report.style import styles_of

KINDS: Final = {"evaluation": evaluation_curve, "training": training_curve}
MOST_RUNS = 100
_MOST_POINTS = 400  # of one run


def overlaid(paths: Sequence[Path], kind: str) -> dict[str, Any]:
    """Return the curves of these runs for JSON, by environment and group; runs that cannot be read are named."""
    read = [read_run(path) for path in paths]
    records = [record for record in read if isinstance(record, RunRecord)]
    rng = np.random.default_rng(0)
    environments = []
    for environment in group_runs(records):
        styles = styles_of(environment.groups)
        groups = [
            {"label": group.label, "colour": styles[group.label].colour, "seeds": len(group.runs)}
            | _curve(group, kind, rng)
            for group in environment.groups
        ]
        environments.append({"name": environment.name, "groups": groups})
    unreadable = [
        {"path": record.path.name, "reason": record.reason} for record in read if not isinstance(record, RunRecord)
    ]
    return {"kind": kind, "environments": environments, "unreadable": unreadable}


def _curve(group: Group, kind: str, rng: np.random.Generator) -> dict[str, Any]:
    """Return the band of a group and the points of its seeds; a run with a single point has no band."""
    curve = KINDS[kind](group, rng)
    if curve is None:
        seeds = [_single(run, kind) for run in group.runs]
        return {"band": None, "points": [_listed(seed) for seed in seeds]}
    return {"band": _band(curve), "points": [_listed(seed) for seed in curve.seeds]}


def _band(curve: Curve) -> dict[str, Any]:
    middle, low, high = curve.band
    known = np.isfinite(middle)
    columns = {"t": curve.grid, "middle": middle, "low": low, "high": high}
    return {name: to_json(column[known]) for name, column in columns.items()}


def _single(run: RunRecord, kind: str) -> Points:
    if kind == "training":
        t, returns = points(run.rows, "return_mean")
        return t, smoothed(returns)
    t, means = np.array(run.scores, dtype=np.float64).reshape(-1, 2).T
    return t, means


def _listed(seed: Points) -> dict[str, Any]:
    every = max(-(-len(seed[0]) // _MOST_POINTS), 1)
    return {"t": to_json(seed[0][::every]), "y": to_json(seed[1][::every])}
