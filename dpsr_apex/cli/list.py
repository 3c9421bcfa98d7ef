"""`dpsr-apex list`: the names that configs and commands accept."""

from __future__ import annotations

import argparse

SUMMARY = "list configs, experiments, environments, methods, agents or networks"
EXAMPLES = """\
  dpsr-apex list configs
  dpsr-apex list envs --json
"""
KINDS = ("configs", "experiments", "envs", "methods", "agents", "networks")


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    command.add_argument("kind", choices=KINDS, metavar="KIND", help=", ".join(KINDS))
    command.add_argument("--json", action="store_true", help="print a list of objects with name and description")


def run(given: argparse.Namespace) -> int:
    """Print the list; return the exit code."""
    from dpsr_apex.listing import list_command

    return list_command(given.kind, given.json)
