"""Play episodes with a run's weights, for scores and videos: `dpsr-apex eval`, and the end of a run."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from safetensors import SafetensorError
from safetensors.numpy import load_file

from dpsr_apex.config import Config
from dpsr_apex.config_files import load_config
from dpsr_apex.files import append_row, read_rows, to_json
from dpsr_apex.inspection.rendering import frames_per_second, render_rgb
from dpsr_apex.inspection.video import VideoError, VideoWriter
from dpsr_apex.live.console import make_console, make_progress
from dpsr_apex.record.choice import read_checkpoint
from dpsr_apex.record.run_directory import RunDirectory, RunDirectoryError
from dpsr_apex.roles.build import build_agent, build_env, networks_of
from dpsr_apex.roles.evaluator import Evaluation, evaluate

Show = Callable[[NDArray[np.uint8]], None]

VIDEO_STEPS = 600  # agent steps: 40 seconds of an Atari game


class Wanted(NamedTuple):
    """What to play, and how to show it."""

    episodes: int
    weights: str | None = None  # "best", "last" or a safetensors file; None for the newest checkpoint
    seed: int | None = None  # None for the run's own
    video: Path | None = None
    log: Path | None = None  # one row per episode
    as_json: bool = False


class Weights(NamedTuple):
    """Weights of the online network, the clock t of their update, and their origin."""

    arrays: dict[str, NDArray[Any]]
    t: int
    origin: str


def evaluate_run(path: Path, wanted: Wanted) -> int:
    """Play episodes with a run's weights and print the scores; return the exit code."""
    run = RunDirectory.open(path)
    config = load_config(run.config)
    if wanted.seed is not None:
        config = replace(config, run=replace(config.run, seed=wanted.seed))
    console = make_console()
    weights = _weights(run, wanted.weights)
    played = _play(config, weights, wanted.episodes, wanted.video, Console(stderr=True) if wanted.as_json else console)
    row = played.row()
    for episode, (score, steps) in enumerate(zip(played.scores, played.steps, strict=True)):
        if wanted.log:
            append_row(wanted.log, {"t": row["t"], "episode": episode, "score": score, "steps": steps})
    if wanted.as_json:
        about = {"environment": config.env.name, "weights": weights.origin, "seed": config.run.seed}
        sys.stdout.write(json.dumps(about | to_json(row)) + "\n")
        return 0
    console.print(f"{config.env.name}, weights of t = {row['t']:,}, {row['games']} episodes")
    console.print(f"scores {' '.join(f'{score:g}' for score in row['scores'])}", soft_wrap=True)
    console.print(f"mean {row['mean']:.2f}   median {row['median']:.2f}")
    if wanted.video:
        console.print(f"video {wanted.video}", soft_wrap=True)
    return 0


def _weights(run: RunDirectory, name: str | None) -> Weights:
    """Return the named weights of a run; raise RunDirectoryError if there are none."""
    if name is None:
        path, found = read_checkpoint(run)
        return Weights(networks_of(found.parts["learner"])["online"], found.t, str(path))
    path = {"best": run.best_weights, "last": run.last_weights}.get(name, Path(name))
    rows = read_rows(run.evaluations)
    t = 0
    if name in ("best", "last") and rows:
        t = (max(rows, key=lambda row: row["mean"]) if name == "best" else rows[-1])["t"]
    try:
        return Weights(load_file(path), t, str(path))
    except (OSError, SafetensorError) as error:
        raise RunDirectoryError(f"--weights {name}: {path} cannot be read: {error}") from error


def record_video(path: Path) -> None:
    """Record the beginning of a run's last evaluation; if that is impossible, print why."""
    run = RunDirectory.open(path)
    config = load_config(run.config)
    steps = min(config.evaluation.max_steps, VIDEO_STEPS)
    console = make_console()
    try:
        shortened = replace(config, evaluation=replace(config.evaluation, max_steps=steps))
        _play(shortened, _weights(run, None), 1, run.video, console)
    except (VideoError, OSError) as error:
        console.print(f"No video: {error}", soft_wrap=True)
    else:
        console.print(f"Video of the trained agent: {run.video}", soft_wrap=True)


def _play(config: Config, weights: Weights, episodes: int, video: Path | None, console: Console) -> Evaluation:
    """Play episodes with these weights, and show the progress."""
    env = build_env(config, 0, training=False)
    env.close()
    agent = build_agent(config, env, 0)
    try:
        agent.load_weights("online", weights.arrays)
    except ValueError as error:
        raise RunDirectoryError(f"{weights.origin} does not fit the network of this run: {error}") from error
    with (
        make_progress(console) as progress,
        _recorder(config, video) as show,
    ):
        task = progress.add_task(f"{config.env.name}, t = {weights.t:,}", total=episodes)
        return evaluate(
            config, agent, weights.t, episodes, show=show, after_episode=lambda _score: progress.advance(task)
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
