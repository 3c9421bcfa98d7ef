"""`dpsr-apex completion`: a script that completes commands, options and values in a shell.

The script is generated from the parser of the command line, and has to be generated again after an update.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

SUMMARY = "print a script that completes dpsr-apex commands in your shell"
EXAMPLES = """\
  dpsr-apex completion bash  > ~/.local/share/bash-completion/completions/dpsr-apex
  dpsr-apex completion zsh   > ~/.zfunc/_dpsr-apex     # the folder must be in fpath
  dpsr-apex completion fish  > ~/.config/fish/completions/dpsr-apex.fish
"""

Words = tuple[str, ...]


class Option(NamedTuple):
    """One option of a command."""

    names: Words
    help: str
    takes_value: bool
    values: Words  # empty: any, such as a number or a file


class Completed(NamedTuple):
    """One command."""

    help: str
    options: tuple[Option, ...]
    arguments: Words  # values of its positional arguments; empty: files

    @property
    def words(self) -> Words:
        """Everything that may follow the command, except values of options."""
        return (*self.arguments, *(name for option in self.options for name in option.names))


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    command.add_argument("shell", choices=tuple(SCRIPTS), metavar="SHELL", help=", ".join(SCRIPTS))


def run(given: argparse.Namespace) -> int:
    """Print the script; return the exit code."""
    from dpsr_apex.cli import parser

    sys.stdout.write(SCRIPTS[given.shell](completed_commands(parser())))
    return 0


def completed_commands(parser: argparse.ArgumentParser) -> dict[str, Completed]:
    """Return the commands of a parser by name."""
    (commands,) = (action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    helps = {action.dest: action.help or "" for action in commands._choices_actions}
    return {name: _completed(helps[name], command) for name, command in commands.choices.items()}


def _completed(text: str, command: argparse.ArgumentParser) -> Completed:
    shown = [action for action in command._actions if action.help != argparse.SUPPRESS]
    options = [
        Option(tuple(one.option_strings), one.help or "", one.nargs != 0, _values_of(one))
        for one in shown
        if one.option_strings
    ]
    positional = [action for action in shown if not action.option_strings]
    return Completed(text, tuple(options), tuple(word for one in positional for word in _values_of(one)))


def _values_of(argument: argparse.Action) -> Words:
    """Return the values that an argument accepts or, where it accepts any name, those that are known."""
    from dpsr_apex import config_files, listing

    known: dict[str, Callable[[], Iterable[str]]] = {
        "config": config_files.shipped_configs,
        "file": config_files.shipped_experiments,
        "base": config_files.shipped_bases,
        "params": config_files.shipped_sets,
        "names": lambda: (entry.name for entry in listing.KINDS["envs"]()),
        "weights": lambda: ("best", "last"),
    }
    return tuple(argument.choices or (known[argument.dest]() if argument.dest in known else ()))


def _cases(commands: Mapping[str, Completed]) -> list[tuple[str, Words]]:
    """Return the words that may follow "COMMAND PREVIOUS_WORD", for previous words that are options with a value."""
    return [
        (f"{command} {name}", option.values)
        for command, completed in commands.items()
        for option in completed.options
        for name in option.names
        if option.takes_value
    ]


def _script(commands: Mapping[str, Completed], begin: str, case: str, end: str) -> str:
    """Return a script in which `case` sets the words that may follow, by command and previous word."""
    after_option = [case.format(shlex.quote(what), _joined(words)) for what, words in _cases(commands)]
    otherwise = [case.format(f"{name}\\ *", _joined(completed.words)) for name, completed in commands.items()]
    return "\n".join([begin.format(_joined(commands)), *after_option, *otherwise, end])


def _joined(words: Iterable[str]) -> str:
    return " ".join(words)


def bash_script(commands: Mapping[str, Completed]) -> str:
    """Return the script for bash, which completes files where no word fits."""
    begin = """_dpsr_apex() {{
    local current="${{COMP_WORDS[COMP_CWORD]}}" words=""
    if [ "$COMP_CWORD" -eq 1 ]; then
        words="{}"
    else
        case "${{COMP_WORDS[1]}} ${{COMP_WORDS[COMP_CWORD-1]}}" in"""
    end = """        esac
    fi
    mapfile -t COMPREPLY < <(compgen -W "$words" -- "$current")
}
complete -o default -F _dpsr_apex dpsr-apex
"""
    return _script(commands, begin, '            {}) words="{}" ;;', end)


def zsh_script(commands: Mapping[str, Completed]) -> str:
    """Return the script for zsh, which also completes files."""
    begin = """#compdef dpsr-apex
_dpsr_apex() {{
    local -a found
    if (( CURRENT == 2 )); then
        found=({})
    else
        case "$words[2] $words[CURRENT-1]" in"""
    end = """        esac
    fi
    compadd -a found
    (( CURRENT == 2 )) || _files
}
compdef _dpsr_apex dpsr-apex
"""
    return _script(commands, begin, "            ({}) found=({}) ;;", end)


def fish_script(commands: Mapping[str, Completed]) -> str:
    """Return the script for fish, with a description of every command and option."""
    lines = [
        f"complete -c dpsr-apex -n __fish_use_subcommand -f -a {name} -d {_fish(completed.help)}"
        for name, completed in commands.items()
    ]
    for name, completed in commands.items():
        start = f"complete -c dpsr-apex -n '__fish_seen_subcommand_from {name}'"
        lines += [f"{start} {_fish_option(option)}" for option in completed.options]
        if completed.arguments:
            lines.append(f"{start} -a {_fish(_joined(completed.arguments))}")
    return "\n".join([*lines, ""])


def _fish_option(option: Option) -> str:
    names = " ".join(f"-l {name[2:]}" if name.startswith("--") else f"-s {name[1:]}" for name in option.names)
    values = f" -x -a {_fish(_joined(option.values))}" if option.values else " -r" if option.takes_value else ""
    return f"{names}{values} -d {_fish(option.help)}"


def _fish(text: str) -> str:
    """Return text as one quoted word of fish, in which only these two characters are special."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


SCRIPTS = {"bash": bash_script, "zsh": zsh_script, "fish": fish_script}
