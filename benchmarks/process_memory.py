"""Resident memory of the processes of real runs, compared with the prediction that is printed before a run starts.

Small runs of Breakout and CartPole with one actor, after their replay is full, and updates and recycling have begun.
`replay_traffic` does the same for a replay process with a million transitions of Breakout.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.measure import Comparison, Report, Spread
from dpsr_apex.config_files import load_config
from dpsr_apex.processes.control import address_of
from dpsr_apex.processes.statistics import ask_stats
from dpsr_apex.record.run_directory import RunDirectory
from dpsr_apex.roles.memory import estimate_memory
from dpsr_apex.usability import ensure_usable
from dpsr_apex.wire.messages import StatsRequest

GAMES = {"Breakout": "atari/breakout", "CartPole": "cartpole"}  # configs
CAPACITY, STEPS, UPDATES = 5_000, 6_000, 100
ACCURACY = 0.9  # the smaller of prediction and measurement divided by the larger one, at least
OVERRIDES = (
    f"replay.capacity={CAPACITY}",
    f"learner.learning_starts={CAPACITY}",
    "learner.device=cpu",
    "system.actors=1",
    "run.total_steps=10000000",
    "run.checkpoint_period=0",
    "evaluation.period=0",
)


def resident_memory(pid: int) -> int:
    """Return the resident memory of a process in bytes."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize()


def processes_of(supervisor: int) -> Iterator[tuple[str, int]]:
    """Yield the role and the process id of each process of a run, except the supervisor and its template."""
    for child in Path(f"/proc/{supervisor}/task/{supervisor}/children").read_text().split():
        command = Path(f"/proc/{child}/cmdline").read_text().split("\0")
        if "dpsr_apex.cli" in command:
            yield command[command.index("dpsr_apex.cli") + 1], int(child)


def prediction(process: str, measured: float, predicted: float) -> Comparison:
    """Return the comparison of a prediction, in bytes, with what was measured."""
    mebi = 2**20
    ours, other = (Spread(*[number / mebi] * 3) for number in (measured, predicted))
    accuracy = min(measured / predicted, predicted / measured)
    work, baseline = f"resident memory of {process}", "the prediction before the start (accuracy)"
    return Comparison(work, baseline, "MiB", ours, other, Spread(*[accuracy] * 3), ACCURACY)


def measure(config: str) -> dict[str, int]:
    """Train for a while, and return the resident memory of the process of each role."""
    with tempfile.TemporaryDirectory() as folder:
        run = RunDirectory(Path(folder) / "run")
        sets = [f"--set={override}" for override in OVERRIDES]
        command = [sys.executable, "-m", "dpsr_apex.cli", "train", config, "--run-dir", str(run.path), *sets]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        try:
            while not run.connection.exists() or not _is_steady(run):
                assert process.poll() is None, "the training has ended"
                time.sleep(0.5)
            return {role: resident_memory(child) for role, child in processes_of(process.pid)}
        finally:
            process.terminate()
            process.wait()


def _is_steady(run: RunDirectory) -> bool:
    stats = ask_stats(address_of(run), StatsRequest(), 30.0)
    return stats.t >= STEPS and stats.rate.batches >= UPDATES


def compare_processes(report: Report) -> None:
    """Compare the memory of each process with its prediction."""
    for game, name in GAMES.items():
        config = load_config(name, overrides=OVERRIDES)
        needed = estimate_memory(config, ensure_usable(config).sizes)
        found = measure(name)
        predicted = {"replay": needed.replay_process, "learner": needed.learner, "actor": needed.actor}
        for role, size in predicted.items():
            report.compare(prediction(f"the {role} process, {game}, N = {CAPACITY:,}", found[role], size))
