"""`dpsr-apex check`: verify that environments can be saved and restored exactly."""

from __future__ import annotations

import argparse

from dpsr_apex.cli.arguments import fail, positive

SUMMARY = "verify that environments can be saved and restored exactly"
EXAMPLES = """\
  dpsr-apex check Breakout CartPole-v1
  dpsr-apex check my_package.my_module:MyEnv
  dpsr-apex check Corridor --set env.arguments.depth=7
  dpsr-apex check --all
"""
CONCERNED = ("env.arguments", "env.stack", "env.wrappers")  # settings that the check uses


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    command.add_argument(
        "names",
        nargs="*",
        metavar="ENV",
        help="an ALE game, a MinAtar game (MinAtar/Breakout), a MiniGrid task, a Gymnasium id, package.module:Class or "
        "package.module:function",
    )
    command.add_argument("--all", action="store_true", help="check the paper's 24 games")
    command.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="a setting such as env.arguments.depth=7"
    )
    command.add_argument(
        "--moments",
        type=positive,
        default=300,
        metavar="N",
        help="minimum number of states to check per environment (default: 300)",
    )


def run(given: argparse.Namespace) -> int:
    """Check the environments; return the exit code, 0 if all passed."""
    from dpsr_apex.check import check_command
    from dpsr_apex.config_files import load_config
    from dpsr_apex.envs.check import PAPER_GAMES

    names = [*given.names, *(PAPER_GAMES if given.all else ())]
    if not names:
        return fail("name at least one environment, or use --all for the paper's 24 games", 2)
    if foreign := [text for text in given.set if not _concerns_check(text)]:
        return fail(f"--set {foreign[0]}: the check uses only env.arguments, env.stack and env.wrappers", 2)
    env = load_config("cartpole", overrides=given.set).env  # its own environment has no arguments
    return check_command(names, given.moments, env.arguments, env.stack, env.wrappers)


def _concerns_check(setting: str) -> bool:
    key = setting.partition("=")[0].strip()
    return key in CONCERNED or key.startswith("env.arguments.")
