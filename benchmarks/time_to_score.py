"""CPU time until a score: ours, stable-baselines3's DQN and sb3-contrib's QR-DQN. Run with `make bench-score`.

Each run is a process with one thread, and ends when the mean of 20 greedy episodes reaches the score. Counted is the
CPU time of the training without imports and evaluations, which are the same for all. Ours uses DPSR with a shipped base,
for vectors `classic` and for MinAtar `modern`, with the changes in `score_run.py`; the peers' settings are in
`peers/score.py`. A run that does not reach the score counts with all of its time, so a ratio to it is too small; how
many reached it is in the results.

It takes hours, so it is no part of `make bench`. Finished runs are kept in a file, so that the same command continues
after an interruption; runs of another machine are repeated, because CPU times of two machines cannot be compared.
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

    def outcome(self, name: str, program: str, seed: int, command: list[str]) -> Trained:
        """Return the outcome of a run, which is made if it has not finished before."""
        run = (self._machine, name, program, seed)
        if run not in self._outcomes:
            self._outcomes[run] = found = trained_by(command)
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"run": run, "outcome": found._asdict()}) + "\n")
        print(f"{name}, seed {seed}, {program}: {self._outcomes[run]}", flush=True)
        return self._outcomes[run]


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


def compare(report: Report, finished: Finished, name: str, task: Task, seeds: int) -> None:
    """Compare all programs on one task; they run one after the other, seed by seed."""
    rounds = [
        {
            program: finished.outcome(name, program, seed, command)
            for program, command in commands(name, task, seed).items()
        }
        for seed in range(seeds)
    ]
    for label in PEERS.values():
        reached = " and ".join(
            f"{sum(found[who].reached for found in rounds)} of {seeds} by {who}" for who in ("ours", label)
        )
        report.compare(
            Comparison(
                work=f"CPU time to a mean of {task.score:g} in {task.env} (base {task.base}, tuned; {seeds} seeds)",
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
        compare(report, finished, name, TASKS[name], arguments.seeds)
    return report.finish(arguments.json)


if __name__ == "__main__":
    sys.exit(main())
