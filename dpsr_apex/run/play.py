"""Playing whole games with what a run has learnt, for a person to see: scores and a video."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import Progress

from dpsr_apex.agent.dqn import DqnAgent
from dpsr_apex.config import Config
from dpsr_apex.config_files import load_config
from dpsr_apex.roles.build import build_agent, build_env
from dpsr_apex.roles.evaluator import evaluate
from dpsr_apex.run.checkpoint import Checkpoint
from dpsr_apex.run.commands import chosen_checkpoint
from dpsr_apex.run.run_directory import RunDirectory
from dpsr_apex.run.video import VideoError, VideoWriter

Show = Callable[[NDArray[np.uint8]], None]


def evaluate_run(path: Path, episodes: int, video: Path | None) -> int:
    """Play whole games with a run's newest weights and print the scores."""
    run = RunDirectory.open(path)
    config = load_config(run.config)
    found = chosen_checkpoint(run, None)
    agent = _agent_of(config, found)
    console = Console()
    with (
        Progress(console=console, transient=True, disable=not console.is_terminal) as progress,
        _recorder(config, video) as show,
    ):
        task = progress.add_task(f"{config.env.name}, t = {found.t:,}", total=episodes)
        row = evaluate(
            config, agent, found.t, episodes, show=show, after_game=lambda _score: progress.advance(task)
        ).row()
    console.print(f"{config.env.name}, weights of t = {found.t:,}, {row['games']} games", highlight=False)
    console.print(f"scores {' '.join(f'{score:g}' for score in row['scores'])}", highlight=False, soft_wrap=True)
    console.print(f"mean {row['mean']:.2f}   median {row['median']:.2f}", highlight=False)
    if video:
        console.print(f"video {video}", highlight=False, soft_wrap=True)
    return 0


def _agent_of(config: Config, checkpoint: Checkpoint) -> DqnAgent:
    env = build_env(config, 0, training=False)
    env.close()
    agent = build_agent(config, env, 0)
    agent.load(checkpoint.parts["learner"].arrays)
    return agent


@contextmanager
def _recorder(config: Config, path: Path | None) -> Iterator[Show | None]:
    """What takes every picture of the games that go into the video; None when there is to be none."""
    if path is None:
        yield None
        return
    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")  # no window is opened; without it SDL complains of no display
    env = build_env(config, 0, training=False)
    try:
        picture = env.render()
    except (AttributeError, NotImplementedError):  # an environment of the user's that cannot draw itself
        picture = None
    finally:
        env.close()
    if not isinstance(picture, np.ndarray):
        raise VideoError(f"{path}: {config.env.name} shows no pictures; give it render() with RGB arrays")
    fps = float(getattr(env.env, "metadata", {}).get("render_fps", 30))
    with VideoWriter(path, fps, picture.shape[:2]) as writer:
        yield writer.write
