"""CPU time until a score: ours, stable-baselines3's DQN and sb3-contrib's QR-DQN. Run with `make bench-score`.

Each run is a process with one thread, and ends when the mean of 20 greedy episodes reaches the score. Counted is the
CPU time of the training without imports and evaluations, which are the same for all. Ours uses DPSR with a shipped
base, for vectors `classic` and for MinAtar `modern`, with the changes in `score_run.py`; the peers' settings are in
`peers/score.py`. A run that does not reach the score counts with all of its time, so a ratio to it is too small; how
many reached it is in the results.

It takes hours, so it is no part of `make bench`. Finished runs are kept in a file, so that the same command continues
after an interruption; runs of another kind of machine are repeated, because their CPU times cannot be compared. Those
that are published are in docs/bench/time_to_score.jsonl.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from benchmarks.measure import Comparison, Report, spread
from benchmarks.peers import FOLDER, SCORE
from benchmarks.score_run import EPISODES, TASKS, Task
from dpsr_apex.machine import cpu_model

PEERS = {"dqn": "stable-baselines3 DQN", "qrdqn": "sb3-contrib QR-DQN"}
GOAL = 2.0


class Trained(NamedTuple):
    """The outcome of one run."""

    cpu: float  # seconds
    steps: int
    score: float
    reached: bool


class Finished:
    """The outcomes of all finished runs on this machine, kept in a file of JSON lines."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._machine = cpu_model()
        rows = map(json.loads, path.read_text(encoding="utf-8").splitlines()) if path.exists() else ()
        self._outcomes = {tuple(row["run"]): Trained(**row["outcome"]) for row in rows}

    def train(self, name: str, program: str, seed: int, command: list[str]) -> None:
        """Make a run that has not finished before."""
        run = (self._machine, name, program, seed)
        if run not in self._outcomes:
            self._outcomes[run] = found = trained_by(command)
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"run": run, "outcome": found._asdict()}) + "\n")
        print(f"{name}, seed {seed}, {program}: {self._outcomes[run]}", flush=True)

    def by_seed(self, name: str, program: str) -> dict[int, Trained]:
        """Return the outcomes of one program on one task."""
        return {run[-1]: found for run, found in self._outcomes.items() if run[:-1] == (self._machine, name, program)}


def trained_by(command: list[str]) -> Trained:
    """Run a program and return the outcome that it prints last."""
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    cpu, steps, score, reached = done.stdout.splitlines()[-1].split()
    return Trained(float(cpu), int(steps), float(score), reached == "True")


def commands(name: str, task: Task, seed: int) -> Mapping[str, list[str]]:
    """Return the command of each program."""
    numbers = [task.score, task.steps, task.check, EPISODES, seed]
    peers = {
        label: [str(SCORE), "-P", str(FOLDER / "score.py"), algorithm, task.env, *map(str, numbers)]
        for algorithm, label in PEERS.items()
    }
    return {"ours": [sys.executable, "-m", "benchmarks.score_run", name, str(seed)]} | peers


def train(finished: Finished, name: str, seeds: int) -> None:
    """Make all runs of one task that have not finished before, one after the other, seed by seed."""
    for seed in range(seeds):
        for program, command in commands(name, TASKS[name], seed).items():
            finished.train(name, program, seed, command)


def compare(report: Report, finished: Finished, name: str) -> None:
    """Compare all programs on one task, each peer with ours for the seeds that have finished with both."""
    task, ours = TASKS[name], finished.by_seed(name, "ours")
    report.figures[name] = {}
    for label in PEERS.values():
        theirs = finished.by_seed(name, label)
        seeds = sorted(ours.keys() & theirs.keys())
        if not seeds:
            continue
        outcomes = {"ours": [ours[seed] for seed in seeds], label: [theirs[seed] for seed in seeds]}
        report.figures[name][label] = {who: [one._asdict() for one in found] for who, found in outcomes.items()}
        reached = [f"{sum(one.reached for one in found)} of {len(found)}" for found in outcomes.values()]
        median = spread([one.cpu for one in outcomes[label]]).median
        report.compare(
            Comparison(
                work=f"CPU time to a mean of {task.score:g} in {task.env} (base {task.base}, tuned)",
                baseline=f"{label} (reached in {reached[0]} runs of ours, in {reached[1]} of theirs)",
                unit="CPU s",
                ours=spread([one.cpu for one in outcomes["ours"]]),
                peer=spread([one.cpu for one in outcomes[label]]),
                # Seeds are not paired: each of ours is compared with the median of theirs.
                ratio=spread([median / one.cpu for one in outcomes["ours"]]),
                goal=GOAL,
            )
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--task", choices=TASKS, action="append", help="(default: all)")
    parser.add_argument("--seeds", type=int, default=5, help="(default: %(default)s)")
    parser.add_argument("--report", action="store_true", help="make no runs: compare those that have finished")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the results to this file")
    parser.add_argument(
        "--finished",
        type=Path,
        default=Path("runs/bench/time_to_score.jsonl"),
        metavar="FILE",
        help="where finished runs are kept; remove it after a change of settings (default: %(default)s)",
    )
    arguments = parser.parse_args()
    report = Report("time_to_score")
    finished = Finished(arguments.finished)
    for name in arguments.task or TASKS:
        if not arguments.report:
            train(finished, name, arguments.seeds)
        compare(report, finished, name)
    return report.finish(arguments.json)


if __name__ == "__main__":
    sys.exit(main())
