"""The commands that are one process of a run each: actor, replay, learner, evaluator."""

from __future__ import annotations

import argparse
import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING

from dpsr_apex.cli.arguments import Commands, add_bind, add_command, add_lifeline, begin_process, positive

if TYPE_CHECKING:
    from dpsr_apex.processes.link import Address

LEAVE_SECONDS = 9.0  # for a process whose supervisor is gone to leave
WRITE_SECONDS = 300.0  # for the replay, whose last checkpoint may be large

ACTOR_EXAMPLES = """examples:
  dpsr-apex actor --connect head.example:5555 --key client.key
"""
REPLAY_EXAMPLES = """examples:
  dpsr-apex replay atari/breakout --run-dir runs/breakout --bind 0.0.0.0:5555      a new run
  dpsr-apex replay --run-dir runs/breakout --bind 0.0.0.0:5555                 the same, from its newest checkpoint
"""
LEARNER_EXAMPLES = """examples:
  dpsr-apex learner --connect head.example:5555 --key client.key --bind 0.0.0.0:5556
"""
EVALUATOR_EXAMPLES = """examples:
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
    add_lifeline(replay)
    replay.set_defaults(command=_replay)


def _add_learner(learner: argparse.ArgumentParser) -> None:
    _add_connect(learner)
    add_bind(learner, "where to serve weights; beyond this machine with the key (default: this machine alone)")
    learner.add_argument("--threads", type=positive, metavar="N", help="of torch, where the config names no number")
    learner.add_argument("--device", choices=("auto", "cpu", "cuda"), help="where the network lives")
    learner.set_defaults(command=_learner)


def _add_evaluator(evaluator: argparse.ArgumentParser) -> None:
    evaluator.add_argument("run_dir", type=Path, metavar="RUN_DIR")
    _add_connect(evaluator)
    evaluator.set_defaults(command=_evaluator)


def _add_connect(command: argparse.ArgumentParser) -> None:
    command.add_argument("--connect", required=True, metavar="HOST:PORT", help="the head of the run")
    command.add_argument("--key", type=Path, metavar="FILE", help="the run's client.key, where it has keys")
    add_lifeline(command)


def _actor(given: argparse.Namespace) -> int:
    address = _join_as_process(given)

    from dpsr_apex.processes.actor import run_actor

    return run_actor(address, given.name or f"{socket.gethostname()}-{os.getpid()}")


def _replay(given: argparse.Namespace) -> int:
    begin_process(given, WRITE_SECONDS)

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


def _join_as_process(given: argparse.Namespace) -> Address:
    """Where the head of the run is."""
    begin_process(given, LEAVE_SECONDS)

    from dpsr_apex.config import ConfigError
    from dpsr_apex.processes.link import Address
    from dpsr_apex.wire.addresses import is_loopback, parse_address
    from dpsr_apex.wire.keys import load_client_keys

    endpoint = parse_address(given.connect)
    if given.key is None and not is_loopback(endpoint):
        # The head tells what to run: off this machine it must prove by its key that it is the head.
        raise ConfigError(f"--connect {given.connect}: another machine asks for --key FILE, a copy of its client.key")
    return Address(endpoint, load_client_keys(given.key) if given.key else None)
