"""`dpsr-apex actor`: one actor of a run."""

from __future__ import annotations

import argparse
import os
import socket

from dpsr_apex.cli.head import add_connect, find_head, say_finished

SUMMARY = "act in the environment for a run, on this or another machine"
EXAMPLES = """\
  dpsr-apex actor --connect head.example:5555 --key actor.key
  dpsr-apex actor --find /shared/runs/breakout             where all machines share the run directory
"""


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add_connect(command, "actor")
    command.add_argument(
        "--name", metavar="NAME", help="the actor's name in the run (default: host name and process id)"
    )


def run(given: argparse.Namespace) -> int:
    """Act until the run ends; return the exit code."""
    head = find_head(given, "actor")
    if head is None:
        return say_finished(given.find)

    from dpsr_apex.processes.actor import run_actor

    return run_actor(head, given.name or f"{socket.gethostname()}-{os.getpid()}")
