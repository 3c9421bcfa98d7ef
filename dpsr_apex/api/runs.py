"""Runs from Python: `train` and `resume` start them, `Run` reads what they leave in their run directory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import datetime
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from dpsr_apex.api import checks
from dpsr_apex.api.environments import SnapshotEnv
from dpsr_apex.api.policy import Policy, Weights, load_policy
from dpsr_apex.callbacks import Given
from dpsr_apex.config import Config
from dpsr_apex.config_files import load_config
from dpsr_apex.envs.compression import DamagedSnapshot
from dpsr_apex.errors import UserError
from dpsr_apex.files import StrPath, read_rows
from dpsr_apex.inspection.opening import OpenedRun, open_run
from dpsr_apex.record.run_directory import RunDirectory, default_path, name_of
from dpsr_apex.replay.replay import Replay
from dpsr_apex.roles.build import build_env

THIS_MACHINE = "127.0.0.1:0"  # where a run with several processes is served: any free port, for this machine only


class Run:
    """A run directory, finished or not. Rows are dicts, so that `pandas.DataFrame(run.metrics)` works.

    Functions that take a run directory also take a `Run`.
    """

    def __init__(self, run_dir: StrPath) -> None:
        self._directory = RunDirectory.open(checks.path(run_dir, "run_dir"))

    @property
    def path(self) -> Path:
        """The run directory."""
        return self._directory.path

    @property
    def config(self) -> Config:
        """All settings of the run."""
        return load_config(self._directory.config)

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """One row per logging interval, as in `metrics.jsonl`."""
        return [dict(row) for row in read_rows(self._directory.metrics)]

    @property
    def evaluations(self) -> list[dict[str, Any]]:
        """One row per evaluation, as in `evaluations.jsonl`."""
        return [dict(row) for row in read_rows(self._directory.evaluations)]

    @property
    def replay(self) -> Replay:
        """The replay of the newest checkpoint at the first use, to look into: changes of it are not saved."""
        return self._opened.replay

    def policy(self, weights: Weights = "best") -> Policy:
        """Return the policy with the weights of the best evaluation, or of the newest checkpoint."""
        return load_policy(self.path, weights)

    def enter(self, identity: int) -> SnapshotEnv:
        """Return a live environment in the state from which a stored transition started; to be closed by the caller.

        `identity` is one of `replay.identities`. The environment's rules are those of an evaluation.
        """
        from dpsr_apex.inspection.play_from import find_restorable, seed_of

        identity = checks.integer(identity, "identity")
        transition = find_restorable(self._opened, identity)
        config = self._opened.config
        env = build_env(config, seed_of(config, identity), training=False)
        try:
            env.restore(transition.snapshot, transition.s_tm1)
        except DamagedSnapshot as damage:
            env.close()
            raise UserError(f"transition {identity} cannot be restored: {damage}") from damage
        return SnapshotEnv(env)

    @cached_property
    def _opened(self) -> OpenedRun:
        return open_run(self.path)

    def __fspath__(self) -> str:
        return str(self.path)

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r})"


def train(
    config: str | Path,
    *,
    method: str | None = None,
    seed: int | None = None,
    steps: int | None = None,
    solo: bool = True,
    actors: int | None = None,
    base: str | None = None,
    params: str | None = None,
    set: Mapping[str, Any] | None = None,
    run_dir: str | Path | None = None,
    callbacks: Given = (),
) -> Run:
    """Train and return the run; `config` is a TOML file or the name of a shipped config such as "cartpole".

    `solo`: one process, reproducible bit for bit; otherwise `actors` processes and a learner. `set`: any settings, by
    their dotted keys. `run_dir`: the run's directory (default: a new one in `runs/`). `callbacks`: see
    `Callback`. The first Ctrl-C saves and stops the run, which `resume` continues.
    """
    _check(config, solo, actors, set)
    flags = {"replay.method": method, "run.seed": seed, "run.total_steps": steps}
    flags["system.actors"] = 0 if solo else actors
    given = [(key, value) for key, value in flags.items() if value is not None]
    table = _nested([*given, *_flat(set or {})])
    made = load_config(config, base=base, params=params, tables={"the arguments of train": table})
    path = checks.path(run_dir, "run_dir") if run_dir else _default_path(made)
    RunDirectory.ensure_free(path)

    from dpsr_apex import running
    from dpsr_apex.supervise.engines import default_actors

    if made.system.actors is None:
        made = replace(made, system=replace(made.system, actors=default_actors()))
    running.announce_params(made, config, params)
    running.train(made, path, _this_machine, running.Options(callbacks=callbacks))
    return Run(path)


def resume(run_dir: StrPath, *, steps: int | None = None, callbacks: Given = ()) -> Run:
    """Continue a run from its newest checkpoint, to `steps` transitions if given, and return it."""
    from dpsr_apex import running

    path, total = checks.path(run_dir, "run_dir"), None if steps is None else checks.positive(steps, "steps")
    running.resume(path, total, None, None, _this_machine, running.Options(callbacks=callbacks))
    return Run(run_dir)


def _check(config: Any, solo: bool, actors: Any, settings: Any) -> None:
    """Raise UserError for arguments of `train` that are not settings, and wrong."""
    if not isinstance(config, str | PathLike):
        raise UserError(f"config must be a file, or the name of a shipped config (got {config!r})")
    if settings is not None and not isinstance(settings, Mapping):
        raise UserError(f"set must be a dict such as {{'replay.capacity': 10_000}} (got {settings!r})")
    if solo and actors is not None:
        raise UserError(f"actors must be left out with solo=True (got {actors})")
    if actors is not None:
        checks.positive(actors, "actors")


def _default_path(made: Config) -> Path:
    return default_path(name_of(made), made.replay.method, made.run.seed, datetime.now())


def _this_machine(path: Path) -> Any:
    from dpsr_apex.supervise.engines import ThisMachine
    from dpsr_apex.wire.addresses import parse_address

    return ThisMachine(RunDirectory(path), parse_address(THIS_MACHINE))


def _flat(settings: Mapping[str, Any], start: str = "") -> Iterator[tuple[str, Any]]:
    """Return settings by their dotted keys, also those in tables."""
    for key, value in settings.items():
        if not isinstance(key, str):
            raise UserError(f"set must have dotted keys such as 'replay.capacity' (got {key!r})")
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{start}{key}.")
        else:
            yield start + key, value.item() if isinstance(value, np.generic) else value


def _nested(settings: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Return settings by dotted keys as the tree of a TOML file; raise UserError for one that is given twice."""
    tree: dict[str, Any] = {}
    for key, value in settings:
        *sections, name = key.split(".")
        table = tree
        for section in sections:
            table = table.setdefault(section, {}) if isinstance(table, dict) else table
        if not isinstance(table, dict) or name in table:
            raise UserError(f"{key} is given twice, by the arguments of train or in set; leave one of them out")
        table[name] = value
    return tree
