"""Runs the runs of an experiment, so many at a time, and shows how far they are.

Each run is a process of its own, which ends when this one does and can go on later. Nothing that a run needs to
continue is kept here: killed at any moment and started again, an experiment goes on where it was.
"""

from __future__ import annotations

import signal
import time
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from dpsr_apex.experiment.folder import Folder
from dpsr_apex.experiment.grid import Experiment, Plan
from dpsr_apex.run.children import Child
from dpsr_apex.run.lives import Task
from dpsr_apex.run.metrics import read_metrics

LOOK_SECONDS = 0.5
SAVE_SECONDS = 60.0  # for runs that are told to stop
WRONG_INPUT = 2  # the exit code of a run that was refused before it began


class Runner:
    """One go at an experiment."""

    def __init__(self, experiment: Experiment, folder: Folder, view: Progression) -> None:
        self.failed: list[Plan] = []
        self._folder = folder
        self._at_once = experiment.at_once
        self._view = view
        self._waiting = deque(plan for plan in experiment.plans if folder.state(plan) != "finished")
        self._running: dict[str, tuple[Plan, Child]] = {}

    def run(self, stopped: Callable[[], bool]) -> None:
        """Until all runs have ended, or it is `stopped`; then the runs save and end."""
        try:
            while (self._waiting or self._running) and not stopped():
                while self._waiting and len(self._running) < self._at_once:
                    self._start(self._waiting.popleft())
                time.sleep(LOOK_SECONDS)
                for plan, child in list(self._running.values()):
                    self._look_at(plan, child)
        finally:
            self._end_all()

    def _start(self, plan: Plan) -> None:
        folder = self._folder
        command = ["train", str(folder.config(plan)), "--run-dir", str(folder.run(plan).path), "--resume"]
        child = Child(Task(plan.name, "run", command, folder.logs / f"{plan.name}.log"))
        child.start()
        self._running[plan.name] = (plan, child)
        self._view.began(plan, folder.clock(plan))

    def _look_at(self, plan: Plan, child: Child) -> None:
        if child.runs:
            self._view.advanced(plan, self._folder.clock(plan))
            return
        if child.died:
            last_words = child.last_words()
            ended = child.bury(time.monotonic())
            if ended.code == WRONG_INPUT:
                child.start_at = None  # it would say the same again
            self._view.say(f"{plan.name} {ended.cause}; its last words ({child.task.log}):\n{last_words}")
        if child.start_at is not None and time.monotonic() >= child.start_at:
            child.start()
        elif child.given_up or child.is_done:
            self._ended(plan)

    def _ended(self, plan: Plan) -> None:
        del self._running[plan.name]
        if self._folder.state(plan) == "finished":
            evaluation = read_metrics(self._folder.run(plan).evaluations)[-1]
            self._view.finished(plan, f"evaluation mean {evaluation['mean']:.1f} over {evaluation['games']} games")
        else:
            self.failed.append(plan)
            self._view.finished(plan, "failed")

    def _end_all(self) -> None:
        children = [child for _, child in self._running.values()]
        for child in children:
            child.signal(signal.SIGTERM)
        deadline = time.monotonic() + SAVE_SECONDS
        while any(child.runs for child in children) and time.monotonic() < deadline:
            time.sleep(0.05)
        for child in children:
            child.kill()


class Progression:
    """A bar for all transitions and one for each run that is going on; plain lines where there is no terminal."""

    def __init__(self, experiment: Experiment, folder: Folder, console: Console) -> None:
        self._console = console
        self._clocks = {plan.name: folder.clock(plan) for plan in experiment.plans}
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

    def began(self, plan: Plan, t: int) -> None:
        """A run was started, or goes on from t."""
        self._tasks[plan.name] = self._progress.add_task(plan.name, total=plan.config.run.total_steps, completed=t)
        self._say_plainly(f"{plan.name} {f'goes on from t = {t:,}' if t else 'begins'}")

    def advanced(self, plan: Plan, t: int) -> None:
        """A run is at t."""
        self._clocks[plan.name] = t
        self._progress.update(self._tasks[plan.name], completed=t)
        self._progress.update(self._all, completed=self._sum)

    def finished(self, plan: Plan, result: str) -> None:
        """A run has ended."""
        self._ended += 1
        self._clocks[plan.name] = plan.config.run.total_steps
        self._progress.remove_task(self._tasks.pop(plan.name))
        self._progress.update(self._all, completed=self._sum, description=self._summary)
        self.say(f"[{self._ended}/{self._runs}] {plan.name}: {result}")

    def say(self, text: str) -> None:
        """Something that stays to be read."""
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)
        self._console.file.flush()

    def _say_plainly(self, text: str) -> None:
        if not self._console.is_terminal:
            self.say(text)

    @property
    def _sum(self) -> int:
        return sum(self._clocks.values())

    @property
    def _summary(self) -> str:
        return f"{self._ended} of {self._runs} runs"
