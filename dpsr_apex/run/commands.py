"""What each command does, from checked input to exit code; `dpsr_apex.cli` reads the command line."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import Progress

from dpsr_apex.agent.dqn import DqnAgent
from dpsr_apex.config import Config, ConfigError, settings, validate
from dpsr_apex.config_files import dump_config, load_config
from dpsr_apex.envs.check import ensure_reentrant
from dpsr_apex.envs.snapshot import UnusableEnvironment
from dpsr_apex.roles.build import build_agent, build_env
from dpsr_apex.roles.evaluator import evaluate
from dpsr_apex.run.checkpoint import Checkpoint, load_checkpoint, newest_checkpoint
from dpsr_apex.run.interrupt import Interrupt
from dpsr_apex.run.live import LiveView
from dpsr_apex.run.run_directory import RunDirectory, RunDirectoryError
from dpsr_apex.run.training import Training
from dpsr_apex.run.video import VideoError, VideoWriter

Show = Callable[[NDArray[np.uint8]], None]

FULL_RUN = 1_000_000  # transitions, the paper's T


def train(config: Config, path: Path) -> int:
    """Start a new run in a new run directory."""
    ensure_usable(config)
    run = RunDirectory.create(path)
    run.config.write_text(dump_config(config))
    return _run(config, run, None)


def resume(path: Path, total_steps: int | None = None, checkpoint: Path | None = None) -> int:
    """Continue a run from its newest checkpoint, or from the one given; `total_steps` can make it longer."""
    run = RunDirectory.open(path)
    config = load_config(run.config)
    found = _checkpoint(run, checkpoint)
    if total_steps is not None and total_steps != config.run.total_steps:
        if total_steps <= found.t:
            raise ConfigError(f"run.total_steps = {total_steps}: the run is at t = {found.t} already; name more steps")
        config = replace(config, run=replace(config.run, total_steps=total_steps))
        validate(config)
        run.config.write_text(dump_config(config))
    return _run(config, run, found)


def continue_or_train(config: Config, path: Path) -> int:
    """`train --resume`: continue the run that is there if it is the same one, else start it."""
    if not path.exists() or not any(path.iterdir()):
        return train(config, path)
    there = settings(load_config(RunDirectory.open(path).config))
    differing = [f"{key} = {there[key]!r}" for key, value in settings(config).items() if there[key] != value]
    if differing:
        raise ConfigError(f"{path} holds another run, with {', '.join(differing)}; use `dpsr-apex resume {path}`")
    return resume(path)


def evaluate_run(path: Path, episodes: int, video: Path | None) -> int:
    """Play whole games with a run's newest weights and print the scores."""
    run = RunDirectory.open(path)
    config = load_config(run.config)
    found = _checkpoint(run, None)
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


def ensure_usable(config: Config) -> None:
    """Refuse, before anything is written, an environment that the run could not use."""
    env = build_env(config, 0, training=True)
    env.close()
    if not config.replay.recycles:
        return
    if env.actions < 2:
        remedy = "Choose a method without recycling, such as replay.method = 'double'."
        raise UnusableEnvironment(config.env.name, "it has one action, so no other can be tried", remedy)
    ensure_reentrant(config.env.name, config.env.arguments, config.env.stack)


def _run(config: Config, run: RunDirectory, checkpoint: Checkpoint | None) -> int:
    title = f"{config.env.name} · {config.replay.method} · seed {config.run.seed} · {run.path}"
    with (
        run.log_to("solo"),
        Interrupt() as interrupt,
        LiveView(config.run.total_steps, title=title) as view,
    ):
        training = Training(config, run, view, checkpoint)
        view.note(f"{'Continuing' if checkpoint else 'Starting'} in {run.path} at t = {training.solo.t:,}")
        training.run(interrupt)
        view.note(f"curve {run.curve}")
        if training.finished:
            more = max(FULL_RUN, 2 * config.run.total_steps)
            view.note(f"Finished. To go on to {more:,} steps: dpsr-apex resume {run.path} --steps {more}")
            return 0
        view.note(f"Stopped at t = {training.solo.t:,}. To go on: dpsr-apex resume {run.path}")
        return interrupt.exit_code


def _checkpoint(run: RunDirectory, chosen: Path | None) -> Checkpoint:
    found = load_checkpoint(chosen) if chosen else newest_checkpoint(run.checkpoints)
    if found is None:
        raise RunDirectoryError(f"{run.path} has no checkpoint yet: start it again with its config {run.config}")
    return found


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
    env = build_env(config, 0, training=False)
    try:
        picture = env.render()
    finally:
        env.close()
    if picture is None:
        raise VideoError(f"{path}: {config.env.name} shows no pictures; give it render() with RGB arrays")
    fps = float(getattr(env.env, "metadata", {}).get("render_fps", 30))
    with VideoWriter(path, fps, picture.shape[:2]) as writer:
        yield writer.write
