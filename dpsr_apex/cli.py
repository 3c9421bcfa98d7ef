"""The one command, `dpsr-apex`: reads the command line and nothing else."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import get_args

from dpsr_apex import __version__
from dpsr_apex.config import Method

EXAMPLES = """examples:
  dpsr-apex train cartpole --solo
  dpsr-apex train --help
"""
TRAIN_EXAMPLES = """examples:
  dpsr-apex train cartpole --solo
  dpsr-apex train configs/atari/breakout.toml --solo --base released --params dpsr3 --seed 1
  dpsr-apex train cartpole --solo --method per --steps 20000 --set replay.capacity=10000
"""
RESUME_EXAMPLES = """examples:
  dpsr-apex resume runs/cartpole-dpsr-seed0-20260101-120000
  dpsr-apex resume runs/cartpole-dpsr-seed0-20260101-120000 --steps 100000
"""
EVAL_EXAMPLES = """examples:
  dpsr-apex eval runs/cartpole-dpsr-seed0-20260101-120000 --episodes 10 --video game.mp4
"""
CHECK_EXAMPLES = """examples:
  dpsr-apex check Breakout CartPole-v1
  dpsr-apex check my_package.my_module:MyEnv
  dpsr-apex check --all
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit code is 0, 1 for a failed run, 2 for wrong input, 130 after Ctrl-C."""
    parsed = parser().parse_args(arguments)
    try:
        return _run(parsed)
    except (FloatingPointError, OSError) as error:
        return _fail(f"{type(error).__name__}: {error}", 1)
    except KeyboardInterrupt:
        return 130


def _run(parsed: argparse.Namespace) -> int:
    # Here and in the commands imports come late: help and a mistyped key should not wait for torch.
    from dpsr_apex.config import ConfigError
    from dpsr_apex.envs.snapshot import UnusableEnvironment
    from dpsr_apex.run.checkpoint import DamagedCheckpoint
    from dpsr_apex.run.run_directory import RunDirectoryError
    from dpsr_apex.run.video import VideoError

    try:
        code: int = parsed.command(parsed)
    except (ConfigError, UnusableEnvironment, RunDirectoryError, DamagedCheckpoint, VideoError) as error:
        return _fail(str(error), 2)
    return code


def parser() -> argparse.ArgumentParser:
    """The whole command line."""
    top = argparse.ArgumentParser(
        prog="dpsr-apex",
        description="Double Prioritized State Recycled experience replay for DQN.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument("--version", action="version", version=__version__)
    commands = top.add_subparsers(metavar="COMMAND", required=True)
    _add_train(_command(commands, "train", "start a run", TRAIN_EXAMPLES))
    _add_resume(_command(commands, "resume", "continue a run from its checkpoint", RESUME_EXAMPLES))
    _add_eval(_command(commands, "eval", "play whole games with a run's newest weights", EVAL_EXAMPLES))
    _add_check(
        _command(commands, "check", "prove that environments can be left and re-entered exactly", CHECK_EXAMPLES)
    )
    return top


def _command(
    commands: argparse._SubParsersAction[argparse.ArgumentParser], name: str, summary: str, examples: str
) -> argparse.ArgumentParser:
    return commands.add_parser(
        name,
        help=summary,
        description=f"{summary[0].upper()}{summary[1:]}.",
        epilog=examples,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def _add_train(train: argparse.ArgumentParser) -> None:
    train.add_argument("config", metavar="CONFIG", help="a TOML file, or the name of a shipped one (cartpole)")
    train.add_argument("--solo", action="store_true", help="actor, replay and learner in one process and one thread")
    train.add_argument("--actors", type=int, metavar="N", help="actor processes (not in this version: use --solo)")
    train.add_argument("--method", choices=get_args(Method), help="the replay's method (replay.method)")
    train.add_argument("--base", metavar="NAME", help="base settings: paper, released or apex")
    train.add_argument("--params", metavar="NAME", help="parameter set: best, second, third or dpsr0 to dpsr4")
    train.add_argument("--seed", type=int, metavar="S", help="the seed of everything random (run.seed)")
    train.add_argument("--steps", type=int, metavar="T", help="transitions of the whole run (run.total_steps)")
    train.add_argument("--device", choices=("auto", "cpu", "cuda"), help="where the network lives (learner.device)")
    train.add_argument("--run-dir", type=Path, metavar="DIR", help="where the run goes (default: a new one in runs/)")
    train.add_argument("--resume", action="store_true", help="continue if --run-dir already holds this very run")
    train.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="any setting, such as replay.capacity=10000"
    )
    train.set_defaults(command=_train)


def _add_resume(resume: argparse.ArgumentParser) -> None:
    resume.add_argument("run_dir", type=Path, metavar="RUN_DIR")
    resume.add_argument("--steps", type=int, metavar="T", help="make the run longer; schedules follow the new length")
    resume.add_argument("--checkpoint", type=Path, metavar="DIR", help="another checkpoint than the newest")
    resume.set_defaults(command=_resume)


def _add_eval(evaluation: argparse.ArgumentParser) -> None:
    evaluation.add_argument("run_dir", type=Path, metavar="RUN_DIR")
    evaluation.add_argument("--episodes", type=_positive, default=10, metavar="N", help="whole games (default: 10)")
    evaluation.add_argument("--video", type=Path, metavar="FILE.mp4", help="record the games")
    evaluation.set_defaults(command=_eval)


def _add_check(check: argparse.ArgumentParser) -> None:
    check.add_argument("names", nargs="*", metavar="ENV", help="an ALE game, Gymnasium id or package.module:Class")
    check.add_argument("--all", action="store_true", help="the paper's 24 games")
    check.add_argument(
        "--moments", type=_positive, default=300, metavar="N", help="at least so many of each (default: 300)"
    )
    check.set_defaults(command=_check)


def _train(given: argparse.Namespace) -> int:
    from dpsr_apex.config import ConfigError
    from dpsr_apex.config_files import load_config
    from dpsr_apex.run.run_directory import RunDirectory, default_path

    if given.actors is not None or not given.solo:
        raise ConfigError("actors in processes of their own are not in this version; run in one process with --solo")
    flags = {
        "replay.method": given.method,
        "run.seed": given.seed,
        "run.total_steps": given.steps,
        "learner.device": given.device,
    }
    overrides = [f"{key}={value}" for key, value in flags.items() if value is not None]
    config = load_config(given.config, base=given.base, params=given.params, overrides=[*overrides, *given.set])
    name = Path(given.config).stem
    path = given.run_dir or default_path(name, config.replay.method, config.run.seed, datetime.now())
    if not given.resume:
        RunDirectory.ensure_free(path)

    from dpsr_apex.run.commands import continue_or_train, train

    return continue_or_train(config, path) if given.resume else train(config, path)


def _resume(given: argparse.Namespace) -> int:
    from dpsr_apex.run.run_directory import RunDirectory

    RunDirectory.open(given.run_dir)

    from dpsr_apex.run.commands import resume

    return resume(given.run_dir, given.steps, given.checkpoint)


def _eval(given: argparse.Namespace) -> int:
    from dpsr_apex.run.run_directory import RunDirectory

    RunDirectory.open(given.run_dir)

    from dpsr_apex.run.commands import evaluate_run

    return evaluate_run(given.run_dir, given.episodes, given.video)


def _check(given: argparse.Namespace) -> int:
    from dpsr_apex.envs.check import PAPER_GAMES, check_command

    names = [*given.names, *(PAPER_GAMES if given.all else ())]
    if not names:
        return _fail("name at least one environment, or --all for the paper's 24 games", 2)
    return check_command(names, given.moments)


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is not an integer of at least 1")
    return int(text)


def _fail(reason: str, code: int) -> int:
    sys.stderr.write(f"dpsr-apex: {reason}\n")
    return code


if __name__ == "__main__":
    sys.exit(main())
