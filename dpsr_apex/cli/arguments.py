"""Arguments that several commands share, and parsers of their values."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

THIS_MACHINE = "127.0.0.1:0"  # a free port that only this machine can reach


def add_run_directory(command: argparse.ArgumentParser) -> None:
    """Add the run directory as a positional argument."""
    command.add_argument("run_dir", type=Path, metavar="RUN_DIR", help="the run's directory")


def add_bind(command: argparse.ArgumentParser, purpose: str) -> None:
    """Add the address to listen on; the default is reachable from this machine only."""
    command.add_argument("--bind", default=THIS_MACHINE, metavar="HOST:PORT", help=purpose)


def add_callback(command: argparse.ArgumentParser) -> None:
    """Add the option that names callbacks."""
    command.add_argument(
        "--callback", action="append", default=[], metavar="MODULE:CLASS", help="a dpsr_apex.Callback; may be repeated"
    )


def add_lifeline(command: argparse.ArgumentParser) -> None:
    """Add the hidden flag of supervised processes: the process ends when its standard input, a pipe, is closed."""
    command.add_argument("--lifeline", action="store_true", help=argparse.SUPPRESS)


def hold_lifeline(given: argparse.Namespace, seconds: float) -> None:
    """With --lifeline, end this process at most `seconds` after its supervisor has ended."""
    if given.lifeline:
        from dpsr_apex.processes.startup import end_with_supervisor

        end_with_supervisor(seconds)


def record_video_if_wanted(path: Path) -> None:
    """Record an episode of a finished run, if its config asks for it."""
    from dpsr_apex.config_files import load_config
    from dpsr_apex.record.run_directory import RunDirectory

    if load_config(RunDirectory.open(path).config).evaluation.video:
        from dpsr_apex.play import record_video

        record_video(path)


def natural(text: str) -> int:
    """Parse an integer >= 0."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"must be an integer >= 0 (got {text})")
    return int(text)


def positive(text: str) -> int:
    """Parse an integer >= 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be an integer >= 1 (got {text})")
    return int(text)


def steps(text: str) -> int:
    """Parse a number of steps >= 1, also written as 1e6 or 1_000_000."""
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 1 <= number < 2**63 or number != int(number):
        raise argparse.ArgumentTypeError(f"must be an integer >= 1, such as 100000 or 1e6 (got {text})")
    return int(text) if text.isdecimal() else int(number)


def positive_number(text: str) -> float:
    """Parse a finite number > 0."""
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"must be a number > 0 (got {text})")
    return number


def fail(reason: str, code: int) -> int:
    """Print why the command failed, and return the exit code."""
    sys.stderr.write(f"dpsr-apex: {reason}\n")
    return code
