"""`dpsr-apex report`: generate one page from many runs."""

from __future__ import annotations

import argparse
from pathlib import Path

SUMMARY = "generate a page of curves, tables and statistics from runs"
EXAMPLES = """\
  dpsr-apex report runs/cartpole-dpsr-seed0-20260101-120000
  dpsr-apex report runs/cartpole-* --out report
  dpsr-apex report runs/my-experiment
"""


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    command.add_argument("paths", nargs="+", type=Path, metavar="RUN_DIR", help="runs, or folders of runs")
    command.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help="folder for the page (default: RUN_DIR/report, or ./report for several paths)",
    )


def run(given: argparse.Namespace) -> int:
    """Generate the page; return the exit code."""
    from dpsr_apex.report.command import report_runs

    return report_runs(given.paths, given.out)
