"""`dpsr-apex inspect`: show the content of a run's replay, and continue from any stored state."""

from __future__ import annotations

import argparse
from pathlib import Path

from dpsr_apex.cli.arguments import add_run_directory, fail, natural, positive

COUNT, STEPS = 8, 300

SUMMARY = "show the transitions in a run's replay, or continue from any of them"
EXAMPLES = """\
  dpsr-apex inspect runs/breakout                                       tables, and a sheet of pictures
  dpsr-apex inspect runs/breakout --enter 8123456 --video out.mp4       continue from that transition
  dpsr-apex inspect runs/breakout --enter 8123456 --policy runs/other   with another run's weights
"""


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add_run_directory(command)
    command.add_argument("--checkpoint", type=Path, metavar="DIR", help="checkpoint to inspect (default: the newest)")
    tables = command.add_argument_group("tables and pictures")
    tables.add_argument("--count", type=positive, metavar="N", help=f"transitions per table (default: {COUNT})")
    tables.add_argument(
        "--sheet", type=Path, metavar="FILE.png", help="file for the pictures (default: RUN_DIR/replay.png)"
    )
    entering = command.add_argument_group("continuing from a stored state")
    entering.add_argument(
        "--enter", type=natural, metavar="ID", help="identity of the transition whose state is restored"
    )
    entering.add_argument("--steps", type=positive, metavar="N", help=f"steps to play (default: {STEPS})")
    entering.add_argument("--video", type=Path, metavar="FILE.mp4", help="record a video")
    entering.add_argument("--policy", type=Path, metavar="RUN_DIR", help="play with another run's newest weights")


def run(given: argparse.Namespace) -> int:
    """Show the replay, or with --enter continue from one transition; return the exit code."""
    if given.enter is None:
        if given.steps or given.video or given.policy:
            return fail("--steps, --video and --policy need --enter ID, the transition to continue from", 2)

        from dpsr_apex.inspection.overview import inspect_run

        return inspect_run(given.run_dir, given.count or COUNT, given.sheet, given.checkpoint)
    if given.count or given.sheet:
        return fail("--count and --sheet apply to the tables; omit them with --enter", 2)

    from dpsr_apex.inspection.play_from import play_from_transition

    steps = given.steps or STEPS
    return play_from_transition(given.run_dir, given.enter, steps, given.video, given.policy, given.checkpoint)
