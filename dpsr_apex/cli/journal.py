"""`dpsr-apex journal`: show what the journal of a run contains."""

from __future__ import annotations

import argparse

from dpsr_apex.cli.arguments import add_run_directory

SUMMARY = "show what a recovery of a run would apply to its newest checkpoint"
EXAMPLES = """\
  dpsr-apex journal runs/breakout
"""


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add_run_directory(command)


def run(given: argparse.Namespace) -> int:
    """Show the journal; return the exit code."""
    from dpsr_apex.inspection.journal import show_journal

    return show_journal(given.run_dir)
