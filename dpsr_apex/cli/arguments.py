"""What several commands have in common: kinds of arguments, and how a process of a run begins."""

from __future__ import annotations

import argparse
import faulthandler
import logging
import sys

HERE = "127.0.0.1:0"  # a free port, for this machine alone

Commands = argparse._SubParsersAction  # what `add_subparsers` gives, which has no public name


def add_command(
    commands: Commands[argparse.ArgumentParser], name: str, summary: str, examples: str
) -> argparse.ArgumentParser:
    """A command whose help has a summary and examples."""
    return commands.add_parser(
        name,
        help=summary,
        description=f"{summary[0].upper()}{summary[1:]}.",
        epilog=examples,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def add_bind(command: argparse.ArgumentParser, what: str) -> None:
    """Where to listen; this machine alone unless told otherwise."""
    command.add_argument("--bind", default=HERE, metavar="HOST:PORT", help=what)


def add_lifeline(command: argparse.ArgumentParser) -> None:
    """For supervisors: standard input is a pipe whose end is to be this process's end."""
    command.add_argument("--lifeline", action="store_true", help=argparse.SUPPRESS)


def begin_process(given: argparse.Namespace, seconds: float) -> None:
    """What every process of a run does first: its log goes to standard error, where a supervisor catches it.

    Without its supervisor it is given so many seconds to leave.
    """
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    faulthandler.enable()
    hold_on(given, seconds)


def hold_on(given: argparse.Namespace, seconds: float) -> None:
    """Where a supervisor holds this process's lifeline, live no longer than it does, but for so many seconds."""
    if given.lifeline:
        from dpsr_apex.processes.lifeline import hold_lifeline

        hold_lifeline(seconds)


def natural(text: str) -> int:
    """An argument from 0 on."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text} is not an integer of at least 0")
    return int(text)


def positive(text: str) -> int:
    """An argument from 1 on."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is not an integer of at least 1")
    return int(text)


def positive_number(text: str) -> float:
    """An argument above 0."""
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not a number above 0")
    return number


def fail(reason: str, code: int) -> int:
    """Say why the command ends with `code`, which is returned."""
    sys.stderr.write(f"dpsr-apex: {reason}\n")
    return code
