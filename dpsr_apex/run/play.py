"""Playing whole games with what a run has learnt, for a person to see: scores and a video."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dpsr_apex.config import Config
from dpsr_apex.config_files import load_config
from dpsr_apex.console import make_console, make_progress
from dpsr_apex.roles.build import build_env
from dpsr_apex.roles.evaluator import evaluate
from dpsr_apex.run.choice import read_checkpoint
from dpsr_apex.run.policy import learnt_agent
from dpsr_apex.run.run_directory import RunDirectory
from dpsr_apex.run.screen import frames_per_second, rendered
from dpsr_apex.run.video import VideoError, VideoWriter

Show = Callable[[NDArray[np.uint8]], None]


def evaluate_run(path: Path, episodes: int, video: Path | None) -> int:
    """Play whole games with a run's newest weights and print the scores."""
    run = RunDirectory.open(path)
    config = load_config(run.config)
    _, found = read_checkpoint(run)
    env = build_env(config, 0, training=False)
    env.close()
    agent = learnt_agent(config, env, found)
    console = make_console()
    with (
        make_progress(console) as progress,
        _recorder(config, video) as show,
    ):
        task = progress.add_task(f"{config.env.name}, t = {found.t:,}", total=episodes)
        row = evaluate(
            config, agent, found.t, episodes, show=show, after_game=lambda _score: progress.advance(task)
        ).row()
    console.print(f"{config.env.name}, weights of t = {found.t:,}, {row['games']} games")
    console.print(f"scores {' '.join(f'{score:g}' for score in row['scores'])}", soft_wrap=True)
    console.print(f"mean {row['mean']:.2f}   median {row['median']:.2f}")
    if video:
        console.print(f"video {video}", soft_wrap=True)
    return 0


@contextmanager
def _recorder(config: Config, path: Path | None) -> Iterator[Show | None]:
    """What takes every picture of the games that go into the video; None when there is to be none."""
    if path is None:
        yield None
        return
    env = build_env(config, 0, training=False)
    picture = rendered(env)
    env.close()
    if picture is None:
        raise VideoError(f"{path}: {config.env.name} shows no pictures; give it render() with RGB arrays")
    with VideoWriter(path, frames_per_second(env), picture.shape[:2]) as writer:
        yield writer.write
