"""The one command, `dpsr-apex`: reads the command line and nothing else."""

from __future__ import annotations

import argparse
import faulthandler
import logging
import os
import socket
import sys
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from dpsr_apex import __version__
from dpsr_apex.config import Method

if TYPE_CHECKING:
    from dpsr_apex.processes.link import Address

LEAVE_SECONDS = 9.0  # for a process whose supervisor is gone to leave
WRITE_SECONDS = 300.0  # for the replay, whose last checkpoint may be large

EXAMPLES = """examples:
  dpsr-apex train cartpole --actors 2
  dpsr-apex train --help
"""
TRAIN_EXAMPLES = """examples:
  dpsr-apex train cartpole --actors 2
  dpsr-apex train cartpole --solo --method per --steps 20000 --set replay.capacity=10000
  dpsr-apex train configs/atari/breakout.toml --base released --params dpsr3 --seed 1
  dpsr-apex train atari/pong --actors 4 --bind 0.0.0.0:5555     other machines may join
"""
ACTOR_EXAMPLES = """examples:
  dpsr-apex actor --connect head.example:5555 --key client.key
"""
REPLAY_EXAMPLES = """examples:
  dpsr-apex replay atari/pong --run-dir runs/pong --bind 0.0.0.0:5555      a new run
  dpsr-apex replay --run-dir runs/pong --bind 0.0.0.0:5555                 the same, from its newest checkpoint
"""
LEARNER_EXAMPLES = """examples:
  dpsr-apex learner --connect head.example:5555 --key client.key --bind 0.0.0.0:5556
"""
EVALUATOR_EXAMPLES = """examples:
  dpsr-apex evaluator runs/pong --connect 127.0.0.1:5555 --key runs/pong/keys/client.key
"""
RATE_EXAMPLES = """examples:
  dpsr-apex rate runs/pong --steps-per-update 8
  dpsr-apex rate runs/pong --steps-per-update 0     nobody waits for anybody
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
    from dpsr_apex.processes.link import RefusedByReplay, ReplayLost
    from dpsr_apex.run.checkpoint import DamagedCheckpoint
    from dpsr_apex.run.run_directory import RunDirectoryError
    from dpsr_apex.run.supervisor import RunFailed
    from dpsr_apex.run.video import VideoError
    from dpsr_apex.wire.addresses import BadAddress
    from dpsr_apex.wire.keys import BadKeyFile
    from dpsr_apex.wire.sockets import BindError

    wrong_input = (ConfigError, UnusableEnvironment, RunDirectoryError, DamagedCheckpoint, VideoError)
    try:
        code: int = parsed.command(parsed)
    except (*wrong_input, BadKeyFile, BadAddress, BindError, RefusedByReplay) as error:
        return _fail(str(error), 2)
    except (ReplayLost, RunFailed) as error:
        return _fail(str(error), 1)
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
    _add_actor(_command(commands, "actor", "act for a run on this or another machine", ACTOR_EXAMPLES))
    _add_replay(_command(commands, "replay", "serve the replay of a run, as its head", REPLAY_EXAMPLES))
    _add_learner(_command(commands, "learner", "learn for a run on this or another machine", LEARNER_EXAMPLES))
    _add_evaluator(_command(commands, "evaluator", "evaluate a run while it goes on", EVALUATOR_EXAMPLES))
    _add_rate(_command(commands, "rate", "change the transitions per update of a run that is going on", RATE_EXAMPLES))
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
    alone = train.add_mutually_exclusive_group()
    alone.add_argument("--solo", action="store_true", help="actor, replay and learner in one process and one thread")
    alone.add_argument("--actors", type=_positive, metavar="N", help="actor processes (default: the cores but one)")
    _add_bind(train, "where the run is served; beyond this machine with keys (default: this machine alone)")
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
    resume.add_argument("--actors", type=_positive, metavar="N", help="another number of actor processes")
    _add_bind(resume, "where the run is served (default: this machine alone)")
    resume.add_argument("--checkpoint", type=Path, metavar="DIR", help="another checkpoint than the newest")
    resume.set_defaults(command=_resume)


def _add_actor(actor: argparse.ArgumentParser) -> None:
    _add_connect(actor)
    actor.add_argument("--name", metavar="NAME", help="how the run calls it (default: this machine and process)")
    actor.set_defaults(command=_actor)


def _add_replay(replay: argparse.ArgumentParser) -> None:
    replay.add_argument("config", nargs="?", metavar="CONFIG", help="for a new run: a TOML file or a shipped config")
    replay.add_argument("--run-dir", type=Path, required=True, metavar="DIR", help="where the run is, or goes")
    _add_bind(replay, "where to listen; beyond this machine with keys (default: a free port of this machine)")
    _add_lifeline(replay)
    replay.set_defaults(command=_replay)


def _add_learner(learner: argparse.ArgumentParser) -> None:
    _add_connect(learner)
    _add_bind(learner, "where to serve weights; beyond this machine with the key (default: this machine alone)")
    learner.add_argument("--threads", type=_positive, metavar="N", help="of torch, where the config names no number")
    learner.add_argument("--device", choices=("auto", "cpu", "cuda"), help="where the network lives")
    learner.set_defaults(command=_learner)


def _add_evaluator(evaluator: argparse.ArgumentParser) -> None:
    evaluator.add_argument("run_dir", type=Path, metavar="RUN_DIR")
    _add_connect(evaluator)
    evaluator.set_defaults(command=_evaluator)


def _add_rate(rate: argparse.ArgumentParser) -> None:
    rate.add_argument("run_dir", type=Path, metavar="RUN_DIR")
    rate.add_argument("--steps-per-update", type=_natural, required=True, metavar="N", help="0 = free running")
    rate.set_defaults(command=_rate)


def _add_connect(command: argparse.ArgumentParser) -> None:
    command.add_argument("--connect", required=True, metavar="HOST:PORT", help="the head of the run")
    command.add_argument("--key", type=Path, metavar="FILE", help="the run's client.key, where it has keys")
    _add_lifeline(command)


def _add_bind(command: argparse.ArgumentParser, what: str) -> None:
    command.add_argument("--bind", default="127.0.0.1:0", metavar="HOST:PORT", help=what)


def _add_lifeline(command: argparse.ArgumentParser) -> None:
    """For supervisors: standard input is a pipe whose end is to be this process's end."""
    command.add_argument("--lifeline", action="store_true", help=argparse.SUPPRESS)


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
    from dpsr_apex.config_files import load_config
    from dpsr_apex.run.run_directory import RunDirectory, default_path
    from dpsr_apex.run.supervisor import room_for_actors
    from dpsr_apex.wire.addresses import parse_address

    flags = {
        "replay.method": given.method,
        "run.seed": given.seed,
        "run.total_steps": given.steps,
        "learner.device": given.device,
        "system.actors": 0 if given.solo else given.actors,
    }
    overrides = [f"{key}={value}" for key, value in flags.items() if value is not None]
    config = load_config(given.config, base=given.base, params=given.params, overrides=[*overrides, *given.set])
    if config.system.actors is None:
        config = replace(config, system=replace(config.system, actors=room_for_actors()))
    name = Path(given.config).stem
    path = given.run_dir or default_path(name, config.replay.method, config.run.seed, datetime.now())
    if not given.resume:
        RunDirectory.ensure_free(path)

    from dpsr_apex.run.commands import continue_or_train, train

    go = continue_or_train if given.resume else train
    return go(config, path, parse_address(given.bind))


def _resume(given: argparse.Namespace) -> int:
    from dpsr_apex.run.run_directory import RunDirectory

    RunDirectory.open(given.run_dir)

    from dpsr_apex.run.commands import resume
    from dpsr_apex.wire.addresses import parse_address

    return resume(given.run_dir, given.steps, given.checkpoint, given.actors, parse_address(given.bind))


def _actor(given: argparse.Namespace) -> int:
    address = _join_as_process(given)

    from dpsr_apex.processes.actor import run_actor

    return run_actor(address, given.name or f"{socket.gethostname()}-{os.getpid()}")


def _replay(given: argparse.Namespace) -> int:
    _begin_process(given, WRITE_SECONDS)

    from dpsr_apex.processes.replay import run_replay
    from dpsr_apex.run.run_directory import RunDirectory, write_config
    from dpsr_apex.wire.addresses import parse_address

    bind = parse_address(given.bind)
    if given.config is None:
        return run_replay(RunDirectory.open(given.run_dir), bind)

    from dpsr_apex.config_files import load_config

    config = load_config(given.config)
    run = RunDirectory.create(given.run_dir)
    write_config(config, run)
    return run_replay(run, bind)


def _learner(given: argparse.Namespace) -> int:
    address = _join_as_process(given)

    from dpsr_apex.processes.learner import run_learner
    from dpsr_apex.wire.addresses import parse_address

    return run_learner(address, parse_address(given.bind), given.threads, given.device)


def _evaluator(given: argparse.Namespace) -> int:
    from dpsr_apex.run.run_directory import RunDirectory

    run = RunDirectory.open(given.run_dir)
    address = _join_as_process(given)

    from dpsr_apex.processes.evaluator import run_evaluator

    return run_evaluator(run, address)


def _rate(given: argparse.Namespace) -> int:
    from dpsr_apex.processes.onlooker import change_rate
    from dpsr_apex.run.run_directory import RunDirectory

    return change_rate(RunDirectory.open(given.run_dir), given.steps_per_update)


def _join_as_process(given: argparse.Namespace) -> Address:
    """Where the head of the run is."""
    _begin_process(given, LEAVE_SECONDS)

    from dpsr_apex.config import ConfigError
    from dpsr_apex.processes.link import Address
    from dpsr_apex.wire.addresses import is_loopback, parse_address
    from dpsr_apex.wire.keys import load_client_keys

    endpoint = parse_address(given.connect)
    if given.key is None and not is_loopback(endpoint):
        # The head tells what to run: off this machine it must prove by its key that it is the head.
        raise ConfigError(f"--connect {given.connect}: another machine asks for --key FILE, a copy of its client.key")
    return Address(endpoint, load_client_keys(given.key) if given.key else None)


def _begin_process(given: argparse.Namespace, seconds: float) -> None:
    """What every process of a run does first: its log goes to standard error, where a supervisor catches it.

    Without its supervisor it is given so many seconds to leave.
    """
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    faulthandler.enable()
    if given.lifeline:
        from dpsr_apex.processes.lifeline import hold_lifeline

        hold_lifeline(seconds)


def _eval(given: argparse.Namespace) -> int:
    from dpsr_apex.run.run_directory import RunDirectory

    RunDirectory.open(given.run_dir)

    from dpsr_apex.run.play import evaluate_run

    return evaluate_run(given.run_dir, given.episodes, given.video)


def _check(given: argparse.Namespace) -> int:
    from dpsr_apex.envs.check import PAPER_GAMES, check_command

    names = [*given.names, *(PAPER_GAMES if given.all else ())]
    if not names:
        return _fail("name at least one environment, or --all for the paper's 24 games", 2)
    return check_command(names, given.moments)


def _natural(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text} is not an integer of at least 0")
    return int(text)


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is not an integer of at least 1")
    return int(text)


def _fail(reason: str, code: int) -> int:
    sys.stderr.write(f"dpsr-apex: {reason}\n")
    return code


if __name__ == "__main__":
    sys.exit(main())
