"""The commands that are one process of a run each: actor, replay, learner, evaluator."""

from __future__ import annotations

import argparse
import os
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from dpsr_apex.cli.arguments import Commands, add_bind, add_command, add_lifeline, begin_process, positive

if TYPE_CHECKING:
    from dpsr_apex.processes.discovery import Whereabouts
    from dpsr_apex.run.run_directory import RunDirectory

LEAVE_SECONDS = 9.0  # for a process whose supervisor is gone to leave
WRITE_SECONDS = 300.0  # for the replay, whose last checkpoint may be large

NOBODY = "tcp://127.0.0.1:9"  # an address without a server

FORMER_HELP = "seconds that a former life of it may still hold its lock (default: 15; NFS holds it for up to 90)"

ACTOR_EXAMPLES = """examples:
  dpsr-apex actor --connect head.example:5555 --key client.key
  dpsr-apex actor --find /shared/runs/breakout                 where all machines see the run directory
"""
REPLAY_EXAMPLES = """examples:
  dpsr-apex replay atari/breakout --run-dir runs/breakout --bind 0.0.0.0:5555      a new run
  dpsr-apex replay --run-dir runs/breakout --bind 0.0.0.0:5555                 the same, from its newest checkpoint
  dpsr-apex replay cartpole --run-dir runs/mine --bind 0.0.0.0:0 --resume      whichever it is, at a free port
"""
LEARNER_EXAMPLES = """examples:
  dpsr-apex learner --connect head.example:5555 --key client.key --bind 0.0.0.0:5556
  dpsr-apex learner --find /shared/runs/breakout
"""
EVALUATOR_EXAMPLES = """examples:
  dpsr-apex evaluator runs/breakout
  dpsr-apex evaluator runs/breakout --connect 127.0.0.1:5555 --key runs/breakout/keys/client.key
"""


def add_to(commands: Commands[argparse.ArgumentParser]) -> None:
    """Add these commands to the command line."""
    _add_actor(add_command(commands, "actor", "act for a run on this or another machine", ACTOR_EXAMPLES))
    _add_replay(add_command(commands, "replay", "serve the replay of a run, as its head", REPLAY_EXAMPLES))
    _add_learner(add_command(commands, "learner", "learn for a run on this or another machine", LEARNER_EXAMPLES))
    _add_evaluator(add_command(commands, "evaluator", "evaluate a run while it goes on", EVALUATOR_EXAMPLES))


def _add_actor(actor: argparse.ArgumentParser) -> None:
    _add_connect(actor)
    actor.add_argument("--name", metavar="NAME", help="how the run calls it (default: this machine and process)")
    actor.set_defaults(command=_actor)


def _add_replay(replay: argparse.ArgumentParser) -> None:
    replay.add_argument("config", nargs="?", metavar="CONFIG", help="for a new run: a TOML file or a shipped config")
    replay.add_argument("--run-dir", type=Path, required=True, metavar="DIR", help="where the run is, or goes")
    add_bind(replay, "where to listen; beyond this machine with keys (default: a free port of this machine)")
    replay.add_argument("--resume", action="store_true", help="continue if --run-dir already holds this very run")
    replay.add_argument("--former-seconds", type=positive, metavar="N", help=FORMER_HELP)
    add_lifeline(replay)
    replay.set_defaults(command=_replay)


def _add_learner(learner: argparse.ArgumentParser) -> None:
    _add_connect(learner)
    learner.add_argument(
        "--bind", metavar="HOST:PORT", help="where to serve weights (default: a free port, on the way to the head)"
    )
    learner.add_argument("--threads", type=positive, metavar="N", help="of torch, where the config names no number")
    learner.add_argument("--device", choices=("auto", "cpu", "cuda"), help="where the network lives")
    learner.set_defaults(command=_learner)


def _add_evaluator(evaluator: argparse.ArgumentParser) -> None:
    evaluator.add_argument(
        "run_dir", type=Path, metavar="RUN_DIR", help="where its head is found, if not told otherwise"
    )
    _add_connect(evaluator, required=False)
    evaluator.set_defaults(command=_evaluator)


def _add_connect(command: argparse.ArgumentParser, *, required: bool = True) -> None:
    head = command.add_mutually_exclusive_group(required=required)
    head.add_argument("--connect", metavar="HOST:PORT", help="the head of the run")
    head.add_argument("--find", type=Path, metavar="DIR", help="the run's directory, where its head says where it is")
    command.add_argument("--key", type=Path, metavar="FILE", help="its client.key (default: that in DIR, if any)")
    add_lifeline(command)


def _actor(given: argparse.Namespace) -> int:
    head = _find_head(given)
    if head is None:
        return _say_finished(given.find)

    from dpsr_apex.processes.actor import run_actor

    return run_actor(head, given.name or f"{socket.gethostname()}-{os.getpid()}")


def _replay(given: argparse.Namespace) -> int:
    begin_process(given, WRITE_SECONDS)

    from dpsr_apex.processes.replay import run_replay
    from dpsr_apex.run.run_directory import RunDirectory, write_config
    from dpsr_apex.wire.addresses import parse_address

    bind = parse_address(given.bind)
    if given.config is None:
        return run_replay(RunDirectory.open(given.run_dir), bind, given.former_seconds)

    from dpsr_apex.config_files import ensure_same, load_config

    config = load_config(given.config)
    if given.resume and not RunDirectory.is_free(given.run_dir):
        run = RunDirectory.open(given.run_dir)
        ensure_same(config, run.config)
        if _is_finished(run):
            return _say_finished(run.path)
    else:
        run = RunDirectory.create(given.run_dir)
        write_config(config, run)
    return run_replay(run, bind, given.former_seconds)


def _learner(given: argparse.Namespace) -> int:
    head = _find_head(given)
    if head is None:
        return _say_finished(given.find)

    from dpsr_apex.processes.learner import run_learner
    from dpsr_apex.wire.addresses import parse_address

    bind = parse_address(given.bind) if given.bind else None
    return run_learner(head, bind, given.threads, given.device)


def _evaluator(given: argparse.Namespace) -> int:
    from dpsr_apex.run.run_directory import RunDirectory

    if given.connect is None and given.find is None:
        given.find = given.run_dir
    head = _find_head(given)
    run = RunDirectory.open(given.run_dir)  # not before: a head that is waited for may still have to make it

    from dpsr_apex.processes.discovery import Address, Whereabouts
    from dpsr_apex.processes.evaluator import run_evaluator

    # Of a run that is finished the last weights may still have to be played with, and for that no head is needed.
    return run_evaluator(run, head or Whereabouts(Address(NOBODY, None)))


def _find_head(given: argparse.Namespace) -> Whereabouts | None:
    """None for a run that is finished: nobody is needed there any more."""
    begin_process(given, LEAVE_SECONDS)
    return _looked_up(given.find, given.key) if given.find else _named(given.connect, given.key)


def _named(connect: str, key: Path | None) -> Whereabouts:
    from dpsr_apex.config import ConfigError
    from dpsr_apex.processes.discovery import Address, Whereabouts
    from dpsr_apex.wire.addresses import is_loopback, parse_address
    from dpsr_apex.wire.keys import load_client_keys

    endpoint = parse_address(connect)
    if key is None and not is_loopback(endpoint):
        # The head tells what to run: off this machine it must prove by its key that it is the head.
        raise ConfigError(f"--connect {connect}: another machine asks for --key FILE, a copy of its client.key")
    return Whereabouts(Address(endpoint, load_client_keys(key) if key else None))


def _looked_up(folder: Path, key: Path | None) -> Whereabouts | None:
    from dpsr_apex.processes.discovery import FileBoard, wait_for_head
    from dpsr_apex.processes.link import PATIENCE_SECONDS, ReplayLost
    from dpsr_apex.run.run_directory import RunDirectory

    run = RunDirectory(folder)
    found = wait_for_head(FileBoard(run.connection), key or run.client_key, PATIENCE_SECONDS, lambda: _is_finished(run))
    if found is None and not _is_finished(run):
        raise ReplayLost(f"No head was published in {folder} within {PATIENCE_SECONDS:.0f} s. Is a run going on there?")
    return found


def _is_finished(run: RunDirectory) -> bool:
    """Whether its last checkpoint is there."""
    from dpsr_apex.config_files import load_config
    from dpsr_apex.run.checkpoint import has_checkpoint

    return run.config.is_file() and has_checkpoint(run.checkpoints, load_config(run.config).run.total_steps)


def _say_finished(path: Path) -> int:
    sys.stdout.write(f"{path} is finished\n")
    return 0
