"""`dpsr-apex replay`: the head of a run, which serves its replay."""

from __future__ import annotations

import argparse
from pathlib import Path

from dpsr_apex import timeouts
from dpsr_apex.cli.arguments import add_bind, add_lifeline, positive
from dpsr_apex.cli.head import begin_process, say_finished

SUMMARY = "serve the replay of a run, as its head; for runs whose processes are started one by one"
EXAMPLES = """\
  dpsr-apex replay atari/breakout --run-dir runs/breakout --bind 0.0.0.0:5555     a new run
  dpsr-apex replay --run-dir runs/breakout --bind 0.0.0.0:5555                    continue it
  dpsr-apex replay cartpole --run-dir runs/mine --bind 0.0.0.0:0 --resume         start or continue
"""


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    command.add_argument(
        "config", nargs="?", metavar="CONFIG", help="for a new run: a TOML file, or the name of a shipped config"
    )
    command.add_argument("--run-dir", type=Path, required=True, metavar="DIR", help="the run's directory")
    add_bind(command, "address to listen on; other machines need a key (default: a free port, this machine only)")
    command.add_argument("--resume", action="store_true", help="continue the run if it already exists in --run-dir")
    command.add_argument(
        "--former-seconds",
        type=positive,
        metavar="N",
        help="seconds to wait for the lock of a crashed head (default: 15; NFS holds it for up to 90)",
    )
    add_lifeline(command)


def run(given: argparse.Namespace) -> int:
    """Serve the run until it ends; return the exit code."""
    begin_process(given, timeouts.REPLAY_ORPHAN_LEAVE)

    from dpsr_apex.processes.replay import run_replay
    from dpsr_apex.record.run_directory import RunDirectory, write_config
    from dpsr_apex.wire.addresses import parse_address

    bind = parse_address(given.bind)
    if given.config is None:
        return run_replay(RunDirectory.open(given.run_dir), bind, given.former_seconds)

    from dpsr_apex.config_files import ensure_same, load_config
    from dpsr_apex.record.progress import is_trained

    config = load_config(given.config)
    if given.resume and not RunDirectory.is_free(given.run_dir):
        directory = RunDirectory.open(given.run_dir)
        ensure_same(config, directory.config)
        if is_trained(directory):
            return say_finished(directory.path)
    else:
        directory = RunDirectory.create(given.run_dir)
        write_config(config, directory)
    return run_replay(directory, bind, given.former_seconds)
