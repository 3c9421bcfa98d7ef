"""Play episodes with a run's newest weights, for scores and videos: `dpsr-apex eval`, and the end of a run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from dpsr_apex.config import Config
from dpsr_apex.config_files import load_config
from dpsr_apex.inspection.rendering import frames_per_second, render_rgb
from dpsr_apex.inspection.video import VideoError, VideoWriter
from dpsr_apex.live.console import make_console, make_progress
from dpsr_apex.record.choice import read_checkpoint
from dpsr_apex.record.run_directory import RunDirectory
from dpsr_apex.roles.build import build_env, load_agent
from dpsr_apex.roles.evaluator import Evaluation, evaluate

Show = Callable[[NDArray[np.uint8]], None]

VIDEO_STEPS = 600  # agent steps: 40 seconds of an Atari game


def evaluate_run(path: Path, episodes: int, video: Path | None) -> int:
    """Play `episodes` episodes, print the scores, and record a video if a path is given; return the exit code."""
    config = load_config(RunDirectory.open(path).config)
    console = make_console()
    row = _play(path, config, episodes, video, console).row()
    console.print(f"{config.env.name}, weights of t = {row['t']:,}, {row['games']} episodes")
    console.print(f"scores {' '.join(f'{score:g}' for score in row['scores'])}", soft_wrap=True)
    console.print(f"mean {row['mean']:.2f}   median {row['median']:.2f}")
    if video:
        console.print(f"video {video}", soft_wrap=True)
    return 0


def record_video(path: Path) -> None:
    """Record the beginning of a run's last evaluation; if that is impossible, print why."""
    run = RunDirectory.open(path)
    config = load_config(run.config)
    steps = min(config.evaluation.max_steps, VIDEO_STEPS)
    console = make_console()
    try:
        _play(path, replace(config, evaluation=replace(config.evaluation, max_steps=steps)), 1, run.video, console)
    except (VideoError, OSError) as error:
        console.print(f"No video: {error}", soft_wrap=True)
    else:
        console.print(f"Video of the trained agent: {run.video}", soft_wrap=True)


def _play(path: Path, config: Config, episodes: int, video: Path | None, console: Console) -> Evaluation:
    """Play episodes with the newest weights, and show the progress."""
    _, found = read_checkpoint(RunDirectory.open(path))
    env = build_env(config, 0, training=False)
    env.close()
    agent = load_agent(config, env, found.parts["learner"])
    with (
        make_progress(console) as progress,
        _recorder(config, video) as show,
    ):
        task = progress.add_task(f"{config.env.name}, t = {found.t:,}", total=episodes)
        return evaluate(
            config, agent, found.t, episodes, show=show, after_episode=lambda _score: progress.advance(task)
        )


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
