"""Play episodes with a run's weights, for scores and videos: `dpsr-apex eval`, and the end of a run."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import cycle
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from safetensors import SafetensorError
from safetensors.numpy import load_file

from dpsr_apex.config import Config
from dpsr_apex.config_files import load_config
from dpsr_apex.files import append_row, ensure_usable, read_rows, to_json
from dpsr_apex.formatting import counted
from dpsr_apex.inspection.rendering import frames_per_second, render_rgb
from dpsr_apex.inspection.video import VideoError, VideoWriter
from dpsr_apex.live.console import make_console, make_progress
from dpsr_apex.record.choice import read_checkpoint
from dpsr_apex.record.moments import Moments, read_moments
from dpsr_apex.record.run_directory import RunDirectory, RunDirectoryError
from dpsr_apex.replay.transitions import Transitions
from dpsr_apex.roles.build import build_agent, build_env, networks_of
from dpsr_apex.roles.evaluator import Evaluation, evaluate
from dpsr_apex.roles.starts import NO_STARTS, ensure_startable

Show = Callable[[NDArray[np.uint8]], None]

VIDEO_STEPS = 600  # agent steps: 40 seconds of an Atari game


class Wanted(NamedTuple):
    """What to play, and how to show it."""

    episodes: int | None  # None: one from each of the moments in `starts`
    weights: str | None = None  # "best", "last" or a safetensors file; None for the newest checkpoint
    seed: int | None = None  # None for the run's own
    video: Path | None = None
    log: Path | None = None  # one row per episode
    as_json: bool = False
    starts: Path | None = None  # file of moments at which episodes begin, one after the other


class Weights(NamedTuple):
    """Weights of the online network, the clock t of their update, and their origin."""

    arrays: dict[str, NDArray[Any]]
    t: int | None  # None if only a file is known
    origin: str


def evaluate_run(path: Path, wanted: Wanted) -> int:
    """Play episodes with a run's weights and print the scores; return the exit code."""
    for file, suffix in ((wanted.log, ""), (wanted.video, ".mp4")):
        if file:
            ensure_usable(file, suffix)
    run = RunDirectory.open(path)
    config = load_config(run.config)
    if wanted.seed is not None:
        config = replace(config, run=replace(config.run, seed=wanted.seed))
    console = make_console()
    weights = _weights(run, wanted.weights)
    if wanted.starts:  # as in a run that begins episodes there, so that the environment is restorable
        config = replace(config, actor=replace(config.actor, start_from=str(wanted.starts)))
    moments = _moments(config, wanted.starts) if wanted.starts else None
    episodes = wanted.episodes or len(moments.facts if moments else ())
    shown = Console(stderr=True) if wanted.as_json else console
    played = _play(config, weights, episodes, wanted.video, shown, moments.transitions if moments else NO_STARTS)
    row = played.row() | {"t": weights.t}
    for episode, (score, steps) in enumerate(zip(played.scores, played.steps, strict=True)):
        if wanted.log:
            append_row(wanted.log, {"t": row["t"], "episode": episode, "score": score, "steps": steps})
    if wanted.as_json:
        about: dict[str, Any] = {"environment": config.env.name, "weights": weights.origin, "seed": config.run.seed}
        about |= {"moments": [fact._asdict() for fact in moments.facts]} if moments else {}
        sys.stdout.write(json.dumps(about | to_json(row)) + "\n")
    else:
        _print_scores(console, config, weights, moments, played)
    if wanted.video:
        shown.print(f"Video: {wanted.video}", soft_wrap=True)
    return 0


def _print_scores(
    console: Console, config: Config, weights: Weights, moments: Moments | None, played: Evaluation
) -> None:
    row = played.row()
    source = weights.origin if weights.t is None else f"t = {weights.t:,}"
    console.print(f"{config.env.name}, weights of {source}, {counted(row['games'], 'episode')}", soft_wrap=True)
    for line in _moment_lines(moments, played) if moments else ():
        console.print(line, soft_wrap=True, markup=False, highlight=False)
    console.print(f"scores {' '.join(f'{score:g}' for score in row['scores'])}", soft_wrap=True)
    console.print(f"mean {row['mean']:.2f}   median {row['median']:.2f}")


def _weights(run: RunDirectory, name: str | None) -> Weights:
    """Return the named weights of a run; raise RunDirectoryError if there are none."""
    if name is None:
        path, found = read_checkpoint(run)
        return Weights(networks_of(found.parts["learner"])["online"], found.t, str(path))
    own = {"best": run.best_weights, "last": run.last_weights}
    path = own.get(name, Path(name))
    if not path.is_file():
        problem = f"{run.path} has not been evaluated yet" if name in own else "neither best, last nor a file"
        raise RunDirectoryError(f"--weights {name}: {problem}")
    rows = read_rows(run.evaluations)
    t = None
    if name in own and rows:
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


def _moment_lines(moments: Moments, played: Evaluation) -> Iterator[str]:
    """Yield a line for each episode, with the moment at which it began."""
    for fact, score, steps in zip(cycle(moments.facts), played.scores, played.steps, strict=False):
        yield f"from moment {fact.identity}: score {score:+g} in {steps:,} steps   {fact.note}".rstrip()


def _moments(config: Config, path: Path) -> Moments:
    """Return the moments in a file, at which episodes of this environment can begin."""
    moments = read_moments(path)
    env = build_env(config, 0, training=False)
    ensure_startable(env, moments.environment, moments.transitions, str(path))
    env.close()
    return moments


def _play(
    config: Config,
    weights: Weights,
    episodes: int,
    video: Path | None,
    console: Console,
    starts: Transitions = NO_STARTS,
) -> Evaluation:
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
        task = progress.add_task(config.env.name, total=episodes)

        def advance(_score: float) -> None:
            progress.advance(task)

        return evaluate(config, agent, weights.t or 0, episodes, show=show, after_episode=advance, starts=starts)


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
