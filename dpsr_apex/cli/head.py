"""Starting a process of a run and finding the run's head: shared by `actor`, `learner` and `evaluator`."""

from __future__ import annotations

import argparse
import faulthandler
import logging
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from dpsr_apex import timeouts
from dpsr_apex.cli.arguments import add_lifeline, hold_lifeline
from dpsr_apex.logs import LimitRepeats

if TYPE_CHECKING:
    from dpsr_apex.processes.discovery import HeadLocator


def begin_process(given: argparse.Namespace, seconds: float) -> None:
    """Log to standard error, which the supervisor collects, and end within `seconds` after the supervisor has ended."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    for handler in logging.getLogger().handlers:
        handler.addFilter(LimitRepeats())
    faulthandler.enable()
    hold_lifeline(given, seconds)


def add_connect(command: argparse.ArgumentParser, role: str, *, required: bool = True) -> None:
    """Add the options that identify the head, by its address or by the run's directory, and the role's key."""
    head = command.add_mutually_exclusive_group(required=required)
    head.add_argument("--connect", metavar="HOST:PORT", help="address of the run's head")
    head.add_argument(
        "--find", type=Path, metavar="DIR", help="the run's directory, from which the head's address is read"
    )
    command.add_argument(
        "--key", type=Path, metavar="FILE", help=f"a copy of the run's {role}.key (default: the one in DIR)"
    )
    add_lifeline(command)


def find_head(given: argparse.Namespace, role: str) -> HeadLocator | None:
    """Start the process and return the head; None if the run is already trained."""
    begin_process(given, timeouts.PROCESS_LEAVE)
    return _looked_up(given.find, given.key, role) if given.find else _named(given.connect, given.key, role)


def say_finished(path: Path) -> int:
    """Print that there is nothing left to do; return the exit code."""
    sys.stdout.write(f"{path} is finished\n")
    return 0


def _named(connect: str, key: Path | None, role: str) -> HeadLocator:
    from dpsr_apex.config import ConfigError
    from dpsr_apex.processes.discovery import Address, HeadLocator
    from dpsr_apex.wire.addresses import parse_address
    from dpsr_apex.wire.keys import load_keys

    endpoint = parse_address(connect)
    if key is None:
        raise ConfigError(f"--connect {connect}: add --key FILE, which is RUN_DIR/keys/{role}.key of the run or a copy")
    return HeadLocator(Address(endpoint, load_keys(key, role)))


def _looked_up(folder: Path, key: Path | None, role: str) -> HeadLocator | None:
    from dpsr_apex.processes.discovery import FileRegistry, wait_for_head
    from dpsr_apex.processes.link import ReplayLost
    from dpsr_apex.record.progress import is_trained
    from dpsr_apex.record.run_directory import RunDirectory

    run = RunDirectory(folder)
    registry = FileRegistry(run.connection)
    key = key or run.key_of(role)
    found = wait_for_head(registry, key, role, timeouts.HEAD_LOST, lambda: is_trained(run))
    if found is None and not is_trained(run):
        raise ReplayLost(f"No head was published in {folder} within {timeouts.HEAD_LOST:.0f} s. Is the run running?")
    return found
