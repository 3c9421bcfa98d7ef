"""`dpsr-apex scale`: change the number of actors of a running run."""

from __future__ import annotations

import argparse

from dpsr_apex.cli.arguments import add_run_directory, positive

SUMMARY = "change the number of actors of a running run"
EXAMPLES = """\
  dpsr-apex scale runs/breakout --actors 8
  dpsr-apex scale runs/breakout --actors 1              all but one leave; no data is lost

`dpsr-apex train` starts or stops actors accordingly. Actors that were started
in another way (Slurm, Kubernetes, manually) must be started or stopped there.
"""


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add_run_directory(command)
    command.add_argument("--actors", type=positive, required=True, metavar="N", help="new number of actors")


def run(given: argparse.Namespace) -> int:
    """Change the number of actors; return the exit code."""
    from dpsr_apex.processes.control import change_actors
    from dpsr_apex.record.run_directory import RunDirectory

    return change_actors(RunDirectory.open(given.run_dir), given.actors)
