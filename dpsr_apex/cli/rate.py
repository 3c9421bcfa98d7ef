"""`dpsr-apex rate`: change the transitions per update of a running run."""

from __future__ import annotations

import argparse

from dpsr_apex.cli.arguments import add_run_directory, natural

SUMMARY = "change the transitions per update of a running run"
EXAMPLES = """\
  dpsr-apex rate runs/breakout --steps-per-update 8
  dpsr-apex rate runs/breakout --steps-per-update 0     actors and learner do not wait for each other
"""


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add_run_directory(command)
    command.add_argument(
        "--steps-per-update", type=natural, required=True, metavar="N", help="transitions per update; 0 = free running"
    )


def run(given: argparse.Namespace) -> int:
    """Change the rate; return the exit code."""
    from dpsr_apex.processes.control import change_rate
    from dpsr_apex.record.run_directory import RunDirectory

    return change_rate(RunDirectory.open(given.run_dir), given.steps_per_update)
