"""Starting and resuming a run, from validated input to exit code; `dpsr_apex.cli` parses the command line.

For a multi-process run this process does not load torch; only the processes that compute with it do.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from dpsr_apex import timeouts
from dpsr_apex.callbacks import CallbackFailed, Callbacks, Given, instances, names
from dpsr_apex.config import Config, ConfigError, RunConfig, validate
from dpsr_apex.config_files import describe_params, ensure_same, load_config
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
    is_complete,
    list_checkpoints,
)
from dpsr_apex.record.choice import read_checkpoint
from dpsr_apex.record.ending import Ending, read_ending, remove_ending, write_ending
from dpsr_apex.record.evaluations import score_line
from dpsr_apex.record.journal.giving_up import discard_journal, give_up_damage
from dpsr_apex.record.journal.position import has_journal, reached
from dpsr_apex.record.lock import RunLock, running_alone
from dpsr_apex.record.metrics import truncate_after
from dpsr_apex.record.moments import read_moments, write_moments
from dpsr_apex.record.progress import goal_of, is_finished, saved_at
from dpsr_apex.record.provenance import PYTHON_API, Session
from dpsr_apex.record.run_directory import RunDirectory, RunDirectoryError, title_of, write_config
from dpsr_apex.record.settings import describe_changes
from dpsr_apex.supervise.engines import Engine
from dpsr_apex.supervise.supervisor import RunFailed, Supervisor
from dpsr_apex.trackers import ensure_installed
from dpsr_apex.usability import ensure_device, ensure_memory, ensure_usable

EngineFor = Callable[[Path], Engine]
"""Returns the engine that starts the processes of a run in this directory."""

AfterRun = Callable[[Path], None]
"""Called with the directory of a finished run, before the last line is printed."""


def _do_nothing(_path: Path) -> None:
    pass


class Options(NamedTuple):
    """What may be given to any start of a run, beside its config."""

    after: AfterRun = _do_nothing
    callbacks: Given = ()
    command: str = PYTHON_API  # the command line, for the provenance
    lock_release: float = timeouts.LOCK_RELEASE  # seconds for which a process that has ended may still hold its lock


_NO_OPTIONS = Options()


def announce_params(config: Config, source: str | Path, params: str | None) -> None:
    """Print the parameter set of the config that `source` and `params` name, if the method uses it."""
    if config.replay.method == "dpsr" and (described := describe_params(source, params)):
        make_console().print(f"Parameter set: {described}", soft_wrap=True)


def train(config: Config, path: Path, engine_for: EngineFor, options: Options = _NO_OPTIONS) -> int:
    """Start a new run in a new run directory."""
    options = _with_callbacks(config, options)
    ensure_installed(config.run.track)
    usable = ensure_usable(config)
    engine = _engine(config, path, engine_for)
    if not (engine and engine.flags):  # on a cluster the replay and the learner may have other nodes
        ensure_memory(config, usable.sizes)
        ensure_device(config)
    run = RunDirectory.create(path)
    with running_alone(run, options.lock_release) as lock:
        RunDirectory.ensure_free(path)  # another process may have been faster
        _keep_starts(config, run)
        write_config(config, run)
        return _run(config, run, None, engine, lock, options, usable.notes)


def resume(
    path: Path,
    total_steps: int | None,
    checkpoint: Path | None,
    actors: int | None,
    engine_for: EngineFor,
    options: Options = _NO_OPTIONS,
    until_damage: bool = False,
) -> int:
    """Continue a run where it ended, or from the given checkpoint; `total_steps` can extend it.

    With `until_damage`, everything in its journal after the first damage is given up.
    """
    run = RunDirectory.open(path)
    config = load_config(run.config)
    options = _with_callbacks(config, options)
    ensure_installed(config.run.track)
    if total_steps in (None, config.run.total_steps) and checkpoint is None and is_finished(run):
        longer = pasteable("resume", path, "--steps", str(2 * config.run.total_steps))
        make_console().print(f"{path} is finished. To train longer: {longer}", soft_wrap=True)
        return 0
    with running_alone(run, options.lock_release) as lock:
        if until_damage:
            make_console().print(give_up_damage(run, checkpoint), soft_wrap=True)
        return _continue(run, total_steps, checkpoint, actors, engine_for, lock, options)


def continue_or_train(config: Config, path: Path, engine_for: EngineFor, options: Options = _NO_OPTIONS) -> int:
    """Continue the run in `path` if it has this config, or start it if it does not exist: `train --resume`."""
    if RunDirectory.is_free(path):
        return train(config, path, engine_for, options)
    run = RunDirectory.open(path)
    ensure_same(config, run.config)
    options = _with_callbacks(config, options)
    ensure_installed(config.run.track)
    with running_alone(run, options.lock_release) as lock:
        if list_checkpoints(run.checkpoints) or has_journal(run):
            return _continue(run, None, None, config.system.actors or None, engine_for, lock, options)
        _keep_starts(config, run)
        write_config(config, run)
        for rows in _records(run):  # left by a run that was killed before its first checkpoint
            truncate_after(rows, 0)
        return _run(config, run, None, _engine(config, path, engine_for), lock, options)


def _keep_starts(config: Config, run: RunDirectory) -> None:
    """Copy the moments at which episodes begin, so that the run does not depend on a file elsewhere."""
    if config.actor.start_from:
        write_moments(run.starts, read_moments(Path(config.actor.start_from)))


def _engine(config: Config, path: Path, engine_for: EngineFor) -> Engine | None:
    """Return the engine that starts the processes of a run; None for a single-process run."""
    return engine_for(path) if config.system.actors != 0 else None


def _continue(
    run: RunDirectory,
    total_steps: int | None,
    checkpoint: Path | None,
    actors: int | None,
    engine_for: EngineFor,
    lock: RunLock,
    options: Options,
) -> int:
    config = load_config(run.config)
    engine = _engine(config, run.path, engine_for)
    found = _continued(run, checkpoint)
    if actors is not None and config.system.actors == 0:
        raise ConfigError(f"--actors {actors}: {run.path} is a single-process run and continues as one; omit --actors")
    if actors is not None and actors != config.system.actors:
        config = replace(config, system=replace(config.system, actors=actors))
        validate(config)
        write_config(config, run)
    goes_back = is_followed(run, found)
    t = found.t if goes_back else reached(run, found)
    if total_steps is not None and total_steps != config.run.total_steps:
        if total_steps <= t:
            raise ConfigError(f"run.total_steps must be > {t}, where the run continues (got {total_steps})")
        config = replace(config, run=_extended(config.run, total_steps))
        validate(config)
        write_config(config, run)
    if t > config.run.total_steps:  # an edited config, which fits the checkpoint but not the journal after it
        steps = config.run.total_steps
        raise ConfigError(
            f"run.total_steps = {steps} in {run.config}, but the run is at t = {t}: set it to at least that"
        )
    discard_later(run, found, goes_back)
    changes = describe_changes(config, found, t)
    if config.system.actors:  # the replay process loads the checkpoint, which may be too large to be in memory twice
        found = Checkpoint(t, {})
    return _run(config, run, found, engine, lock, options, changes)


def is_followed(run: RunDirectory, found: Checkpoint) -> bool:
    """Whether a later checkpoint is intact: a user who continues from this one wants to go back."""
    return any(is_complete(path) for path in list_checkpoints(run.checkpoints) if clock_of(path) > found.t)


def discard_later(run: RunDirectory, found: Checkpoint, goes_back: bool) -> None:
    """Remove the checkpoints after the one to continue from, and the journal if the run goes back.

    Otherwise the later ones are damaged, and the journal leads over them to the end.
    """
    if goes_back:
        discard_journal(run)
    discard_after(run.checkpoints, found.t)


def _with_callbacks(config: Config, options: Options) -> Options:
    """Return the options with callbacks as the run uses them; reject those that it could not call."""
    prepare = instances if config.system.actors == 0 else names
    return options._replace(callbacks=prepare(options.callbacks))


def _records(run: RunDirectory) -> tuple[Path, Path]:
    """Return the files of the run that contain rows by clock."""
    return run.metrics, run.evaluations


def _run(
    config: Config,
    run: RunDirectory,
    checkpoint: Checkpoint | None,
    engine: Engine | None,
    lock: RunLock,
    options: Options,
    notes: Sequence[str] = (),
) -> int:
    name, session = "solo" if engine is None else "supervisor", Session(run, options.command)
    with (
        run.log_to(name) as log,
        Interrupt(lock.note_ending) as interrupt,
        LiveView(goal_of(config.run), title=title_of(config, run.path), is_alone=engine is None) as view,
    ):
        _announce(run, checkpoint, notes, view, log)
        view.start_clock()
        try:
            finished = _run_to_end(config, run, checkpoint, engine, interrupt, view, options.callbacks, session)
        except Exception as error:
            log.exception("the run ended")
            _note_failure(error, run, name, session)
            if isinstance(error, UserError) and run.config.exists():
                _note_how_to_continue(config, run, view, engine.flags if engine else (), finished=False)
            raise
        by_callback = _ended_by_callback(run, finished) if options.callbacks else None
        ending = by_callback or _ending(run, interrupt, finished)
        write_ending(run, ending)
        session.end(ending)
    if finished:  # below the last screen, which would otherwise push these lines out of sight
        view.note(score_line(run))
        options.after(run.path)
    view.note(f"Learning curve: {run.curve}")
    _note_how_to_continue(config, run, view, engine.flags if engine else (), finished)
    if ending.process == "callback":
        raise CallbackFailed(ending.cause)
    return ending.exit_code


def _announce(
    run: RunDirectory, checkpoint: Checkpoint | None, notes: Sequence[str], view: LiveView, log: logging.Logger
) -> None:
    """Show where the run starts or continues, and the rows before that."""
    action, t = ("Continuing", checkpoint.t) if checkpoint else ("Starting", 0)
    for text in (*notes, f"{action} in {run.path} at t = {t:,}"):
        view.note(text)
        log.info(text)
    if checkpoint:
        view.recall(*([row for row in read_rows(rows) if row["t"] <= checkpoint.t] for rows in _records(run)))


def _ending(run: RunDirectory, interrupt: Interrupt, finished: bool) -> Ending:
    """Return the ending of a run without an error."""
    t = saved_at(run)
    if finished:
        return Ending("finished", 0, t)
    if interrupt.exit_code:
        return Ending("stopped", interrupt.exit_code, t)
    return Ending("failed", 1, t, "replay", "ended before the run was finished")


def _ended_by_callback(run: RunDirectory, finished: bool) -> Ending | None:
    """Return the ending that the owner of the record has written because of a callback; None if there is none."""
    ending = read_ending(run)
    return ending if ending and (ending.outcome == "failed" or not finished) else None


def _ending_after(error: Exception, run: RunDirectory, process: str) -> Ending:
    """Return the ending of a run after an error in `process`, or after a failure that it reports."""
    code = error.exit_code if isinstance(error, UserError) else 1
    cause = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
    if isinstance(error, RunFailed):
        process, cause, _ = error.failure
    return Ending("failed", code, saved_at(run), process, cause)


def _note_failure(error: Exception, run: RunDirectory, process: str, session: Session) -> None:
    """Write how the run has ended, and add to an exception of a user's own code what to do, after its traceback."""
    ending = _ending_after(error, run, process)
    session.end(ending)
    write_ending(run, ending)
    if not isinstance(error, UserError):  # those are shown without a traceback
        t = saved_at(run)
        saved = f"To continue from t = {t:,}: {pasteable('resume', run.path)}" if t else "Nothing was saved."
        error.add_note(f"The run has failed; its log is {run.logs / process}.log. {saved}")


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
    elif t := saved_at(run):
        view.note(f"Stopped at t = {t:,}. To continue: {pasteable('resume', run.path, *flags)}")
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
    callbacks: Given,
    session: Session,
) -> bool:
    """Run in one process or in many; return whether the run is finished."""
    t = checkpoint.t if checkpoint else 0
    if callbacks:
        remove_ending(run)  # so that one found later was written because of a callback
    if engine is None:
        from dpsr_apex.solo.training import Training

        remove_ending(run)
        session.begin(t)
        training = Training(config, run, view, checkpoint, Callbacks(instances(callbacks)))
        training.run(interrupt)
        return training.finished
    session.begin(t)
    finished = Supervisor(config, run, view, engine, names(callbacks)).run(interrupt)
    draw_run(config, run)
    return finished


def _continued(run: RunDirectory, chosen: Path | None) -> Checkpoint:
    """Return the checkpoint to continue from, an empty one if there is only a journal.

    For a damaged one, raise an error with the command for the one before.
    """
    if chosen is None and not list_checkpoints(run.checkpoints) and has_journal(run):
        return Checkpoint(0, {})
    try:
        _, found = read_checkpoint(run, chosen)
    except DamagedCheckpoint as damage:
        if damage.offered is None:
            raise
        remedy = f"To continue from there: {pasteable('resume', run.path, '--checkpoint', damage.offered)}"
        raise RunDirectoryError(f"{damage} {remedy}") from damage
    return found
