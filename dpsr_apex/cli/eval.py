"""`dpsr-apex eval`: play episodes with a run's newest weights."""

from __future__ import annotations

import argparse
from pathlib import Path

from dpsr_apex.cli.arguments import add_run_directory, positive

SUMMARY = "play episodes with a run's newest weights, and print the scores"
EXAMPLES = """\
  dpsr-apex eval runs/cartpole-dpsr-seed0-20260101-120000 --episodes 10 --video episodes.mp4
"""


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add_run_directory(command)
    command.add_argument("--episodes", type=positive, default=10, metavar="N", help="number of episodes (default: 10)")
    command.add_argument("--video", type=Path, metavar="FILE.mp4", help="record the episodes as a video")


def run(given: argparse.Namespace) -> int:
    """Play the episodes; return the exit code."""
    from dpsr_apex.record.run_directory import RunDirectory

    RunDirectory.open(given.run_dir)  # reject a wrong path before torch is loaded

    from dpsr_apex.play import evaluate_run

    return evaluate_run(given.run_dir, given.episodes, given.video)
