"""`dpsr-apex eval`: play episodes with a run's weights."""

from __future__ import annotations

import argparse
from pathlib import Path

from dpsr_apex.cli.arguments import add_run_directory, natural, positive

SUMMARY = "play episodes with a run's weights, and print the scores"
EXAMPLES = """\
  dpsr-apex eval runs/cartpole-dpsr-seed0-20260101-120000 --episodes 10 --video episodes.mp4
  dpsr-apex eval runs/cartpole-dpsr-seed0-20260101-120000 --weights best --seed 7 --json
  dpsr-apex eval runs/cartpole-dpsr-seed0-20260101-120000 --from failures.safetensors
"""


EPISODES = 10


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add_run_directory(command)
    command.add_argument(
        "--episodes", type=positive, metavar="N", help=f"number of episodes (default: {EPISODES}, or one per moment)"
    )
    command.add_argument(
        "--from", dest="starts", type=Path, metavar="FILE", help="begin the episodes at the moments in this file"
    )
    command.add_argument(
        "--weights",
        metavar="best|last|FILE",
        help="those of the best or the last evaluation, or a safetensors file (default: the newest checkpoint)",
    )
    command.add_argument("--seed", type=natural, metavar="S", help="random seed of the episodes (default: the run's)")
    command.add_argument("--json", action="store_true", help="print the result as one JSON object")
    command.add_argument("--log", type=Path, metavar="FILE.jsonl", help="append one row per episode to this file")
    command.add_argument("--video", type=Path, metavar="FILE.mp4", help="record the episodes as a video")


def run(given: argparse.Namespace) -> int:
    """Play the episodes; return the exit code."""
    from dpsr_apex.record.run_directory import RunDirectory

    RunDirectory.open(given.run_dir)  # reject a wrong path before torch is loaded

    from dpsr_apex.play import Wanted, evaluate_run

    episodes = given.episodes or (None if given.starts else EPISODES)
    wanted = Wanted(episodes, given.weights, given.seed, given.video, given.log, given.json, given.starts)
    return evaluate_run(given.run_dir, wanted)
