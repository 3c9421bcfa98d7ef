"""`dpsr-apex eval`: play episodes with a run's newest weights, print the scores and record a video."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dpsr_apex.config import Config
from dpsr_apex.config_files import load_config
from dpsr_apex.inspection.rendering import frames_per_second, render_rgb
from dpsr_apex.inspection.video import VideoError, VideoWriter
from dpsr_apex.live.console import make_console, make_progress
from dpsr_apex.record.choice import read_checkpoint
from dpsr_apex.record.run_directory import RunDirectory
from dpsr_apex.roles.build import build_env, load_agent
from dpsr_apex.roles.evaluator import evaluate

Show = Callable[[NDArray[np.uint8]], None]


def evaluate_run(path: Path, episodes: int, video: Path | None) -> int:
    """Play `episodes` episodes, print the scores, and record a video if a path is given; return the exit code."""
    run = RunDirectory.open(path)
    config = load_config(run.config)
    _, found = read_checkpoint(run)
    env = build_env(config, 0, training=False)
    env.close()
    agent = load_agent(config, env, found.parts["learner"])
    console = make_console()
    with (
        make_progress(console) as progress,
        _recorder(config, video) as show,
    ):
        task = progress.add_task(f"{config.env.name}, t = {found.t:,}", total=episodes)
        row = evaluate(
            config, agent, found.t, episodes, show=show, after_episode=lambda _score: progress.advance(task)
        ).row()
    console.print(f"{config.env.name}, weights of t = {found.t:,}, {row['games']} episodes")
    console.print(f"scores {' '.join(f'{score:g}' for score in row['scores'])}", soft_wrap=True)
    console.print(f"mean {row['mean']:.2f}   median {row['median']:.2f}")
    if video:
        console.print(f"video {video}", soft_wrap=True)
    return 0


@contextmanager
def _recorder(config: Config, path: Path | None) -> Iterator[Show | None]:
    """Yield a function that adds a frame to the video; None without a path."""
    if path is None:
        yield None
        return
    env = build_env(config, 0, training=False)
    picture = render_rgb(env)
    env.close()
    if picture is None:
        raise VideoError(
            f"{path}: {config.env.name} has no pictures to record. Give it a render() that returns RGB arrays"
        )
    with VideoWriter(path, frames_per_second(env), picture.shape[:2]) as writer:
        yield writer.write
