"""The command line: every module of a command is listed, and every example in its help can be typed."""

from __future__ import annotations

import errno
import importlib
import os
import re
import shlex
from pathlib import Path

import pytest

from dpsr_apex import cli
from dpsr_apex.cli import COMMANDS, main, parser
from dpsr_apex.formatting import pasteable

FOLDER = Path(cli.__file__).parent


def module_of(name: str) -> cli.CommandModule:
    module: cli.CommandModule = importlib.import_module(f"dpsr_apex.cli.{name}")
    return module


def examples(text: str) -> list[list[str]]:
    """The words of every example, without the remark behind it."""
    lines = re.findall(r"^  dpsr-apex (.+)$", text, re.MULTILINE)
    return [shlex.split(re.split(r"\s{2,}", line)[0]) for line in lines]


def test_every_module_with_a_summary_is_listed_as_a_command() -> None:
    files = {path.stem for path in FOLDER.glob("*.py") if re.search(r"^SUMMARY = ", path.read_text(), re.MULTILINE)}
    assert files == set(COMMANDS)
    assert len(COMMANDS) == len(set(COMMANDS))


@pytest.mark.parametrize("name", COMMANDS)
def test_every_example_of_a_command_can_be_typed(name: str) -> None:
    found = examples(module_of(name).EXAMPLES)
    assert found
    for words in found:
        given = parser().parse_args(words)
        assert words[0] == name
        assert given.run is module_of(name).run


def test_the_examples_of_the_whole_command_can_be_typed() -> None:
    found = examples(cli.EXAMPLES)
    assert found
    for words in found:
        if "--help" not in words:
            parser().parse_args(words)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_argument_has_a_help_text(name: str) -> None:
    (commands,) = (action for action in parser()._actions if action.choices)  # argparse has no public way to ask
    assert isinstance(commands.choices, dict)
    assert all(action.help for action in commands.choices[name]._actions)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (
            "train cartpole --metod=1",
            "dpsr-apex train: unrecognized arguments: --metod=1; did you mean --method? (",
        ),
        (
            "experiment cartpole --dryrun",
            "dpsr-apex experiment: unrecognized arguments: --dryrun; did you mean --dry-run?",
        ),
        ("eval run --epsilon 1", "dpsr-apex eval: unrecognized arguments: --epsilon 1 (usage: dpsr-apex eval --help)"),
        ("resume run --lifelin", "dpsr-apex resume: unrecognized arguments: --lifelin (usage"),
        ("train --method dpsr", "dpsr-apex train: the following arguments are required: CONFIG (usage"),
        ("", "dpsr-apex: the following arguments are required: COMMAND (usage: dpsr-apex --help)"),
    ],
)
def test_a_wrong_command_line_is_refused_in_one_line(line: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(shlex.split(line))
    assert ended.value.code == 2
    (message,) = capsys.readouterr().err.splitlines()
    assert message.startswith(words)


def test_a_command_that_is_printed_can_be_parsed() -> None:
    words = shlex.split(pasteable("resume", Path("runs/with a blank"), "--steps", "5"))[1:]
    assert parser().parse_args(words).run_dir == Path("runs/with a blank")


@pytest.mark.parametrize(("text", "number"), [("1e6", 1_000_000), ("2.5e3", 2_500), ("1_000", 1_000), ("7", 7)])
def test_a_number_of_steps_may_have_an_exponent(text: str, number: int) -> None:
    for command in (["train", "cartpole"], ["resume", "run"]):
        assert parser().parse_args([*command, "--steps", text]).steps == number


@pytest.mark.parametrize("text", ["0", "-5", "1.5", "1e-3", "nan", "inf", "many"])
def test_what_is_not_a_number_of_steps_is_refused(text: str) -> None:
    with pytest.raises(SystemExit):
        parser().parse_args(["train", "cartpole", f"--steps={text}"])


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_command_on_a_full_disk_tells_what_to_do(
    number: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(_: object) -> int:
        raise OSError(number, os.strerror(number), "runs/one/lock")

    monkeypatch.setattr(module_of("list"), "run", run)
    assert main(["list", "envs"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "runs/one/lock" in line
    assert os.strerror(number) in line
    assert "Make space" in line
