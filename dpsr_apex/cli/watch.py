"""`dpsr-apex watch`: show a running run."""

from __future__ import annotations

import argparse

from dpsr_apex.cli.arguments import add_run_directory

SUMMARY = "show a running run in this terminal"
EXAMPLES = """\
  dpsr-apex watch runs/cartpole-dpsr-seed0-20260101-120000

Ctrl-C ends the view, not the run.
"""


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add_run_directory(command)


def run(given: argparse.Namespace) -> int:
    """Show the run until it ends; return the exit code."""
    from dpsr_apex.watch import watch_run

    return watch_run(given.run_dir)
