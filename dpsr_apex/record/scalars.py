"""The scalars of a row of metrics and of a config, under the names that TensorBoard and the trackers show."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dpsr_apex.config import Config, settings
from dpsr_apex.config_files import toml_value
from dpsr_apex.files import to_json
from dpsr_apex.record.metric_table import tag_of

PROJECT = "dpsr_apex"  # the project or experiment in a tracker, unless its own variable names another


def scalars_of(row: Mapping[str, Any]) -> list[tuple[int, dict[str, float]]]:
    """Return the scalars of a row by tag, each group with its clock: an evaluation has its own, the others have `t`."""
    scalars = {name: float(value) for name, value in to_json(row).items() if isinstance(value, int | float)}
    del scalars["t"]
    clock, mean = scalars.pop("evaluation_t", None), scalars.pop("evaluation_mean", None)
    groups = [] if clock is None or mean is None else [(int(clock), {tag_of("evaluation_mean"): mean})]
    tagged = {tag_of(name): value for name, value in scalars.items()}
    return [*groups, (row["t"], tagged)] if tagged else groups


def settings_of(config: Config) -> dict[str, bool | int | float | str]:
    """Return every setting by its dotted key; what is not a number or a name as TOML, a missing value as ''."""
    return {key: _plain(value) for key, value in settings(config).items()}


def _plain(value: Any) -> bool | int | float | str:
    if value is None:
        return ""
    return value if isinstance(value, bool | int | float | str) else toml_value(value)
