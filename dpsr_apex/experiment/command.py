"""`dpsr-apex experiment`, from validated input to exit code."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.table import Table

from dpsr_apex.experiment.folder import Folder
from dpsr_apex.experiment.grid import Experiment, load_experiment
from dpsr_apex.experiment.runner import Progression, Runner
from dpsr_apex.formatting import counted, pasteable
from dpsr_apex.interrupt import Interrupt
from dpsr_apex.live.console import make_console
from dpsr_apex.record.lock import running_alone
from dpsr_apex.record.run_directory import RunDirectory


def run_experiment(source: str, path: Path | None, at_once: int | None, dry_run: bool) -> int:
    """Start an experiment, or continue it where it was stopped, and report its results; return the exit code."""
    experiment = load_experiment(source)
    if at_once is not None:
        experiment = replace(experiment, at_once=at_once)
    folder = Folder(path or Path("runs") / experiment.name)
    console = make_console()
    if dry_run:
        _show(experiment, folder, console)
        return 0
    folder.path.mkdir(parents=True, exist_ok=True)
    with running_alone(RunDirectory(folder.path)) as lock, Interrupt(lock.note_ending) as interrupt:
        folder.prepare(experiment)
        with Progression(experiment, folder, console) as view:
            view.say(f"{_size(experiment)}, in {folder.path}")
            runner = Runner(experiment, folder, view)
            runner.run(lambda: interrupt.asked)
        if interrupt.asked:
            again = pasteable("experiment", source, "--dir", folder.path)
            view.say(f"Stopped. To continue: {again}")
            return interrupt.exit_code
        if runner.failed:
            names = ", ".join(plan.name for plan in runner.failed)
            view.say(f"Failed: {names}. To try them again, run the same command")
        if any(folder.state(plan) != "waiting" for plan in experiment.plans):
            from dpsr_apex.report.command import report_runs  # imported late, because it loads matplotlib

            report_runs([folder.path], None)
    return 1 if runner.failed else 0


def _size(experiment: Experiment) -> str:
    return f"{counted(len(experiment.plans), 'run')}, {experiment.total_steps:,} steps"


def _show(experiment: Experiment, folder: Folder, console: Console) -> None:
    """Print the runs and their progress."""
    table = Table("run", "steps", "state", title=experiment.description or None, title_justify="left")
    for plan in experiment.plans:
        state = folder.state(plan)
        far = f" at {folder.steps_done(plan):,}" if state == "unfinished" else ""
        table.add_row(plan.name, f"{plan.goal.steps:,} {plan.goal.unit}", state + far)
    console.print(table)
    console.print(
        f"{_size(experiment)}, {experiment.at_once} at a time",
        highlight=False,
    )
