"""CPU time until a score: ours, stable-baselines3's DQN and sb3-contrib's QR-DQN. Run with `make bench-score`.

Each run is a process with one thread, and ends when the mean of 20 greedy episodes reaches the score. Counted is the
CPU time of the training without imports and evaluations, which are the same for all. Ours uses a shipped base without
changes, for vectors `classic`, for MinAtar `modern`; the peers' settings are in `peers/score.py`. A run that does not
reach the score counts with all of its time, so a ratio to it is too small; how many reached it is in the results.

It takes hours, so it is no part of `make bench`.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from benchmarks.measure import Comparison, Report, spread
from benchmarks.peers import FOLDER, SCORE
from benchmarks.score_run import EPISODES, TASKS, Task

PEERS = {"dqn": "stable-baselines3 DQN", "qrdqn": "sb3-contrib QR-DQN"}
GOAL = 2.0


class Trained(NamedTuple):
    """The outcome of one run."""

    cpu: float  # seconds
    steps: int
    score: float
    reached: bool


def outcome(command: list[str]) -> Trained:
    """Run a program and return the outcome that it prints last."""
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    cpu, steps, score, reached = done.stdout.splitlines()[-1].split()
    return Trained(float(cpu), int(steps), float(score), reached == "True")


def runs_of(name: str, task: Task, seed: int) -> dict[str, Trained]:
    """Train with every program, one after the other."""
    ours = [sys.executable, "-m", "benchmarks.score_run", name, str(seed)]
    numbers = [task.score, task.steps, task.check, EPISODES, seed]
    peers = {
        label: [str(SCORE), "-P", str(FOLDER / "score.py"), algorithm, task.env, *map(str, numbers)]
        for algorithm, label in PEERS.items()
    }
    found = {}
    for label, command in ({"ours": ours} | peers).items():
        found[label] = outcome(command)
        print(f"{name}, seed {seed}, {label}: {found[label]}", flush=True)
    return found


def compare(report: Report, name: str, task: Task, seeds: int) -> None:
    """Compare all programs on one task."""
    rounds = [runs_of(name, task, seed) for seed in range(seeds)]
    for label in PEERS.values():
        reached = " and ".join(
            f"{sum(found[who].reached for found in rounds)} of {seeds} by {who}" for who in ("ours", label)
        )
        report.compare(
            Comparison(
                work=f"CPU time to a mean of {task.score:g} in {task.env} (base {task.base}, {seeds} seeds)",
                baseline=f"{label}; reached: {reached}",
                unit="CPU s",
                ours=spread([found["ours"].cpu for found in rounds]),
                peer=spread([found[label].cpu for found in rounds]),
                # Seeds are not paired: each of ours is compared with the median of theirs.
                ratio=spread(
                    [spread([one[label].cpu for one in rounds]).median / found["ours"].cpu for found in rounds]
                ),
                goal=GOAL,
            )
        )
    outcomes = [{who: found._asdict() for who, found in one.items()} for one in rounds]
    report.figures[name] = {"seeds": outcomes}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--task", choices=TASKS, action="append", help="(default: all)")
    parser.add_argument("--seeds", type=int, default=5, help="(default: %(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the results to this file")
    arguments = parser.parse_args()
    report = Report("time_to_score")
    for name in arguments.task or TASKS:
        compare(report, name, TASKS[name], arguments.seeds)
    return report.finish(arguments.json)


if __name__ == "__main__":
    sys.exit(main())
