"""Group runs by environment, and within it by all settings that affect learning, except the seed.

Grouping and labelling only; no results are computed here.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from dpsr_apex.config import INCIDENTAL, settings
from dpsr_apex.formatting import in_order
from dpsr_apex.methods import METHODS
from dpsr_apex.report.records import RunRecord
from dpsr_apex.schedules import Schedule, constant

SEED: Final = "run.seed"
METHOD: Final = "replay.method"

# Numbers of a row that depend neither on the logging interval nor on the wall clock.
CUMULATIVE: Final = (
    *("t", "environment_steps", "episodes", "return_best", "updates", "age_mean", "priority_mean"),
    *("replaced_age", "replaced_priority", "recycled_gain"),
)

# The paper's symbols for settings; other settings are labelled with the last part of their key.
SYMBOLS: Final = {
    "replay.capacity": "N",
    "replay.sampling_exponent": "α",
    "replay.bias_annealing": "β",
    "replay.replacing_exponent": "γ",
    "replay.replace_candidates": "C_c",
    "replay.recycle_candidates": "C_r",
    "replay.recycle_period": "F_r",
    "replay.recycle_at_max_priority": "M",
    "actor.exploration": "ε",
    "learner.batch_size": "k",
    "learner.learning_rate": "η",
    "learner.steps_per_update": "F_s",
    "learner.target_period": "F_t",
    "run.total_steps": "T",
}


@dataclass(frozen=True)
class Group:
    """Runs that differ only in the seed and in what they record; `label` is unique within the environment."""

    environment: str
    label: str
    method: str
    settings: dict[str, str]  # those that affect learning, as text, by dotted key, without the seed
    runs: Sequence[RunRecord]
    copies: Sequence[RunRecord]  # identical to one of the runs step by step, hence not replications

    @property
    def final_scores(self) -> NDArray[np.float64]:
        """The final score of each finished run."""
        return np.array([run.final_score for run in self.runs if run.final_score is not None], dtype=np.float64)

    @property
    def recycles(self) -> bool:
        """Whether these runs have recycling rounds."""
        return self.runs[0].config.replay.recycles


@dataclass(frozen=True)
class Environment:
    """All groups of one environment; `name` includes its arguments, `env_name` is the setting env.name."""

    name: str
    env_name: str
    groups: Sequence[Group]


def group_runs(records: Iterable[RunRecord]) -> list[Environment]:
    """Group runs by environment and settings, in a deterministic order."""
    by_environment: dict[str, dict[str, list[RunRecord]]] = {}
    for record in records:
        texts = _texts(record)
        groups = by_environment.setdefault(_environment_name(record), {})
        groups.setdefault(json.dumps(texts), []).append(record)
    names = sorted(by_environment, key=in_order)
    return [_environment(name, list(by_environment[name].values())) for name in names]


def differing_keys(groups: Sequence[Group]) -> list[str]:
    """Return the keys of the settings in which these groups differ, in the order of the config."""
    return _differing([group.settings for group in groups])


def show_setting(value: Any) -> str:
    """Format the value of a setting for people to read."""
    if isinstance(value, Schedule):
        if value == constant(value.start):
            return _exact(value.start)
        over = "" if value.over == 1 else f" over {_exact(value.over)} T"
        return f"{_exact(value.start)} → {_exact(value.end)}{over}"
    if isinstance(value, dict):
        return ", ".join(f"{key} = {show_setting(item)}" for key, item in value.items()) or "–"
    if isinstance(value, list | tuple):
        return " × ".join(map(show_setting, value))
    if value is None:
        return "–"
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:,}" if isinstance(value, int) else _exact(value) if isinstance(value, float) else str(value)


def _exact(number: float) -> str:
    """Format a number as short as possible without losing precision."""
    short = f"{number:g}"
    return short if float(short) == number else repr(number)


def _texts(record: RunRecord) -> dict[str, str]:
    ignored = {SEED, *INCIDENTAL}
    return {key: show_setting(value) for key, value in settings(record.config).items() if key not in ignored}


def _environment_name(record: RunRecord) -> str:
    env = record.config.env
    details = [show_setting(env.arguments)] if env.arguments else []
    details += [wrapper.rpartition(":")[2] for wrapper in env.wrappers]
    return f"{env.name} ({', '.join(details)})" if details else env.name


def _environment(name: str, groups: Sequence[Sequence[RunRecord]]) -> Environment:
    all_texts = [_texts(runs[0]) for runs in groups]
    labelled = []
    for runs, texts in zip(groups, all_texts, strict=True):
        same_method = [other for other in all_texts if other[METHOD] == texts[METHOD]]
        labelled.append(_group(name, runs, texts, _differing(same_method)))
    labelled.sort(key=lambda group: (list(METHODS).index(group.method), group.label))
    return Environment(name, groups[0][0].config.env.name, labelled)


def _group(environment: str, runs: Sequence[RunRecord], texts: dict[str, str], label_keys: Sequence[str]) -> Group:
    method = texts[METHOD]
    details = ", ".join(f"{SYMBOLS.get(key, key.split('.')[1])} {texts[key]}" for key in label_keys)
    label = f"{method} · {details}" if details else method
    originals: dict[str, RunRecord] = {}
    ordered = sorted(runs, key=lambda run: (run.config.run.seed, str(run.path)))
    copies = [run for run in ordered if originals.setdefault(_history(run), run) is not run]
    return Group(environment, label, method, texts, list(originals.values()), copies)


def _history(run: RunRecord) -> str:
    """Return the run's progress and scores as text: equal for two single-process runs with the same seed.

    It does not depend on how often they were logged.
    """
    if not run.rows and not run.scores:
        return str(run.path)
    last = [[row.get(name) for name in CUMULATIVE] for row in run.rows[-1:]]
    return json.dumps([run.config.run.seed, last, list(run.scores)])


def _differing(texts: Sequence[dict[str, str]]) -> list[str]:
    return [key for key in texts[0] if len({other[key] for other in texts}) > 1]
