"""`dpsr-apex replay`: the head of a run, which serves its replay."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from dpsr_apex import timeouts
from dpsr_apex.cli.arguments import add_bind, add_callback, add_lifeline, positive
from dpsr_apex.cli.head import begin_process, say_finished

if TYPE_CHECKING:
    from dpsr_apex.config import Config
    from dpsr_apex.record.run_directory import RunDirectory

SUMMARY = "serve the replay of a run whose processes are started one by one"
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
    add_callback(command)
    add_lifeline(command)


def run(given: argparse.Namespace) -> int:
    """Serve the run until it ends; return the exit code."""
    begin_process(given, timeouts.REPLAY_ORPHAN_LEAVE)

    from dpsr_apex.callbacks import Callbacks, instances
    from dpsr_apex.config_files import load_config
    from dpsr_apex.processes.replay import run_replay
    from dpsr_apex.record.lock import running_alone
    from dpsr_apex.record.run_directory import RunDirectory
    from dpsr_apex.trackers import ensure_installed
    from dpsr_apex.wire.addresses import parse_address

    bind, path = parse_address(given.bind), given.run_dir
    callbacks = Callbacks(instances(given.callback))
    former_seconds = given.former_seconds or timeouts.LOCK_RELEASE
    if given.lifeline:  # its supervisor holds the right to run the run
        return run_replay(RunDirectory.open(path), bind, former_seconds, callbacks)
    config = load_config(given.config) if given.config else None
    if config:
        ensure_installed(config.run.track)
    continues = config is None or (given.resume and not RunDirectory.is_free(path))
    directory = RunDirectory.open(path) if continues else RunDirectory.create(path)
    with running_alone(directory, former_seconds) as lock:
        if config and _is_trained_with(config, directory, continues):
            return say_finished(path)
        return run_replay(directory, bind, former_seconds, callbacks, given.command_line, lock.note_ending)


def _is_trained_with(config: Config, run: RunDirectory, continues: bool) -> bool:
    """Write the config of a new run; compare that of a run that continues, and return whether it is trained."""
    from dpsr_apex.config_files import ensure_same
    from dpsr_apex.record.progress import is_trained
    from dpsr_apex.record.run_directory import write_config

    if continues:
        ensure_same(config, run.config)
        return is_trained(run)
    run.ensure_free(run.path)  # another process may have been faster
    write_config(config, run)
    return False
