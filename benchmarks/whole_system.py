"""A whole local run of Breakout in steady state: steps and updates a second, the CPU of each role, and who waits.

The real command with its default number of actors, after the replay is full and recycling has begun. Figures are of
half a minute each, three times.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.measure import Report, parse_options, spread
from dpsr_apex.processes.link import ask
from dpsr_apex.processes.onlooker import address_of
from dpsr_apex.run.run_directory import RunDirectory
from dpsr_apex.wire.messages import Stats, StatsRequest

REPETITIONS = 3
SECONDS = 30.0  # of one repetition
CAPACITY = 4_000  # transitions; filled before anything is timed
CLOCK_TICKS = os.sysconf("SC_CLK_TCK")
ROLES = ("replay", "learner", "actor", "evaluator")

OVERRIDES = (
    f"replay.capacity={CAPACITY}",
    "learner.steps_per_update=4",
    "actor.exploration=0.05",
    "run.total_steps=10000000",
    "run.checkpoint_period=0",
)


@contextmanager
def training() -> Iterator[tuple[RunDirectory, int]]:
    """The command as a user types it, while inside: its run directory and its process id."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run"
        sets = [f"--set={override}" for override in OVERRIDES]
        command = [sys.executable, "-m", "dpsr_apex.cli", "train", "breakout_short", "--run-dir", str(path), *sets]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        try:
            yield RunDirectory(path), process.pid
        finally:
            process.terminate()
            process.wait()


def stats_of(run: RunDirectory) -> dict[str, Any]:
    answer = ask(address_of(run), StatsRequest(), 30.0)
    assert isinstance(answer, Stats)
    facts: dict[str, Any] = json.loads(answer.facts)
    return facts


def cpu_by_role(supervisor: int) -> dict[str, float]:
    """CPU seconds so far of the processes of each role."""
    seconds = dict.fromkeys(ROLES, 0.0)
    for child in Path(f"/proc/{supervisor}/task/{supervisor}/children").read_text().split():
        role = Path(f"/proc/{child}/cmdline").read_text().split("\0")[3]
        fields = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()
        seconds[role] += (int(fields[11]) + int(fields[12])) / CLOCK_TICKS
    return seconds


def measure(run: RunDirectory, supervisor: int) -> dict[str, float]:
    """One repetition: rates, and the share of one core that each role took."""
    before, cpu_before, began = stats_of(run), cpu_by_role(supervisor), time.perf_counter()
    waits = []
    while time.perf_counter() - began < SECONDS:
        time.sleep(1.0)
        waits.append(stats_of(run)["learner"]["waiting"])
    after, cpu_after, seconds = stats_of(run), cpu_by_role(supervisor), time.perf_counter() - began
    return {
        "steps per second": (after["t"] - before["t"]) / seconds,
        "updates per second": (after["rate"]["batches"] - before["rate"]["batches"]) / seconds,
        "share of time that the learner waits": sum(waits) / len(waits),
        **{f"CPU of the {role}": (cpu_after[role] - cpu_before[role]) / seconds for role in ROLES},
    }


def main() -> int:
    options = parse_options(__doc__)
    report = Report("whole_system")
    with training() as (run, supervisor):
        while not run.connection.exists() or stats_of(run)["t"] < 1.25 * CAPACITY:
            time.sleep(1.0)
        repetitions = [measure(run, supervisor) for _ in range(REPETITIONS)]
        actors = len(stats_of(run)["actors"])
    spreads = {name: spread([one[name] for one in repetitions]) for name in repetitions[0]}
    report.figures |= {name: found._asdict() for name, found in spreads.items()} | {"actors": actors}
    rows = [[name, found.show(2)] for name, found in spreads.items()]
    report.table(f"Breakout, {actors} actor(s), 4 transitions per update", ("", "median (quartiles)"), rows)
    return report.finish(options.json)


if __name__ == "__main__":
    sys.exit(main())
