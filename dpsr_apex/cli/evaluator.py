"""`dpsr-apex evaluator`: evaluate a run while it trains."""

from __future__ import annotations

import argparse

from dpsr_apex.cli.arguments import add_run_directory
from dpsr_apex.cli.head import add_connect, find_head

NO_HEAD = "tcp://127.0.0.1:9"  # an address without a server

SUMMARY = "evaluate a run while it trains, and at its end"
EXAMPLES = """\
  dpsr-apex evaluator runs/breakout
  dpsr-apex evaluator runs/breakout --connect 127.0.0.1:5555
"""


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add_run_directory(command)
    add_connect(command, "evaluator", required=False)


def run(given: argparse.Namespace) -> int:
    """Evaluate until the run ends; return the exit code."""
    from dpsr_apex.record.run_directory import RunDirectory

    if given.connect is None and given.find is None:
        given.find = given.run_dir
    given.key = given.key or RunDirectory(given.run_dir).key_of("evaluator")
    head = find_head(given, "evaluator")
    directory = RunDirectory.open(given.run_dir)  # only now, because the head may have just created it

    from dpsr_apex.processes.discovery import Address, HeadLocator
    from dpsr_apex.processes.evaluator import run_evaluator
    from dpsr_apex.wire.keys import new_keys

    # The last weights of a trained run may still have to be evaluated, which needs no head.
    return run_evaluator(directory, head or HeadLocator(Address(NO_HEAD, new_keys()["evaluator"])))
