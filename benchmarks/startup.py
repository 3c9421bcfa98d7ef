"""Start-up: from the start of `dpsr-apex train` until the first transition is in the replay, with warm caches.

In one process, and with two actors, where four processes start. The baseline is a program that only imports torch,
numba and gymnasium, which every process that acts or learns needs.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.measure import Comparison, Elapsed, Report, interleave, parse_options, spread
from dpsr_apex.callbacks import STOP, Callback, LiveRun, Stop

REPETITIONS = 5
MARK = "BENCHMARK_FIRST_TRANSITION"  # environment variable: the file into which the time is written
RUNS = {"one process": ("--solo",), "two actors": ("--actors", "2")}
IMPORTS = "a program that only imports torch, numba and gymnasium"


class FirstTransition(Callback):
    """Writes when the first transition was inserted, and ends the run."""

    def on_step(self, run: LiveRun, transitions: int) -> Stop:
        """Handle the first transitions."""
        del run, transitions
        path = Path(os.environ[MARK])
        if not path.exists():
            path.write_text(repr(time.time()))
        return STOP


def start(options: Sequence[str]) -> Elapsed:
    """Start a run of CartPole, wait for its end; return the seconds until the first transition."""
    with tempfile.TemporaryDirectory() as folder:
        mark = Path(folder) / "mark"
        train = [
            "train",
            "cartpole",
            *options,
            "--run-dir",
            f"{folder}/run",
            "--callback",
            f"{__name__}:FirstTransition",
        ]
        began = time.time()
        subprocess.run(
            [sys.executable, "-m", "dpsr_apex.cli", *train],
            env=os.environ | {MARK: str(mark)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            check=True,
        )
        seconds = float(mark.read_text()) - began
    return Elapsed(seconds, seconds)


def import_only() -> Elapsed:
    """Return the seconds of a program that only imports."""
    began = time.time()
    subprocess.run([sys.executable, "-c", "import torch, numba, gymnasium"], check=True)
    seconds = time.time() - began
    return Elapsed(seconds, seconds)


def main() -> int:
    options = parse_options(__doc__)
    report = Report("startup")
    tasks = {name: (lambda flags=flags: start(flags)) for name, flags in RUNS.items()}
    times = interleave(tasks | {"imports": import_only}, REPETITIONS)
    report.record("until the first transition", times, 1.0, "seconds")
    imports = [one.wall for one in times["imports"]]
    for name in RUNS:
        seconds = [one.wall for one in times[name]]
        share = spread([theirs / ours for ours, theirs in zip(seconds, imports, strict=True)])
        work = f"start-up: from typing `train` to the first transition, {name} (wall time)"
        report.compare(Comparison(work, IMPORTS, "s", spread(seconds), spread(imports), share, None))
    return report.finish(options.json)


if __name__ == "__main__":
    # The callback must have the name under which the run imports it.
    from benchmarks import startup

    sys.exit(startup.main())
