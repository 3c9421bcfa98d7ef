"""`dpsr-apex resume`: continue a run."""

from __future__ import annotations

import argparse
from pathlib import Path

from dpsr_apex.cli.arguments import add_bind, add_callback, add_run_directory, positive, record_video_if_wanted, steps
from dpsr_apex.cli.engines import add_cluster, choose_place

SUMMARY = "continue a run where it ended"
EXAMPLES = """\
  dpsr-apex resume runs/cartpole-dpsr-seed0-20260101-120000
  dpsr-apex resume runs/cartpole-dpsr-seed0-20260101-120000 --steps 100000      train longer
"""


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add_run_directory(command)
    command.add_argument(
        "--steps", type=steps, metavar="T", help="new length of the run in transitions; schedules are stretched to it"
    )
    command.add_argument("--actors", type=positive, metavar="N", help="new number of actor processes")
    command.add_argument(
        "--checkpoint", type=Path, metavar="DIR", help="continue from an earlier checkpoint; later ones are removed"
    )
    command.add_argument(
        "--until-damage", action="store_true", help="give up everything after the first damage in the journal"
    )
    add_callback(command)
    add_bind(command, "address to serve the run on (default: this machine only)")
    add_cluster(command)


def run(given: argparse.Namespace) -> int:
    """Continue the run; return the exit code."""
    from dpsr_apex.config_files import load_config
    from dpsr_apex.record.run_directory import RunDirectory

    directory = RunDirectory.open(given.run_dir if given.cluster is None else given.run_dir.resolve())
    config = load_config(directory.config)
    place = choose_place(given, is_solo=config.system.actors == 0)

    from dpsr_apex.running import Options, resume

    options = Options(record_video_if_wanted, given.callback, given.command_line, place.lock_release)
    return resume(
        directory.path, given.steps, given.checkpoint, given.actors, place.engine_for, options, given.until_damage
    )
