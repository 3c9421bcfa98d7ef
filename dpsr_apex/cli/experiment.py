"""`dpsr-apex experiment`: run a grid of runs, and report on them."""

from __future__ import annotations

import argparse
from pathlib import Path

from dpsr_apex.cli.arguments import positive

SUMMARY = "run a grid of methods and seeds, and report on it"
EXAMPLES = """\
  dpsr-apex experiment cartpole                     a shipped one: configs/experiments/cartpole.toml
  dpsr-apex experiment mine.toml --at-once 4        start it, or continue it where it was stopped
  dpsr-apex experiment table1 --dry-run             list the runs without starting any
"""


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    command.add_argument("file", metavar="FILE", help="a TOML file, or the name of a shipped experiment (cartpole)")
    command.add_argument(
        "--dir", type=Path, metavar="DIR", help="folder for the runs (default: runs/ and the name of FILE)"
    )
    command.add_argument(
        "--at-once", type=positive, metavar="N", help="number of runs at a time (default: at_once in FILE)"
    )
    command.add_argument("--dry-run", action="store_true", help="list the runs and their state without starting any")


def run(given: argparse.Namespace) -> int:
    """Run the experiment; return the exit code."""
    from dpsr_apex.experiment.command import run_experiment

    return run_experiment(given.file, given.dir, given.at_once, given.dry_run)
