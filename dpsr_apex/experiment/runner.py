"""Execute the runs of an experiment, a given number at a time, and show their progress.

Each run is a separate process, which saves and ends when this one does. It is forked from a template, so that a short
run does not spend its time on loading torch. No state that a run needs to continue is kept here: an experiment may be
killed at any time, and continues when it is started again.
"""

from __future__ import annotations

import signal
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from dpsr_apex import timeouts
from dpsr_apex.experiment.folder import Folder
from dpsr_apex.experiment.grid import Experiment, Plan
from dpsr_apex.files import BadLine, read_rows
from dpsr_apex.formatting import counted, number
from dpsr_apex.protocol.restarts import Exit, RestartPolicy
from dpsr_apex.record.run_directory import RunDirectory
from dpsr_apex.supervise.managed import LocalProcess, Starter, Task
from dpsr_apex.supervise.template import Template


class RunProcess:
    """The process of one run, restarted when it fails."""

    def __init__(self, task: Task, start: Starter) -> None:
        self.task = task
        self._starter = start
        self._restarts = RestartPolicy("run", time.monotonic())
        self._is_stopped = False
        self._process: LocalProcess | None = None
        self._start()

    @property
    def is_running(self) -> bool:
        """Whether it was running at the last poll."""
        return self._process is not None

    @property
    def has_ended(self) -> bool:
        """Whether it has ended and will not be restarted."""
        return self._process is None and self._restarts.start_at is None

    def poll(self) -> Exit | None:
        """Return how it has failed since the last call, if it has; restart it when that is due."""
        if self._process is not None:
            exit = self._process.poll()
            if exit is None:
                return None
            self._process = None
            self._restarts.exited(exit, time.monotonic())
            return exit if exit.code else None
        if self._restarts.is_due(time.monotonic()) and not self._is_stopped:
            self._start()
        return None

    def terminate(self) -> None:
        """Send SIGTERM, and do not restart it."""
        self._is_stopped = True
        if self._process is not None:
            self._process.signal(signal.SIGTERM)

    def kill(self) -> None:
        """Kill it, if it is running."""
        if self._process is not None:
            self._process.kill()

    def _start(self) -> None:
        self._restarts.started()
        self._process = LocalProcess(self.task, self._starter)


class Runner:
    """One execution of an experiment; `failed` lists the runs that ended without a result."""

    def __init__(self, experiment: Experiment, folder: Folder, view: Progression) -> None:
        self.failed: list[Plan] = []
        self._outputs: set[str] = set()  # of failed runs, that the user has seen
        self._folder = folder
        self._at_once = experiment.at_once
        self._view = view
        self._waiting = deque(plan for plan in experiment.plans if folder.state(plan) != "finished")
        self._running: dict[str, tuple[Plan, RunProcess]] = {}
        self._template = Template()

    def run(self, stopped: Callable[[], bool]) -> None:
        """Start runs until all have ended, or until `stopped`, after which the running ones save and end."""
        try:
            if self._waiting:
                self._template.load()
            while (self._waiting or self._running) and not stopped():
                while self._waiting and len(self._running) < self._at_once:
                    self._start(self._waiting.popleft())
                time.sleep(timeouts.EXPERIMENT_POLL)
                for plan, process in list(self._running.values()):
                    self._poll(plan, process)
        finally:
            self._end_all()
            self._template.close()

    def _start(self, plan: Plan) -> None:
        folder = self._folder
        command = ["train", str(folder.config(plan)), "--run-dir", str(folder.run(plan).path), "--resume"]
        process = RunProcess(Task(plan.name, "run", command, folder.logs / f"{plan.name}.log"), self._template.start)
        self._running[plan.name] = (plan, process)
        self._view.began(plan, folder.steps_done(plan))

    def _poll(self, plan: Plan, process: RunProcess) -> None:
        if failed := process.poll():
            self._view.say(f"{plan.name} {failed.cause}; {self._last_output(failed.output, process.task.log)}")
        if process.is_running:
            self._view.advanced(plan, self._folder.steps_done(plan))
        elif process.has_ended:
            self._ended(plan)

    def _last_output(self, output: str, log: Path) -> str:
        """Return the last output of a failed run, or only where it is if the user has seen an equal one."""
        if output in self._outputs:
            return f"its last output is as above ({log})"
        self._outputs.add(output)
        return f"its last output ({log}):\n{output}"

    def _ended(self, plan: Plan) -> None:
        del self._running[plan.name]
        if self._folder.state(plan) == "finished":
            self._view.finished(plan, last_evaluation(self._folder.run(plan)))
        else:
            self.failed.append(plan)
            self._view.finished(plan, "failed")

    def _end_all(self) -> None:
        processes = [process for _, process in self._running.values()]
        for process in processes:
            process.terminate()
        deadline = time.monotonic() + timeouts.EXPERIMENT_LEAVE
        while any(process.is_running for process in processes) and time.monotonic() < deadline:
            time.sleep(timeouts.EXIT_POLL)
            for process in processes:
                process.poll()
        for process in processes:
            process.kill()


def last_evaluation(run: RunDirectory) -> str:
    """Describe the last evaluation of a finished run; damaged lines are skipped, as by `is_evaluated`."""
    damaged: list[BadLine] = []
    row = max(read_rows(run.evaluations, damaged), key=lambda row: int(row["t"]))
    return f"evaluation mean {number(row.get('mean'))} over {counted(row.get('games', 0), 'episode')}"


class Progression:
    """A progress bar for all steps and one for each running run; plain lines without a terminal."""

    def __init__(self, experiment: Experiment, folder: Folder, console: Console) -> None:
        self._console = console
        self._done = {plan.name: folder.steps_done(plan) for plan in experiment.plans}
        self._ended = sum(folder.state(plan) == "finished" for plan in experiment.plans)
        self._runs = len(experiment.plans)
        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TextColumn("{task.completed:>11,.0f} / {task.total:,.0f}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self._all = self._progress.add_task(self._summary, total=experiment.total_steps, completed=self._sum)
        self._tasks: dict[str, TaskID] = {}

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def began(self, plan: Plan, steps: int) -> None:
        """Show a run that has started, or continues after this number of steps."""
        self._tasks[plan.name] = self._progress.add_task(plan.name, total=plan.goal.steps, completed=steps)
        self._say_plainly(f"{plan.name} {f'continues after {steps:,} {plan.goal.unit}' if steps else 'starts'}")

    def advanced(self, plan: Plan, steps: int) -> None:
        """Show how many steps a run has."""
        self._done[plan.name] = steps
        self._progress.update(self._tasks[plan.name], completed=steps)
        self._progress.update(self._all, completed=self._sum)

    def finished(self, plan: Plan, result: str) -> None:
        """Show the result of a run that has ended."""
        self._ended += 1
        self._done[plan.name] = plan.goal.steps
        self._progress.remove_task(self._tasks.pop(plan.name))
        self._progress.update(self._all, completed=self._sum, description=self._summary)
        self.say(f"[{self._ended}/{self._runs}] {plan.name}: {result}")

    def say(self, text: str) -> None:
        """Print a line above the bars."""
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)
        self._console.file.flush()

    def _say_plainly(self, text: str) -> None:
        if not self._console.is_terminal:
            self.say(text)

    @property
    def _sum(self) -> int:
        return sum(self._done.values())

    @property
    def _summary(self) -> str:
        return f"{self._ended} of {self._runs} runs"
