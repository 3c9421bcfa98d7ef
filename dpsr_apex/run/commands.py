"""Starting and continuing a run, from checked input to exit code; `dpsr_apex.cli` reads the command line.

Torch is loaded by those processes alone that compute with it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from dpsr_apex.config import Config, ConfigError, validate
from dpsr_apex.config_files import ensure_same, load_config
from dpsr_apex.envs.check import ensure_reentrant
from dpsr_apex.envs.snapshot import UnusableEnvironment
from dpsr_apex.envs.stacked import StackedEnv
from dpsr_apex.live.view import LiveView
from dpsr_apex.processes.lock import serving_alone, wait_until_free
from dpsr_apex.roles.build import build_env
from dpsr_apex.run.checkpoint import (
    Checkpoint,
    DamagedCheckpoint,
    clock_of,
    discard_after,
    list_checkpoints,
)
from dpsr_apex.run.choice import read_checkpoint
from dpsr_apex.run.curve import draw_run
from dpsr_apex.run.engines import Engine
from dpsr_apex.run.interrupt import Interrupt
from dpsr_apex.run.metrics import read_metrics, truncate_after
from dpsr_apex.run.run_directory import RunDirectory, RunDirectoryError, title_of, write_config
from dpsr_apex.run.supervisor import Supervisor
from dpsr_apex.run.typed import pasteable

FULL_RUN = 1_000_000  # transitions, the paper's T
TRIED_STEPS = 100  # of an environment, before a run begins

EngineFor = Callable[[Path], Engine]
"""What gives the processes of a run in this directory a place."""


def train(config: Config, path: Path, engine_for: EngineFor) -> int:
    """Start a new run in a new run directory."""
    ensure_usable(config)
    engine = _engine(config, path, engine_for)
    run = RunDirectory.create(path)
    write_config(config, run)
    return _run(config, run, None, engine)


def resume(
    path: Path, total_steps: int | None, checkpoint: Path | None, actors: int | None, engine_for: EngineFor
) -> int:
    """Continue a run from its newest checkpoint, or from the one given; `total_steps` can make it longer."""
    run = RunDirectory.open(path)
    wait_until_free(run)
    config = load_config(run.config)
    found = _continued(run, checkpoint)
    if actors is not None and config.system.actors == 0:
        raise ConfigError(f"--actors {actors}: {path} is a run of one process, and goes on as one")
    if actors is not None and actors != config.system.actors:
        config = replace(config, system=replace(config.system, actors=actors))
        validate(config)
        write_config(config, run)
    if total_steps is not None and total_steps != config.run.total_steps:
        if total_steps <= found.t:
            raise ConfigError(f"run.total_steps = {total_steps}: the run is at t = {found.t} already; name more steps")
        config = replace(config, run=replace(config.run, total_steps=total_steps))
        validate(config)
        write_config(config, run)
    discard_after(run.checkpoints, found.t)
    if config.system.actors:  # the replay loads it by itself, and once in memory is enough
        found = found._replace(parts={})
    return _run(config, run, found, _engine(config, path, engine_for))


def continue_or_train(config: Config, path: Path, engine_for: EngineFor) -> int:
    """`train --resume`: continue the run that is there if it is the same one, else start it."""
    if RunDirectory.is_free(path):
        return train(config, path, engine_for)
    run = RunDirectory.open(path)
    wait_until_free(run)
    ensure_same(config, run.config)
    if list_checkpoints(run.checkpoints):
        return resume(path, None, None, config.system.actors or None, engine_for)
    for rows in _records(run):  # of a run that was killed before its first checkpoint
        truncate_after(rows, 0)
    return _run(config, run, None, _engine(config, path, engine_for))


def ensure_usable(config: Config) -> None:
    """Refuse, before anything is written, an environment that the run could not use."""
    try:
        env = _tried_out(config)
    except UnusableEnvironment:
        raise
    except Exception as error:  # whatever a user's environment raises is the reason
        remedy = "Mend it, or look closer with a debugger: its reset() and step() were called with random actions."
        raise UnusableEnvironment(config.env.name, f"it raised {type(error).__name__}: {error}", remedy) from error
    if not config.replay.recycles:
        return
    if env.actions < 2:
        remedy = "Choose a method without recycling, such as replay.method = 'double'."
        raise UnusableEnvironment(config.env.name, "it has one action, so no other can be tried", remedy)
    ensure_reentrant(config.env.name, config.env.arguments, config.env.stack)


def _tried_out(config: Config) -> StackedEnv:
    """The environment after a little play, closed: what it says is checked at every step."""
    env = build_env(config, 0, training=True)
    rng = np.random.default_rng(0)
    try:
        for _ in range(TRIED_STEPS):
            env.snapshot()
            step = env.step(int(rng.integers(env.actions)))
            if step.terminal or step.truncated:
                env.reset()
    finally:
        env.close()
    return env


def _records(run: RunDirectory) -> tuple[Path, Path]:
    """Its files of rows."""
    return run.metrics, run.evaluations


def _engine(config: Config, path: Path, engine_for: EngineFor) -> Engine | None:
    """What gives its processes a place; None for a run of one process."""
    return engine_for(path) if config.system.actors != 0 else None


def _run(config: Config, run: RunDirectory, checkpoint: Checkpoint | None, engine: Engine | None) -> int:
    with (
        run.log_to("solo" if config.system.actors == 0 else "supervisor") as log,
        Interrupt() as interrupt,
        LiveView(config.run.total_steps, title=title_of(config, run.path)) as view,
    ):
        beginning = (
            f"{'Continuing' if checkpoint else 'Starting'} in {run.path} at t = {checkpoint.t if checkpoint else 0:,}"
        )
        view.note(beginning)
        log.info(beginning)  # from here on, an error that ended the run before is history
        if checkpoint:
            view.recall(*([row for row in read_metrics(rows) if row["t"] <= checkpoint.t] for rows in _records(run)))
        try:
            finished = _go_on(config, run, checkpoint, engine, interrupt, view)
        except Exception:
            log.exception("the run ended")
            raise
        view.note(f"curve {run.curve}")
        named = engine.named if engine else ()
        if finished:
            more = max(FULL_RUN, 2 * config.run.total_steps)
            again = pasteable("resume", run.path, "--steps", str(more), *named)
            view.note(f"Finished. To go on to {more:,} steps: {again}")
            return 0
        if saved := list_checkpoints(run.checkpoints):
            view.note(f"Stopped at t = {clock_of(saved[-1]):,}. To go on: {pasteable('resume', run.path, *named)}")
        else:
            view.note(f"Stopped before there was anything to save. The config is {run.config}")
        return interrupt.exit_code or 1  # it ended by itself before its time


def _go_on(
    config: Config,
    run: RunDirectory,
    checkpoint: Checkpoint | None,
    engine: Engine | None,
    interrupt: Interrupt,
    view: LiveView,
) -> bool:
    """In one process or in many; whether the run is finished."""
    if engine is None:
        from dpsr_apex.run.training import Training

        with serving_alone(run):
            training = Training(config, run, view, checkpoint)
            training.run(interrupt)
        return training.finished
    finished = Supervisor(config, run, view, engine).run(interrupt)
    draw_run(config, run)
    return finished


def _continued(run: RunDirectory, chosen: Path | None) -> Checkpoint:
    """The checkpoint to go on from; where it is damaged, an error with the command for the one before."""
    try:
        _, found = read_checkpoint(run, chosen)
    except DamagedCheckpoint as damage:
        if damage.offered is None:
            raise
        remedy = f"To go on from there: {pasteable('resume', run.path, '--checkpoint', damage.offered)}"
        raise RunDirectoryError(f"{damage} {remedy}") from damage
    return found
