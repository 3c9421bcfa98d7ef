"""The supervisor of a run: polls its processes and its head, and executes what `protocol.supervision` decides.

It supervises and shows a run, and has no state that the run needs to continue. It may be killed at any time: the
processes that it has started detect that, the replay saves, and all of them exit.
"""

from __future__ import annotations

import logging
import signal
import time
from collections.abc import Sequence

from dpsr_apex import timeouts
from dpsr_apex.config import Config
from dpsr_apex.errors import UserError
from dpsr_apex.files import read_rows
from dpsr_apex.formatting import evaluation_line
from dpsr_apex.interrupt import Interrupt
from dpsr_apex.live.view import LiveView
from dpsr_apex.live.words import describe_waits
from dpsr_apex.processes.statistics import NewNotes, StatsPoller
from dpsr_apex.protocol.instructions import (
    FindResources,
    Instruction,
    Kill,
    Release,
    Report,
    Start,
    Tell,
    Terminate,
)
from dpsr_apex.protocol.supervision import Failure, Phase, Supervision, head_status
from dpsr_apex.record.progress import is_evaluated, is_trained
from dpsr_apex.record.run_directory import RunDirectory
from dpsr_apex.supervise.engines import Engine
from dpsr_apex.supervise.managed import ManagedProcess, Task, Unstarted

log = logging.getLogger(__name__)


class RunFailed(UserError):
    """Raised when a run cannot continue, with the reason."""

    exit_code = 1

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


class Supervisor:
    """Supervises the processes of one run: a replay, a learner, an evaluator and actors."""

    def __init__(
        self, config: Config, run: RunDirectory, view: LiveView, engine: Engine, callbacks: Sequence[str] = ()
    ) -> None:
        self._callbacks = callbacks
        self._config = config
        self._run = run
        self._view = view
        self._engine = engine
        self._actors = config.system.actors or 1
        self._supervision = Supervision(self._actors, run.logs, config.system.lease, time.monotonic())
        self._processes: dict[str, ManagedProcess] = {}  # the newest of each name
        self._running: dict[str, ManagedProcess] = {}  # processes whose exit was not reported yet
        self._head: StatsPoller | None = None
        self._notes = NewNotes()
        self._evaluations_shown = len(read_rows(run.evaluations))

    def run(self, interrupt: Interrupt) -> bool:
        """Run until the run ends or is interrupted; return whether it is finished and evaluated.

        The caller must hold the right to run the run. Raise RunFailed if the run cannot continue.
        """
        try:
            self._engine.withdraw_head()
            self._supervise(interrupt)
        finally:
            self._stop()
            if self._head:
                self._head.close()
            self._engine.close()
        if self._supervision.failure:
            raise RunFailed(self._supervision.failure)
        self._show_evaluations()
        self._show_last_row()
        return is_evaluated(self._run)

    def _supervise(self, interrupt: Interrupt) -> None:
        """Supervise the processes until they should be stopped."""
        while self._supervision.phase not in (Phase.STOPPING, Phase.OVER):
            if interrupt.asked:
                if self._supervision.phase is not Phase.FINISHING:
                    self._view.note("Saving… press Ctrl-C again to quit without saving.")
                return
            self._run.ensure_present()
            self._view.refresh()
            self._poll_processes()
            self._execute(self._supervision.tick(time.monotonic()))
            for text in self._engine.node_reports():
                self._report(text)
            match self._supervision.phase:
                case Phase.STARTING:
                    self._find_head()
                case Phase.RUNNING:
                    self._poll_head()
                case Phase.FINISHING:
                    self._read_record()

    def _stop(self) -> None:
        """Stop all processes, and return when none is running."""
        self._execute(self._supervision.stop(time.monotonic()))
        while self._supervision.phase is not Phase.OVER:
            time.sleep(timeouts.EXIT_POLL)
            self._poll_processes()
            self._execute(self._supervision.tick(time.monotonic()))

    def _poll_processes(self) -> None:
        """Report which processes have received their resources, and which have ended."""
        for name, process in list(self._running.items()):
            exit = process.poll()
            if exit is None:
                self._supervision.placed(name, process.is_placed)
                continue
            del self._running[name]
            self._execute(self._supervision.exited(name, exit, time.monotonic()))
            if name == "replay" and self._supervision.phase is Phase.FINISHING:
                self._show_last_row()

    def _find_head(self) -> None:
        """Connect to the replay as soon as it has published its address."""
        head = self._engine.find_head()
        if head is None:
            time.sleep(timeouts.START_POLL)
            return
        self._head = StatsPoller(lambda: head)
        self._view.note(self._engine.how_to_join(head.address))
        self._execute(self._supervision.head_found(time.monotonic()))

    def _poll_head(self) -> None:
        """Ask the head for its statistics, and show them."""
        assert self._head is not None
        if stats := self._head.poll(timeouts.SUPERVISOR_POLL):
            for text in self._notes.of(stats):
                self._view.note(text)
            self._view.show(stats)
            status = head_status(stats, describe_waits(stats.waiting))
            self._execute(self._supervision.status(status, time.monotonic()))
        elif is_trained(self._run):
            self._execute(self._supervision.trained(time.monotonic()))
        self._show_evaluations()

    def _read_record(self) -> None:
        """Report the state of the run directory after the replay has ended."""
        self._show_evaluations()
        trained, evaluated = is_trained(self._run), is_evaluated(self._run)
        self._execute(self._supervision.recorded(trained, evaluated, time.monotonic()))
        time.sleep(timeouts.SUPERVISOR_POLL)

    def _execute(self, instructions: list[Instruction]) -> None:
        for instruction in instructions:
            match instruction:
                case Start(name, role):
                    self._processes[name] = self._running[name] = self._start(self._task(name, role))
                case Terminate(name):
                    self._processes[name].signal(signal.SIGTERM)
                case Kill(name):
                    self._processes[name].kill()
                case Release(name):
                    self._processes[name].release()
                case Tell(message):
                    if self._head:
                        self._head.send(message)
                case Report(text):
                    self._report(text)
                case FindResources(roles, actors):
                    found = self._engine.find_resources(roles, actors)
                    self._execute(self._supervision.resources(found, time.monotonic()))

    def _start(self, task: Task) -> ManagedProcess:
        try:
            return self._engine.start(task)
        except OSError as error:
            return Unstarted(error)

    def _task(self, name: str, role: str) -> Task:
        path = str(self._run.path)
        callbacks = [part for name in self._callbacks for part in ("--callback", name)]
        own = {"replay": ["--run-dir", path, *callbacks], "learner": [], "evaluator": [path], "actor": ["--name", name]}
        arguments = [role, *own[role], *self._engine.arguments(role, self._actors)]
        return Task(name, role, arguments, self._run.logs / f"{name}.log")

    def _report(self, text: str) -> None:
        self._view.note(text)
        log.warning(text)

    def _show_last_row(self) -> None:
        """Show the last row of metrics, which the replay writes after it has stopped answering."""
        if rows := read_rows(self._run.metrics):
            self._view.update(rows[-1])

    def _show_evaluations(self) -> None:
        rows = read_rows(self._run.evaluations)
        for row in rows[self._evaluations_shown :]:
            self._view.evaluated(row)
            self._view.note(evaluation_line(row["t"], row["mean"], row["median"], row["games"]))
        self._evaluations_shown = len(rows)
