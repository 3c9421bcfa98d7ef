"""`dpsr-apex experiment`, from checked input to exit code."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.table import Table

from dpsr_apex.experiment.folder import Folder
from dpsr_apex.experiment.grid import Experiment, load_experiment
from dpsr_apex.experiment.runner import Progression, Runner
from dpsr_apex.processes.lock import serving_alone
from dpsr_apex.run.interrupt import Interrupt
from dpsr_apex.run.run_directory import RunDirectory


def run_experiment(source: str, path: Path | None, at_once: int | None, dry_run: bool) -> int:
    """Start an experiment, or go on with it where it was stopped, and report what came of it; the exit code."""
    experiment = load_experiment(source)
    folder = Folder(path or Path("runs") / experiment.name)
    console = Console()
    if dry_run:
        _show(experiment, folder, console)
        return 0
    folder.prepare(experiment)
    with serving_alone(RunDirectory(folder.path)), Interrupt() as interrupt:
        with Progression(experiment, folder, console) as view:
            view.say(f"{len(experiment.plans)} runs, {experiment.total_steps:,} transitions, in {folder.path}")
            runner = Runner(experiment, folder, at_once or experiment.at_once, view)
            runner.run(lambda: interrupt.asked)
        if interrupt.asked:
            view.say(f"Stopped; the same command goes on: dpsr-apex experiment {source} --dir {folder.path}")
            return interrupt.exit_code

        from dpsr_apex.report.command import report_runs  # here, because it loads what only pictures need

        report_runs([folder.path], None)
    if runner.failed:
        view.say(f"Failed: {', '.join(plan.name for plan in runner.failed)}. The same command tries them again.")
        return 1
    return 0


def _show(experiment: Experiment, folder: Folder, console: Console) -> None:
    """The runs and how far each is."""
    table = Table("run", "transitions", "state", title=experiment.description or None, title_justify="left")
    for plan in experiment.plans:
        state = folder.state(plan)
        far = f" at t = {folder.clock(plan):,}" if state == "unfinished" else ""
        table.add_row(plan.name, f"{plan.config.run.total_steps:,}", state + far)
    console.print(table)
    console.print(
        f"{len(experiment.plans)} runs, {experiment.total_steps:,} transitions, {experiment.at_once} at a time",
        highlight=False,
    )
