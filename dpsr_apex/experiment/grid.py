"""From a TOML file to the runs of an experiment: every combination of configs, methods, parameter sets and seeds.

It only plans the runs and their configs; nothing is started or written here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from dpsr_apex.config import Config, ConfigError, Fault
from dpsr_apex.config_files import find_file, load_config, read_toml, shipped_configs, shipped_experiments
from dpsr_apex.kinds import is_number
from dpsr_apex.methods import METHODS
from dpsr_apex.record.progress import Goal, goal_of

_TOP = ("description", "at_once", "success", "grid", "sets")
_GRID = ("configs", "methods", "params", "base", "seeds", "settings")


class Plan(NamedTuple):
    """One run."""

    name: str  # of its folder, such as "cartpole-dpsr-seed3"
    config: Config

    @property
    def goal(self) -> Goal:
        """The steps at which the run ends."""
        return goal_of(self.config.run)


@dataclass(frozen=True)
class Experiment:
    """All runs of one file, the first seed of every combination first, so that early results are comparable."""

    source: Path
    description: str
    at_once: int  # runs at a time
    plans: tuple[Plan, ...]

    @property
    def name(self) -> str:
        """The name of its folder in `runs/`, unless another one is given."""
        return self.source.stem

    @property
    def total_steps(self) -> int:
        """Total steps of all runs, as their goals count them."""
        return sum(plan.goal.steps for plan in self.plans)


class _Cell(NamedTuple):
    seed: int
    config: str
    params: str | None
    method: str
    base: str | None
    settings: dict[str, Any]


def load_experiment(source: str | Path) -> Experiment:
    """Return the experiment of `source`, a TOML file or the name of a shipped one; raise ConfigError if invalid."""
    path = find_file(source, shipped_experiments(), "experiments")
    table = read_toml(path)
    _refuse_unknown_keys(table, _TOP, path)
    at_once = _number(table.get("at_once", 1), "at_once", path)
    if not is_number(table.get("success", 0)):
        raise ConfigError(Fault("success", table["success"], "a number of points").found_in(path))
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
        raise ConfigError(Fault("grid", grid, "a table").found_in(path))
    _refuse_unknown_keys(grid, _GRID, path)
    configs = _texts(grid, "configs", path)
    methods = _texts(grid, "methods", path)
    params = _texts(grid, "params", path) if "params" in grid else [None]
    for method in methods:
        if method not in METHODS:
            raise ConfigError(Fault("grid.methods", method, f"one of {', '.join(METHODS)}").found_in(path))
    settings = grid.get("settings", {})
    for seed, config, name, method in product(_seeds(grid, path), configs, params, methods):
        yield _Cell(seed, config, name, method, grid.get("base"), settings)


def _plan(cell: _Cell, sets: Mapping[str, Any], path: Path) -> Plan:
    """Return the run of one cell; its parameter set is the experiment's own, else the config's, else a shipped one."""
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
    """Return the experiment's own parameter sets; raise ConfigError if one is not used."""
    sets = table.get("sets", {})
    if not isinstance(sets, dict):
        raise ConfigError(Fault("sets", sets, "a table of parameter sets").found_in(path))
    if unused := sorted(sets.keys() - used):
        raise ConfigError(f"{path}: no grid has the parameter set {', '.join(unused)} among its params")
    return sets


def _seeds(grid: Mapping[str, Any], path: Path) -> list[int]:
    """Return the seeds: `seeds = 10` means 0 to 9."""
    given = grid.get("seeds", 1)
    if isinstance(given, list) and given and all(type(seed) is int and seed >= 0 for seed in given):
        return given
    if type(given) is int and given > 0:
        return list(range(given))
    raise ConfigError(Fault("grid.seeds", given, "a number of seeds, or a list of them").found_in(path))


def _texts(grid: Mapping[str, Any], key: str, path: Path) -> list[Any]:
    given = grid.get(key)
    if isinstance(given, list) and given and all(isinstance(text, str) for text in given):
        return given
    raise ConfigError(Fault(f"grid.{key}", given, "a list of one or more names").found_in(path))


def _number(given: Any, key: str, path: Path) -> int:
    if type(given) is int and given > 0:
        return given
    raise ConfigError(Fault(key, given, "an integer >= 1").found_in(path))


def _refuse_unknown_keys(table: Mapping[str, Any], known: tuple[str, ...], path: Path) -> None:
    for key in table:
        if key not in known:
            raise ConfigError(f"{path}: unknown key {key}; the keys are {', '.join(known)}")
