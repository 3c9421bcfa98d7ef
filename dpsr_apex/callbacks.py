"""Callbacks: a user's own code at the events of a run, in the process that owns its record.

A callback can stop a run. One that raises ends it: the run saves first, so nothing that was trained is lost.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Final

from dpsr_apex.config import Config
from dpsr_apex.errors import UserError
from dpsr_apex.imports import CLASS_NAME, load_class
from dpsr_apex.record.ending import Ending, write_ending
from dpsr_apex.record.run_directory import RunDirectory
from dpsr_apex.replay.replay import Replay

log = logging.getLogger(__name__)


class Stop(Enum):
    """What a callback returns to stop the run."""

    STOP = "stop"


STOP: Final = Stop.STOP


class CallbackFailed(UserError):
    """Raised after a run that was ended by an exception in a callback, and saved."""

    exit_code = 1


@dataclass
class LiveRun:
    """The running run, as every callback is given it; nothing in it may be changed."""

    path: Path  # the run directory
    config: Config
    replay: Replay
    updates: int = 0  # made by the learner so far

    @property
    def t(self) -> int:
        """Transitions inserted so far."""
        return self.replay.t


class Callback:
    """Base class of callbacks, whose methods do nothing. A method that returns `STOP` ends the run after saving it."""

    def on_step(self, run: LiveRun, transitions: int) -> Stop | None:
        """Handle `transitions` that were inserted into the replay since the last call."""

    def on_update(self, run: LiveRun, report: dict[str, float]) -> Stop | None:
        """Handle `report["updates"]` updates with the means `loss`, `mean_q` and `gradient_norm`.

        With several processes, updates that the learner makes after its last report are not delivered.
        """

    def on_episode(self, run: LiveRun, score: float, steps: int) -> Stop | None:
        """Handle the end of a training episode."""

    def on_evaluation(self, run: LiveRun, row: dict[str, Any]) -> Stop | None:
        """Handle an evaluation: its row in `evaluations.jsonl`."""

    def on_checkpoint(self, run: LiveRun, path: Path) -> Stop | None:
        """Handle a checkpoint that was written."""

    def on_end(self, run: LiveRun, finished: bool) -> Stop | None:
        """Handle the end of the run, after its last checkpoint; `finished` is False if it can be continued."""


Given = Sequence[Callback | type[Callback] | str]
"""Callbacks as a user gives them: instances, classes, or names "module:Class"."""


class Callbacks:
    """The callbacks of one run. After one has failed, none is called any more."""

    def __init__(self, callbacks: Sequence[Callback] = ()) -> None:
        self.failure = ""  # which callback failed, and why
        self._stopped = False
        self._callbacks = tuple(callbacks)

    def __bool__(self) -> bool:
        return bool(self._callbacks)

    @property
    def wants_end(self) -> bool:
        """Whether a callback has stopped the run, or has failed."""
        return self._stopped or bool(self.failure)

    def call(self, method: str, run: LiveRun, *arguments: Any) -> None:
        """Call one method of every callback, in their order."""
        for callback in self._callbacks:
            if self.failure:
                return
            name = f"{type(callback).__module__}:{type(callback).__qualname__}.{method}"
            try:
                answer = getattr(callback, method)(run, *arguments)
            except (Exception, SystemExit) as error:  # a user's callback may raise anything, and call sys.exit()
                log.exception("the callback %s failed", name)
                self.failure = f"The callback {name} raised {type(error).__name__}: {error}"
            else:
                if answer is STOP:
                    self._stopped = True
                elif answer is not None:
                    self.failure = f"The callback {name} must return None or STOP (got {answer!r})"

    def write_ending(self, run: RunDirectory, t: int) -> None:
        """Write how the run ended at the checkpoint of clock `t`, if a callback has ended it."""
        if self.failure:
            write_ending(run, Ending("failed", CallbackFailed.exit_code, t, "callback", self.failure))
        elif self._stopped:
            write_ending(run, Ending("stopped", 0, t))


def instances(given: Given) -> tuple[Callback, ...]:
    """Return the callbacks of a run in this process; classes are called without arguments."""
    return tuple(_instance(one) for one in _listed(given))


def names(given: Given) -> tuple[str, ...]:
    """Return "module:Class" of each callback, for the process that owns the record of a run of several processes.

    Raise UserError for a callback that another process cannot import.
    """
    return tuple(_name(one) for one in _listed(given))


def _listed(given: Given) -> Given:
    if isinstance(given, str) or not isinstance(given, Sequence):
        raise UserError(f"callbacks must be a list (got {given!r})")
    return given


def _instance(given: Callback | type[Callback] | str) -> Callback:
    if isinstance(given, Callback):
        _ensure_events(type(given))
        return given
    try:
        return _class(given)()
    except UserError:
        raise
    except Exception as error:  # its constructor is a user's
        raise UserError(f"the callback {given!r} cannot be created: {type(error).__name__}: {error}") from error


def _name(given: Callback | type[Callback] | str) -> str:
    found = _class(given)
    if isinstance(given, str):
        return given
    name = f"{found.__module__}:{found.__qualname__}"
    if found.__module__ == "__main__" or not CLASS_NAME.fullmatch(name) or _class(name) is not found:
        raise UserError(f"the callback {name} cannot be imported by another process; define it in a module of its own")
    return name


def _class(given: Callback | type[Callback] | str) -> type[Callback]:
    """Return the class of a callback; raise UserError for anything else, instances included."""
    found: Any = given
    if isinstance(given, str):
        if not CLASS_NAME.fullmatch(given):
            raise UserError(f"a callback must be named 'module:Class' (got {given!r})")
        try:
            found = load_class(given)
        except ImportError as error:
            raise UserError(f"the callback {given!r} cannot be imported: {error}") from error
    if isinstance(found, Callback):
        name = type(found).__qualname__
        raise UserError(f"with several processes, a callback must be a class or 'module:Class' (got a {name} object)")
    if not (isinstance(found, type) and issubclass(found, Callback)):
        raise UserError(f"a callback must be a dpsr_apex.Callback (got {given!r})")
    _ensure_events(found)
    return found


def _ensure_events(cls: type[Callback]) -> None:
    """Raise UserError for a method that would never be called, such as a misspelled one."""
    events = [name for name in vars(Callback) if name.startswith("on_")]
    unknown = [name for name in dir(cls) if name.startswith("on_") and name not in events]
    if unknown:
        raise UserError(f"the callback {cls.__qualname__} has {unknown[0]}; the events are {', '.join(events)}")
