"""`dpsr-apex learner`: the learner of a run."""

from __future__ import annotations

import argparse

from dpsr_apex.cli.arguments import positive
from dpsr_apex.cli.head import add_connect, find_head, say_finished

SUMMARY = "train the network of a run, on this or another machine"
EXAMPLES = """\
  dpsr-apex learner --connect head.example:5555 --key learner.key --bind 0.0.0.0:5556
  dpsr-apex learner --find /shared/runs/breakout           where all machines share the run directory
"""


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add_connect(command, "learner")
    command.add_argument(
        "--bind",
        metavar="HOST:PORT",
        help="address to serve weights on (default: a free port, on this machine's address towards the head)",
    )
    command.add_argument(
        "--threads", type=positive, metavar="N", help="number of torch threads, unless the config sets it"
    )
    command.add_argument("--device", choices=("auto", "cpu", "cuda"), help="device of the network")


def run(given: argparse.Namespace) -> int:
    """Train until the run ends; return the exit code."""
    head = find_head(given, "learner")
    if head is None:
        return say_finished(given.find)

    from dpsr_apex.processes.learner import run_learner
    from dpsr_apex.wire.addresses import parse_address

    bind = parse_address(given.bind) if given.bind else None
    return run_learner(head, bind, given.threads, given.device)
