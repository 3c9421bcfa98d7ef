"""`dpsr-apex train`: start a run."""

from __future__ import annotations

import argparse
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from dpsr_apex import timeouts
from dpsr_apex.cli.arguments import (
    add_bind,
    add_callback,
    add_lifeline,
    hold_lifeline,
    positive,
    record_video_if_wanted,
    steps,
)
from dpsr_apex.cli.engines import add_cluster, choose_place
from dpsr_apex.methods import METHODS
from dpsr_apex.trackers import TRACKERS

SUMMARY = "start a run"
EXAMPLES = """\
  dpsr-apex train cartpole --actors 2
  dpsr-apex train cartpole --solo --method per --steps 20000 --set replay.capacity=10000
  dpsr-apex train configs/atari/breakout.toml --base released --params dpsr3 --seed 1
  dpsr-apex train atari/breakout --actors 4 --bind 0.0.0.0:5555        other machines may join
  dpsr-apex train atari/breakout --start-from failures.safetensors --set actor.start_share=0.3
  dpsr-apex train atari/breakout --actors 64 --cluster auto --run-dir /shared/runs/breakout
"""


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    command.add_argument("config", metavar="CONFIG", help="a TOML file, a shipped config (cartpole), or atari/GAME")
    processes = command.add_mutually_exclusive_group()
    processes.add_argument(
        "--actors", type=positive, metavar="N", help="number of actor processes (default: all cores but one)"
    )
    processes.add_argument(
        "--solo", action="store_true", help="run actor, replay and learner in one process, reproducible bit for bit"
    )
    command.add_argument("--method", choices=list(METHODS), help="the replay method (replay.method)")
    command.add_argument("--base", metavar="NAME", help="base settings: paper, released, apex, modern or classic")
    command.add_argument("--params", metavar="NAME", help="parameter set: best, second, third or dpsr0 to dpsr4")
    command.add_argument("--seed", type=int, metavar="S", help="random seed (run.seed)")
    command.add_argument("--steps", type=steps, metavar="T", help="length of the run in transitions (run.total_steps)")
    command.add_argument("--device", choices=("auto", "cpu", "cuda"), help="device of the network (learner.device)")
    command.add_argument(
        "--track", action="append", choices=list(TRACKERS), help="an experiment tracker (run.track); may be repeated"
    )
    command.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="any setting, such as replay.capacity=10000"
    )
    command.add_argument(
        "--start-from", metavar="FILE", help="begin a share of the episodes at these moments (actor.start_from)"
    )
    command.add_argument(
        "--run-dir", type=Path, metavar="DIR", help="the run's directory (default: a new one in runs/)"
    )
    command.add_argument("--resume", action="store_true", help="continue the run if it already exists in --run-dir")
    add_callback(command)
    add_bind(command, "address to serve the run on; other machines need a key (default: this machine only)")
    add_cluster(command)
    add_lifeline(command)


def run(given: argparse.Namespace) -> int:
    """Start the run, or with --resume continue it; return the exit code."""
    hold_lifeline(given, timeouts.SOLO_LEAVE)

    from dpsr_apex.config_files import load_config, toml_value
    from dpsr_apex.record.run_directory import RunDirectory, default_path, name_of

    flags = {
        "replay.method": given.method,
        "run.seed": given.seed,
        "run.total_steps": given.steps,
        "run.track": toml_value(given.track) if given.track else None,
        "learner.device": given.device,
        "actor.start_from": toml_value(given.start_from) if given.start_from else None,
        "system.actors": 0 if given.solo else given.actors,
    }
    overrides = [f"{key}={value}" for key, value in flags.items() if value is not None]
    config = load_config(given.config, base=given.base, params=given.params, overrides=[*overrides, *given.set])
    path = given.run_dir or default_path(name_of(config), config.replay.method, config.run.seed, datetime.now())
    if given.cluster is not None:
        path = path.resolve()  # nodes may have other working directories
    if not given.resume:
        RunDirectory.ensure_free(path)
    place = choose_place(given, is_solo=config.system.actors == 0)
    if config.system.actors is None:
        config = replace(config, system=replace(config.system, actors=place.default_actors()))

    from dpsr_apex.running import Options, announce_params, continue_or_train, train

    announce_params(config, given.config, given.params)
    options = Options(record_video_if_wanted, given.callback, given.command_line, place.lock_release)
    start = continue_or_train if given.resume else train
    return start(config, path, place.engine_for, options)
