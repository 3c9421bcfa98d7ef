"""The commands that start, continue and steer runs."""

from __future__ import annotations

import argparse
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import get_args

from dpsr_apex.cli.arguments import Commands, add_bind, add_command, add_lifeline, hold_on, natural, positive
from dpsr_apex.cli.places import add_cluster, find_home
from dpsr_apex.config import Method

LEAVE_SECONDS = 30.0  # for a run of one process whose supervisor is gone to save

TRAIN_EXAMPLES = """examples:
  dpsr-apex train cartpole --actors 2
  dpsr-apex train cartpole --solo --method per --steps 20000 --set replay.capacity=10000
  dpsr-apex train configs/atari/breakout.toml --base released --params dpsr3 --seed 1
  dpsr-apex train atari/breakout --actors 4 --bind 0.0.0.0:5555     other machines may join
  dpsr-apex train atari/breakout --actors 64 --cluster auto --run-dir /shared/runs/breakout       on a Ray cluster
"""
RESUME_EXAMPLES = """examples:
  dpsr-apex resume runs/cartpole-dpsr-seed0-20260101-120000
  dpsr-apex resume runs/cartpole-dpsr-seed0-20260101-120000 --steps 100000
"""
EXPERIMENT_EXAMPLES = """examples:
  dpsr-apex experiment cartpole                         a shipped one: configs/experiments/cartpole.toml
  dpsr-apex experiment mine.toml --at-once 4            start it, or go on where it was stopped
  dpsr-apex experiment table1 --dry-run                 only show what would be run
"""
RATE_EXAMPLES = """examples:
  dpsr-apex rate runs/breakout --steps-per-update 8
  dpsr-apex rate runs/breakout --steps-per-update 0     nobody waits for anybody
"""
SCALE_EXAMPLES = """examples:
  dpsr-apex scale runs/breakout --actors 8
  dpsr-apex scale runs/breakout --actors 1              all but one leave, in order

`dpsr-apex train` starts or ends the difference. Who starts actors otherwise
(Slurm, Kubernetes, by hand) starts or ends them himself.
"""


def add_to(commands: Commands[argparse.ArgumentParser]) -> None:
    """Add these commands to the command line."""
    _add_train(add_command(commands, "train", "start a run", TRAIN_EXAMPLES))
    _add_resume(add_command(commands, "resume", "continue a run from its checkpoint", RESUME_EXAMPLES))
    _add_experiment(
        add_command(
            commands, "experiment", "run a grid of games, methods, parameter sets and seeds", EXPERIMENT_EXAMPLES
        )
    )
    _add_rate(
        add_command(commands, "rate", "change the transitions per update of a run that is going on", RATE_EXAMPLES)
    )
    _add_scale(add_command(commands, "scale", "change the number of actors of a run that is going on", SCALE_EXAMPLES))


def _add_train(train: argparse.ArgumentParser) -> None:
    train.add_argument("config", metavar="CONFIG", help="a TOML file, or the name of a shipped one (cartpole)")
    alone = train.add_mutually_exclusive_group()
    alone.add_argument("--solo", action="store_true", help="actor, replay and learner in one process and one thread")
    alone.add_argument("--actors", type=positive, metavar="N", help="actor processes (default: the cores but one)")
    add_bind(train, "where the run is served; beyond this machine with keys (default: this machine alone)")
    add_cluster(train)
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
    add_lifeline(train)
    train.set_defaults(command=_train)


def _add_resume(resume: argparse.ArgumentParser) -> None:
    resume.add_argument("run_dir", type=Path, metavar="RUN_DIR")
    resume.add_argument("--steps", type=int, metavar="T", help="make the run longer; schedules follow the new length")
    resume.add_argument("--actors", type=positive, metavar="N", help="another number of actor processes")
    add_bind(resume, "where the run is served (default: this machine alone)")
    add_cluster(resume)
    resume.add_argument("--checkpoint", type=Path, metavar="DIR", help="another checkpoint than the newest")
    resume.set_defaults(command=_resume)


def _add_experiment(experiment: argparse.ArgumentParser) -> None:
    experiment.add_argument("file", metavar="FILE", help="a TOML file, or the name of a shipped one (cartpole)")
    experiment.add_argument(
        "--dir", type=Path, metavar="DIR", help="where its runs go (default: runs/NAME of the file)"
    )
    experiment.add_argument("--at-once", type=positive, metavar="N", help="runs at a time (default: as the file says)")
    experiment.add_argument("--dry-run", action="store_true", help="show the runs and their state, and start none")
    experiment.set_defaults(command=_experiment)


def _add_rate(rate: argparse.ArgumentParser) -> None:
    rate.add_argument("run_dir", type=Path, metavar="RUN_DIR")
    rate.add_argument("--steps-per-update", type=natural, required=True, metavar="N", help="0 = free running")
    rate.set_defaults(command=_rate)


def _add_scale(scale: argparse.ArgumentParser) -> None:
    scale.add_argument("run_dir", type=Path, metavar="RUN_DIR")
    scale.add_argument("--actors", type=positive, required=True, metavar="N", help="so many from now on, at least 1")
    scale.set_defaults(command=_scale)


def _train(given: argparse.Namespace) -> int:
    hold_on(given, LEAVE_SECONDS)

    from dpsr_apex.config_files import load_config
    from dpsr_apex.run.run_directory import RunDirectory, default_path

    flags = {
        "replay.method": given.method,
        "run.seed": given.seed,
        "run.total_steps": given.steps,
        "learner.device": given.device,
        "system.actors": 0 if given.solo else given.actors,
    }
    overrides = [f"{key}={value}" for key, value in flags.items() if value is not None]
    config = load_config(given.config, base=given.base, params=given.params, overrides=[*overrides, *given.set])
    name = Path(given.config).stem
    path = given.run_dir or default_path(name, config.replay.method, config.run.seed, datetime.now())
    if not given.resume:
        RunDirectory.ensure_free(path)
    home = find_home(given, is_solo=config.system.actors == 0)
    if config.system.actors is None:
        config = replace(config, system=replace(config.system, actors=home.room_for_actors()))

    from dpsr_apex.run.commands import continue_or_train, train

    go = continue_or_train if given.resume else train
    return go(config, path, home.engine_for)


def _resume(given: argparse.Namespace) -> int:
    from dpsr_apex.config_files import load_config
    from dpsr_apex.run.run_directory import RunDirectory

    run = RunDirectory.open(given.run_dir)
    home = find_home(given, is_solo=load_config(run.config).system.actors == 0)

    from dpsr_apex.run.commands import resume

    return resume(run.path, given.steps, given.checkpoint, given.actors, home.engine_for)


def _experiment(given: argparse.Namespace) -> int:
    from dpsr_apex.experiment.command import run_experiment

    return run_experiment(given.file, given.dir, given.at_once, given.dry_run)


def _rate(given: argparse.Namespace) -> int:
    from dpsr_apex.processes.onlooker import change_rate
    from dpsr_apex.run.run_directory import RunDirectory

    return change_rate(RunDirectory.open(given.run_dir), given.steps_per_update)


def _scale(given: argparse.Namespace) -> int:
    from dpsr_apex.processes.onlooker import change_actors
    from dpsr_apex.run.run_directory import RunDirectory

    return change_actors(RunDirectory.open(given.run_dir), given.actors)
