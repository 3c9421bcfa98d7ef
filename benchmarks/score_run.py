"""One run of ours until a score: `python -m benchmarks.score_run TASK SEED`, in a process of its own.

Prints the CPU seconds of the training, the steps, the last score and whether the score was reached.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np

from dpsr_apex.config import Config
from dpsr_apex.config_files import load_config
from dpsr_apex.roles.evaluator import evaluate
from dpsr_apex.solo.algorithm import Solo

EPISODES = 20  # of an evaluation, greedy


class Task(NamedTuple):
    """An environment, and the score at which its training ends."""

    env: str
    base: str
    score: float  # mean of an evaluation
    steps: int  # at most
    check: int  # steps between two evaluations


TASKS = {
    "cartpole": Task("CartPole-v1", "classic", 475.0, 100_000, 1_000),
    "lunarlander": Task("LunarLander-v3", "classic", 200.0, 300_000, 5_000),
    "minatar-breakout": Task("MinAtar/Breakout", "modern", 5.0, 300_000, 10_000),
    "minatar-spaceinvaders": Task("MinAtar/SpaceInvaders", "modern", 20.0, 300_000, 10_000),
}


def config_of(task: Task, seed: int) -> Config:
    """Return the base of the task with its environment; nothing else is changed."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "task.toml"
        path.write_text(f'base = "{task.base}"\n\n[env]\nname = "{task.env}"\n')
        overrides = (f"run.seed={seed}", "run.threads=1", f"evaluation.episodes={EPISODES}")
        return load_config(path, overrides=overrides)


def train(task: Task, seed: int) -> tuple[float, int, float, bool]:
    """Train until the score is reached; return CPU seconds without evaluations, steps, last score, whether reached."""
    config = config_of(task, seed)
    solo = Solo(config)
    solo.replay.total_steps = max(config.run.total_steps, task.steps)
    began, evaluating, score, due = time.process_time(), 0.0, -np.inf, task.check
    while solo.t < task.steps:
        solo.step()
        if solo.t < due:
            continue
        due += task.check
        paused = time.process_time()
        score = float(np.mean(evaluate(config, solo.agent, solo.t).scores))
        evaluating += time.process_time() - paused
        if score >= task.score:
            break
    seconds = time.process_time() - began - evaluating
    solo.close()
    return seconds, solo.t, score, score >= task.score


def main() -> None:
    print(*train(TASKS[sys.argv[1]], int(sys.argv[2])), flush=True)


if __name__ == "__main__":
    main()
