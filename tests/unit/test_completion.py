"""Shell completion: the scripts are generated from the parser, and real shells complete with them."""

from __future__ import annotations

import argparse
import shutil
import subprocess
from pathlib import Path

import pytest

from dpsr_apex.cli import COMMANDS, main, parser
from dpsr_apex.cli.completion import SCRIPTS, completed_commands
from dpsr_apex.config_files import shipped_configs, shipped_experiments
from dpsr_apex.methods import METHODS

HERE = "HERE"  # files that bash would offer in the folder of the test


@pytest.fixture
def scripts(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> dict[str, Path]:
    for shell in SCRIPTS:
        assert main(["completion", shell]) == 0
        (tmp_path / shell).write_text(capsys.readouterr().out)
    return {shell: tmp_path / shell for shell in SCRIPTS}


def complete(script: Path, *words: str) -> set[str]:
    """Return what bash offers for the last of these words."""
    line = " ".join(f"'{word}'" for word in ("dpsr-apex", *words))
    program = (
        f"source {script}; COMP_WORDS=({line}); COMP_CWORD={len(words)}; _dpsr_apex; printf '%s\\n' ${{COMPREPLY[@]}}"
    )
    done = subprocess.run(["bash", "-c", program], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return set(done.stdout.split())


def test_every_command_and_every_visible_option_is_completed() -> None:
    (commands,) = (action for action in parser()._actions if isinstance(action, argparse._SubParsersAction))
    found = completed_commands(parser())
    assert tuple(found) == COMMANDS
    for name, command in commands.choices.items():
        visible = [action for action in command._actions if action.help != argparse.SUPPRESS]
        assert {word for action in visible for word in action.option_strings} <= set(found[name].words)
    assert "--lifeline" not in found["train"].words


def test_bash_completes_commands_options_and_values(scripts: dict[str, Path]) -> None:
    bash = scripts["bash"]
    assert complete(bash, "") == set(COMMANDS)
    assert complete(bash, "re") == {"resume", "report", "replay"}
    assert complete(bash, "train", "--me") == {"--method"}
    assert complete(bash, "train", "cartpole", "--method", "") == set(METHODS)
    assert complete(bash, "train", "cartpole", "--method", "per") == {"per", "per_rank"}
    assert complete(bash, "train", "atari/b") == {name for name in shipped_configs() if name.startswith("atari/b")}
    assert complete(bash, "train", "cartpole", "--solo", "--run") == {"--run-dir"}, "a flag takes no value"
    assert complete(bash, "train", "cartpole", "--run-dir", "") == set(), "bash then completes files"
    assert complete(bash, "experiment", "tab") == {name for name in shipped_experiments() if name.startswith("tab")}
    assert complete(bash, "train", "cartpole", "--base", "") == {"apex", "classic", "modern", "paper", "released"}
    assert complete(bash, "train", "cartpole", "--params", "d") == {f"dpsr{number}" for number in range(5)}
    assert complete(bash, "train", "cartpole", "--params", "b") == {"best"}
    assert complete(bash, "eval", "runs/mine", "--weights", "") == {"best", "last"}
    assert complete(bash, "check", "CartPole-v1", "Ponga") == set()
    assert complete(bash, "check", "CartPole-v1", "KungF") == {"KungFuMaster"}
    assert complete(bash, "list", "con") == {"configs"}
    assert complete(bash, "watch", "") == {"-h", "--help"}


@pytest.mark.skipif(shutil.which("fish") is None, reason="fish is not installed")
def test_fish_completes_options_and_values(scripts: dict[str, Path]) -> None:
    for line, words in (("dpsr-apex train --me", {"--method"}), ("dpsr-apex train x --method ", set(METHODS))):
        program = f"source {scripts['fish']}; complete -C '{line}'"
        done = subprocess.run(["fish", "-c", program], capture_output=True, text=True, check=True)
        assert {offered.split("\t")[0] for offered in done.stdout.splitlines()} == words


@pytest.mark.skipif(shutil.which("zsh") is None, reason="zsh is not installed")
def test_the_script_for_zsh_is_valid(scripts: dict[str, Path]) -> None:
    subprocess.run(["zsh", "-n", scripts["zsh"]], check=True)


@pytest.mark.parametrize("shell", SCRIPTS)
def test_every_script_has_every_command_and_value(scripts: dict[str, Path], shell: str) -> None:
    text = scripts[shell].read_text()
    for word in (*COMMANDS, *METHODS, *shipped_configs(), "run-dir"):
        assert word in text
