"""The `dpsr-apex` command: parses the command line, and does nothing else.

Every command is one module here, listed in COMMANDS: SUMMARY and EXAMPLES are its help, `add_arguments` declares its
arguments, and `run` loads what the command needs and returns the exit code.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence
from typing import Protocol, cast

from dpsr_apex import __version__
from dpsr_apex.cli.arguments import fail
from dpsr_apex.errors import UserError

COMMANDS = (  # in the order of the help
    *("train", "resume", "watch", "rate", "scale"),
    *("eval", "inspect", "report", "experiment", "check"),
    *("replay", "learner", "actor", "evaluator"),
)

DESCRIPTION = """Double Prioritized State Recycled experience replay for DQN.

Train with one command, on one machine or many; watch, stop and continue a run
at any time; inspect its replay; compare methods with statistics.
"""
EXAMPLES = """examples:
  dpsr-apex train cartpole --actors 2      train for a few minutes
  dpsr-apex experiment cartpole            compare all methods on CartPole
  dpsr-apex train --help                   the options of a command
"""


class _Help(argparse.RawDescriptionHelpFormatter):
    """Help formatter with a column wide enough for the option names."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=28)


class CommandModule(Protocol):
    """What the module of a command provides."""

    SUMMARY: str
    EXAMPLES: str

    def add_arguments(self, command: argparse.ArgumentParser) -> None:
        """Declare the arguments."""

    def run(self, given: argparse.Namespace) -> int:
        """Execute the command and return the exit code."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; return the exit code: 0, 1 for a failed run, 2 for invalid input, 130 after Ctrl-C."""
    given = parser().parse_args(arguments)
    try:
        code: int = given.run(given)
    except UserError as error:
        sys.stderr.write(error.trace)
        return fail(str(error), error.exit_code)
    except (FloatingPointError, OSError) as error:
        return fail(f"{type(error).__name__}: {error}", 1)
    except KeyboardInterrupt:
        return 130
    return code


def parser() -> argparse.ArgumentParser:
    """Return the parser of the whole command line."""
    top = argparse.ArgumentParser(
        prog="dpsr-apex",
        description=DESCRIPTION,
        epilog=EXAMPLES,
        formatter_class=_Help,
    )
    top.add_argument("--version", action="version", version=__version__)
    commands = top.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name in COMMANDS:
        module = cast(CommandModule, importlib.import_module(f"dpsr_apex.cli.{name}"))
        command = commands.add_parser(
            name,
            help=module.SUMMARY,
            description=f"{module.SUMMARY[0].upper()}{module.SUMMARY[1:]}.",
            epilog=f"examples:\n{module.EXAMPLES}",
            formatter_class=_Help,
        )
        module.add_arguments(command)
        command.set_defaults(run=module.run)
    return top
