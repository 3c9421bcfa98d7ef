"""From a TOML file to the runs of an experiment: every combination of configs, methods, parameter sets and seeds.

Only what is to be run, and with which config; nothing is started or written here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple, get_args

from dpsr_apex.config import Config, ConfigError, Fault, Method, is_number
from dpsr_apex.config_files import find_file, load_config, read_toml, shipped_configs, shipped_experiments

_TOP = ("description", "at_once", "success", "grid", "sets")
_GRID = ("configs", "methods", "params", "base", "seeds", "settings")


class Plan(NamedTuple):
    """One run."""

    name: str  # of its folder, such as "cartpole-dpsr-seed3"
    config: Config


@dataclass(frozen=True)
class Experiment:
    """All runs of one file, the first seed of everything first, so that an early look is a fair one."""

    source: Path
    description: str
    at_once: int  # runs at a time
    plans: tuple[Plan, ...]

    @property
    def name(self) -> str:
        """What it is called where it was given no other place."""
        return self.source.stem

    @property
    def total_steps(self) -> int:
        """Transitions of all runs."""
        return sum(plan.config.run.total_steps for plan in self.plans)


class _Cell(NamedTuple):
    seed: int
    config: str
    params: str | None
    method: str
    base: str | None
    settings: dict[str, Any]


def load_experiment(source: str | Path) -> Experiment:
    """The experiment of `source`: a TOML file, or the name of a shipped one. A ConfigError names every mistake."""
    path = find_file(source, shipped_experiments())
    table = read_toml(path)
    _refuse_strangers(table, _TOP, path)
    at_once = _number(table.get("at_once", 1), "at_once", path)
    if not is_number(table.get("success", 0)):
        raise ConfigError(Fault("success", table["success"], f"a number of points (from {path})"))
    grids = table.get("grid", [])
    if not isinstance(grids, list) or not grids:
        raise ConfigError(f"{path}: there is no [[grid]]: name at least one, with its configs and methods")
    cells = [cell for grid in grids for cell in _cells(grid, path)]
    sets = _sets(table, {cell.params for cell in cells}, path)
    plans = [_plan(cell, sets, path) for cell in sorted(cells, key=lambda cell: cell.seed)]
    names = [plan.name for plan in plans]
    if twice := {name for name in names if names.count(name) > 1}:
        raise ConfigError(f"{path}: planned twice: {', '.join(sorted(twice))}")
    return Experiment(path, str(table.get("description", "")).strip(), at_once, tuple(plans))


def _cells(grid: Any, path: Path) -> Iterator[_Cell]:
    if not isinstance(grid, dict):
        raise ConfigError(Fault("grid", grid, f"a table (from {path})"))
    _refuse_strangers(grid, _GRID, path)
    configs = _texts(grid, "configs", path)
    methods = _texts(grid, "methods", path)
    params = _texts(grid, "params", path) if "params" in grid else [None]
    for method in methods:
        if method not in get_args(Method):
            raise ConfigError(Fault("grid.methods", method, f"one of {', '.join(get_args(Method))} (from {path})"))
    settings = grid.get("settings", {})
    for seed, config, name, method in product(_seeds(grid, path), configs, params, methods):
        yield _Cell(seed, config, name, method, grid.get("base"), settings)


def _plan(cell: _Cell, sets: Mapping[str, Any], path: Path) -> Plan:
    """Its own sets are the experiment's; any other name is one of the config's or a shipped one."""
    own = sets.get(cell.params) if cell.params else None
    always: dict[str, Any] = {
        "replay": {"method": cell.method},
        "run": {"seed": cell.seed, "threads": 1},  # so that results do not depend on the machine's cores
        "system": {"actors": 0},
    }
    tables = {f"the grid of {path}": always, f"settings of {path}": cell.settings}
    if own is not None:
        tables[f"sets.{cell.params} of {path}"] = own
    config = load_config(cell.config, base=cell.base, params=cell.params if own is None else None, tables=tables)
    if (config.replay.method, config.run.seed) != (cell.method, cell.seed):
        raise ConfigError(f"{path}: settings and sets may not name replay.method or run.seed: the grid does")
    is_shipped = cell.config.removesuffix(".toml") in shipped_configs()
    config_name = cell.config.removesuffix(".toml").replace("/", "-") if is_shipped else Path(cell.config).stem
    words = [config_name, cell.method, cell.params]
    return Plan("-".join([*(word for word in words if word), f"seed{cell.seed}"]), config)


def _sets(table: Mapping[str, Any], used: set[str | None], path: Path) -> dict[str, Any]:
    """The experiment's own parameter sets."""
    sets = table.get("sets", {})
    if not isinstance(sets, dict):
        raise ConfigError(Fault("sets", sets, f"a table of parameter sets (from {path})"))
    if unused := sorted(sets.keys() - used):
        raise ConfigError(f"{path}: no grid has the parameter set {', '.join(unused)} among its params")
    return sets


def _seeds(grid: Mapping[str, Any], path: Path) -> list[int]:
    """`seeds = 10` is 0 to 9."""
    given = grid.get("seeds", 1)
    if isinstance(given, list) and given and all(type(seed) is int and seed >= 0 for seed in given):
        return given
    if type(given) is int and given > 0:
        return list(range(given))
    raise ConfigError(Fault("grid.seeds", given, f"a number of seeds, or a list of them (from {path})"))


def _texts(grid: Mapping[str, Any], key: str, path: Path) -> list[Any]:
    given = grid.get(key)
    if isinstance(given, list) and given and all(isinstance(text, str) for text in given):
        return given
    raise ConfigError(Fault(f"grid.{key}", given, f"a list of one or more names (from {path})"))


def _number(given: Any, key: str, path: Path) -> int:
    if type(given) is int and given > 0:
        return given
    raise ConfigError(Fault(key, given, f"an integer of at least 1 (from {path})"))


def _refuse_strangers(table: Mapping[str, Any], known: tuple[str, ...], path: Path) -> None:
    for key in table:
        if key not in known:
            raise ConfigError(f"{path}: no such key: {key}; there are {', '.join(known)}")
