"""The real replay process of a small run, and recorded transitions of Breakout for its clients."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks.measure import BREAKOUT
from benchmarks.replay_clients import save_chunks
from dpsr_apex.config import Config
from dpsr_apex.config_files import load_config
from dpsr_apex.record.run_directory import RunDirectory, write_config
from dpsr_apex.replay.transitions import Transitions, concatenate
from dpsr_apex.roles.actor import Actor
from dpsr_apex.roles.build import build_agent, build_env
from dpsr_apex.wire.messages import Chunk

CHUNKS = 40  # recorded, and sent repeatedly


def configure(capacity: int, batch_size: int) -> Config:
    overrides = (
        *("env.name=Breakout", "replay.method=double", f"replay.capacity={capacity}", "replay.replace_candidates=256"),
        *("actor.exploration=1.0", f"learner.batch_size={batch_size}", "learner.learning_starts=1000"),
        *("learner.steps_per_update=0", "run.total_steps=1000000000", "run.log_period=100000", "system.actors=4"),
        *("run.checkpoint_period=0", "run.threads=1"),  # with the journal, as by default
    )
    return load_config(BREAKOUT, overrides=overrides)


class Recorded(NamedTuple):
    """Recorded steps in the formats of both systems."""

    chunks: list[Chunk]
    arrays: dict[str, NDArray[Any]]  # frames, actions, rewards, ends, priorities


def record(config: Config) -> Recorded:
    """Record transitions of random play in Breakout, with synthetic lognormal |TD errors|."""
    env = build_env(config, seed=0, training=True)
    actor = Actor(config, build_agent(config, env, seed=0), [env], None, np.random.default_rng(0))
    size = config.system.chunk
    rows: deque[Transitions] = deque()
    while len(rows) < CHUNKS * size:
        if collected := actor.step():
            rows.append(collected.transitions)
    played = concatenate(rows)
    errors = np.random.default_rng(0).lognormal(-3.0, 2.0, len(played))
    empty = np.zeros(0)
    chunks = [
        Chunk(0, played.rows(i, i + size), errors[i : i + size], empty, empty.astype(np.int64), 0.0)
        for i in range(0, len(played), size)
    ]
    arrays = {
        "frames": env.codec.decompress_stacks([stack[-1:] for stack in played.s_t])[:, 0],
        "actions": played.a_tm1,
        "rewards": played.r_t,
        "ends": played.terminal,
        "priorities": errors,
    }
    return Recorded(chunks, arrays)


class ReplayHead(NamedTuple):
    """A replay process without clients."""

    run: RunDirectory
    pid: int
    chunks: Path  # the recorded chunks, for writers


@contextmanager
def replay_process(config: Config, recorded: Recorded, module: str = "dpsr_apex.cli") -> Iterator[ReplayHead]:
    """Run the replay process of a new run inside the block; `module` is executed as the `dpsr-apex` command."""
    with tempfile.TemporaryDirectory() as folder:
        run = RunDirectory.create(Path(folder) / "run")
        write_config(config, run)
        chunks = Path(folder) / "chunks"
        save_chunks(recorded.chunks, chunks)
        command = [sys.executable, "-m", module, "replay", "--run-dir", str(run.path)]
        with (run.logs / "replay.log").open("wb") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log)
            try:
                while not run.connection.exists():
                    assert process.poll() is None, (run.logs / "replay.log").read_text()
                    time.sleep(0.05)
                yield ReplayHead(run, process.pid, chunks)
            finally:
                process.kill()
                process.wait()
