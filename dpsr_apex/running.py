"""Starting and resuming a run, from validated input to exit code; `dpsr_apex.cli` parses the command line.

For a multi-process run this process does not load torch; only the processes that compute with it do.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from dpsr_apex import timeouts
from dpsr_apex.config import Config, ConfigError, RunConfig, validate
from dpsr_apex.config_files import ensure_same, load_config
from dpsr_apex.envs.check import ensure_restorable
from dpsr_apex.envs.snapshot import UnusableEnvironment
from dpsr_apex.envs.stacked import StackedEnv
from dpsr_apex.errors import UserError
from dpsr_apex.files import read_rows
from dpsr_apex.formatting import pasteable
from dpsr_apex.interrupt import Interrupt
from dpsr_apex.live.console import make_console
from dpsr_apex.live.curve import draw_run
from dpsr_apex.live.view import LiveView
from dpsr_apex.record.checkpoint import (
    Checkpoint,
    DamagedCheckpoint,
    clock_of,
    discard_after,
    list_checkpoints,
)
from dpsr_apex.record.choice import read_checkpoint
from dpsr_apex.record.ending import Ending, remove_ending, write_ending
from dpsr_apex.record.evaluations import score_line
from dpsr_apex.record.lock import serving_alone, wait_until_free
from dpsr_apex.record.metrics import truncate_after
from dpsr_apex.record.progress import goal_of, is_finished
from dpsr_apex.record.run_directory import RunDirectory, RunDirectoryError, title_of, write_config
from dpsr_apex.roles.build import build_agent, build_env, one_thread
from dpsr_apex.supervise.engines import Engine
from dpsr_apex.supervise.supervisor import RunFailed, Supervisor

TRIED_STEPS = 100  # environment steps that are tried before a run is started

EngineFor = Callable[[Path], Engine]
"""Returns the engine that starts the processes of a run in this directory."""

AfterRun = Callable[[Path], None]
"""Called with the directory of a finished run, before the last line is printed."""


def _do_nothing(_path: Path) -> None:
    pass


def train(config: Config, path: Path, engine_for: EngineFor, after: AfterRun = _do_nothing) -> int:
    """Start a new run in a new run directory."""
    ensure_usable(config)
    engine = _engine(config, path, engine_for)
    if config.learner.device == "cuda" and not (engine and engine.flags):  # on a cluster the learner has another node
        from dpsr_apex.agent.devices import choose_device

        choose_device(config.learner.device)
    run = RunDirectory.create(path)
    write_config(config, run)
    return _run(config, run, None, engine, after)


def resume(
    path: Path,
    total_steps: int | None,
    checkpoint: Path | None,
    actors: int | None,
    engine_for: EngineFor,
    after: AfterRun = _do_nothing,
) -> int:
    """Continue a run from its newest checkpoint, or from the given one; `total_steps` can extend it."""
    run = RunDirectory.open(path)
    config = load_config(run.config)
    if total_steps in (None, config.run.total_steps) and checkpoint is None and is_finished(run):
        longer = pasteable("resume", path, "--steps", str(2 * config.run.total_steps))
        make_console().print(f"{path} is finished. To train longer: {longer}", soft_wrap=True)
        return 0
    engine = _engine(config, path, engine_for)
    _wait_until_free(run, engine)
    return _continue(run, total_steps, checkpoint, actors, engine, after)


def continue_or_train(config: Config, path: Path, engine_for: EngineFor, after: AfterRun = _do_nothing) -> int:
    """Continue the run in `path` if it has this config, or start it if it does not exist: `train --resume`."""
    if RunDirectory.is_free(path):
        return train(config, path, engine_for, after)
    run = RunDirectory.open(path)
    ensure_same(config, run.config)
    engine = _engine(config, path, engine_for)
    _wait_until_free(run, engine)
    if list_checkpoints(run.checkpoints):
        return _continue(run, None, None, config.system.actors or None, engine, after)
    write_config(config, run)
    for rows in _records(run):  # left by a run that was killed before its first checkpoint
        truncate_after(rows, 0)
    return _run(config, run, None, engine, after)


def _engine(config: Config, path: Path, engine_for: EngineFor) -> Engine | None:
    """Return the engine that starts the processes of a run; None for a single-process run."""
    return engine_for(path) if config.system.actors != 0 else None


def _wait_until_free(run: RunDirectory, engine: Engine | None) -> None:
    wait_until_free(run, engine.lock_release if engine else timeouts.LOCK_RELEASE)


def _continue(
    run: RunDirectory,
    total_steps: int | None,
    checkpoint: Path | None,
    actors: int | None,
    engine: Engine | None,
    after: AfterRun,
) -> int:
    config = load_config(run.config)
    found = _continued(run, checkpoint)
    if actors is not None and config.system.actors == 0:
        raise ConfigError(f"--actors {actors}: {run.path} is a single-process run and continues as one; omit --actors")
    if actors is not None and actors != config.system.actors:
        config = replace(config, system=replace(config.system, actors=actors))
        validate(config)
        write_config(config, run)
    if total_steps is not None and total_steps != config.run.total_steps:
        if total_steps <= found.t:
            raise ConfigError(f"run.total_steps must be > {found.t}, where the run continues (got {total_steps})")
        config = replace(config, run=_extended(config.run, total_steps))
        validate(config)
        write_config(config, run)
    discard_after(run.checkpoints, found.t)
    if config.system.actors:  # the replay process loads the checkpoint, which may be too large to be in memory twice
        found = found._replace(parts={})
    return _run(config, run, found, engine, after)


def ensure_usable(config: Config) -> None:
    """Reject an environment, agent or network that the run could not use, before anything is written."""
    try:
        env = _tried_out(config)
    except UnusableEnvironment:
        raise
    except Exception as error:  # a user's environment may raise anything
        remedy = "Fix its reset() or step(), which were called with random actions."
        problem, trace = f"it raised {type(error).__name__}: {error}", "".join(traceback.format_exception(error))
        raise UnusableEnvironment(config.env.name, problem, remedy, trace) from error
    if ":" in config.learner.agent or config.learner.network != "auto":  # the others always fit, and torch loads slowly
        build_agent(one_thread(config), env, 0)
    if not config.replay.recycles:
        return
    if env.actions < 2:
        remedy = "Choose a method without recycling, such as replay.method = 'double'."
        raise UnusableEnvironment(config.env.name, "it has only one action, so recycling cannot take another", remedy)
    ensure_restorable(config.env.name, config.env.arguments, config.env.stack)


def _tried_out(config: Config) -> StackedEnv:
    """Take some random steps, each of which is validated; return the environment, closed."""
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
    """Return the files of the run that contain rows by clock."""
    return run.metrics, run.evaluations


def _run(
    config: Config, run: RunDirectory, checkpoint: Checkpoint | None, engine: Engine | None, after: AfterRun
) -> int:
    name = "solo" if engine is None else "supervisor"
    with (
        run.log_to(name) as log,
        Interrupt() as interrupt,
        LiveView(goal_of(config.run), title=title_of(config, run.path)) as view,
    ):
        action, t = ("Continuing", checkpoint.t) if checkpoint else ("Starting", 0)
        text = f"{action} in {run.path} at t = {t:,}"
        view.note(text)
        log.info(text)
        if checkpoint:
            view.recall(*([row for row in read_rows(rows) if row["t"] <= checkpoint.t] for rows in _records(run)))
        try:
            finished = _run_to_end(config, run, checkpoint, engine, interrupt, view)
        except Exception as error:
            log.exception("the run ended")
            if not isinstance(error, RunDirectoryError):  # then another process serves the run, which has not ended
                write_ending(run, _ending_after(error, run, name))
            raise
        ending = _ending(run, interrupt, finished)
        write_ending(run, ending)
    if finished:  # below the last screen, which would otherwise push these lines out of sight
        view.note(score_line(run))
        after(run.path)
    view.note(f"Learning curve: {run.curve}")
    _note_how_to_continue(config, run, view, engine.flags if engine else (), finished)
    return ending.exit_code


def _ending(run: RunDirectory, interrupt: Interrupt, finished: bool) -> Ending:
    """Return the ending of a run without an error."""
    t = _saved_at(run)
    if finished:
        return Ending("finished", 0, t)
    if interrupt.exit_code:
        return Ending("stopped", interrupt.exit_code, t)
    return Ending("failed", 1, t, "replay", "ended before the run was finished")


def _ending_after(error: Exception, run: RunDirectory, process: str) -> Ending:
    """Return the ending of a run after an error in `process`, or after a failure that it reports."""
    code = error.exit_code if isinstance(error, UserError) else 1
    cause = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
    if isinstance(error, RunFailed):
        process, cause, _ = error.failure
    return Ending("failed", code, _saved_at(run), process, cause)


def _saved_at(run: RunDirectory) -> int:
    """Return the clock of the newest checkpoint; 0 if there is none."""
    saved = list_checkpoints(run.checkpoints)
    return clock_of(saved[-1]) if saved else 0


def _extended(run: RunConfig, total_steps: int) -> RunConfig:
    """Return the settings for a run of `total_steps`; a limit of environment steps is raised with it."""
    return replace(run, total_steps=total_steps, environment_steps=run.environment_steps and total_steps)


def _note_how_to_continue(
    config: Config, run: RunDirectory, view: LiveView, flags: tuple[str, ...], finished: bool
) -> None:
    """Show the command that continues this run, with the flags of its engine."""
    if finished:
        steps = 2 * config.run.total_steps
        view.note(f"Done. To train longer: {pasteable('resume', run.path, '--steps', str(steps), *flags)}")
    elif saved := list_checkpoints(run.checkpoints):
        view.note(f"Stopped at t = {clock_of(saved[-1]):,}. To continue: {pasteable('resume', run.path, *flags)}")
    else:
        again = pasteable("train", run.config, *flags)
        view.note(f"Stopped before the first checkpoint: nothing was saved. To start again: {again}")


def _run_to_end(
    config: Config,
    run: RunDirectory,
    checkpoint: Checkpoint | None,
    engine: Engine | None,
    interrupt: Interrupt,
    view: LiveView,
) -> bool:
    """Run in one process or in many; return whether the run is finished."""
    if engine is None:
        from dpsr_apex.solo.training import Training

        with serving_alone(run):
            remove_ending(run)
            training = Training(config, run, view, checkpoint)
            training.run(interrupt)
        return training.finished
    finished = Supervisor(config, run, view, engine).run(interrupt)
    draw_run(config, run)
    return finished


def _continued(run: RunDirectory, chosen: Path | None) -> Checkpoint:
    """Return the checkpoint to continue from; for a damaged one, raise an error with the command for the one before."""
    try:
        _, found = read_checkpoint(run, chosen)
    except DamagedCheckpoint as damage:
        if damage.offered is None:
            raise
        remedy = f"To continue from there: {pasteable('resume', run.path, '--checkpoint', damage.offered)}"
        raise RunDirectoryError(f"{damage} {remedy}") from damage
    return found
