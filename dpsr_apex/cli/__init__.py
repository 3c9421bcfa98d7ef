"""The `dpsr-apex` command: parses the command line, and does nothing else.

Every command is one module here, listed in COMMANDS: SUMMARY and EXAMPLES are its help, `add_arguments` declares its
arguments, and `run` loads what the command needs and returns the exit code.
"""

from __future__ import annotations

import argparse
import difflib
import errno
import importlib
import os
import shlex
import sys
from collections.abc import Sequence
from typing import Any, NoReturn, Protocol, cast

from dpsr_apex import __version__
from dpsr_apex.cli.arguments import fail
from dpsr_apex.errors import UserError

COMMANDS = (  # in the order of the help
    *("train", "resume", "watch", "rate", "scale"),
    *("eval", "inspect", "journal", "ui", "report", "experiment", "check"),
    *("replay", "learner", "actor", "evaluator", "list", "completion"),
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

    def add_argument(self, action: argparse.Action) -> None:
        """Add an argument; count the indentation of commands, which argparse forgets, so that all fit in one column."""
        super().add_argument(action)
        if isinstance(action, argparse._SubParsersAction):
            self._action_max_length += self._indent_increment


class _Parser(argparse.ArgumentParser):
    """Parser of the command line, or of one command, that refuses wrong input in one line."""

    def parse_known_args(self, *given: Any, **named: Any) -> Any:
        """Parse what is known, and refuse the rest here, where the command and its options are known."""
        parsed, rest = super().parse_known_args(*given, **named)
        if rest:
            self.error(f"unrecognized arguments: {shlex.join(rest)}{self._hint(rest[0])}")
        return parsed, rest

    def _hint(self, word: str) -> str:
        """Suggest an option that resembles this word; empty if there is none."""
        shown = [action for action in self._actions if action.help != argparse.SUPPRESS]
        options = [option for action in shown for option in action.option_strings]
        close = difflib.get_close_matches(word.partition("=")[0], options, n=1, cutoff=0.75)
        return f"; did you mean {close[0]}?" if close else ""

    def error(self, message: str) -> NoReturn:
        """Print what is wrong and which command prints the usage, and exit with code 2."""
        self.exit(2, f"{self.prog}: {message} (usage: {self.prog} --help)\n")


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
    words = sys.argv[1:] if arguments is None else arguments
    given = parser().parse_args(words)
    given.command_line = shlex.join(["dpsr-apex", *words])
    try:
        code: int = given.run(given)
        sys.stdout.flush()
    except BrokenPipeError:  # whatever read the output has ended, such as `head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is left is written when Python ends
        return 1
    except UserError as error:
        sys.stderr.write(error.trace)
        return fail(str(error), error.exit_code)
    except (FloatingPointError, OSError) as error:
        return fail(_describe(error), 1)
    except KeyboardInterrupt:
        return 130
    return code


def _describe(error: Exception) -> str:
    """Return a message about an error of the machine: what happened, and what to do where that is known."""
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        where = f" ({error.filename})" if error.filename else ""
        return f"The disk is full{where}: {error.strerror}. Make space, then repeat the command"
    return f"{type(error).__name__}: {error}"


def parser() -> argparse.ArgumentParser:
    """Return the parser of the whole command line."""
    top = _Parser(
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
