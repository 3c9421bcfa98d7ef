"""Restore the state of a stored transition, verify it, and continue from there with a trained policy.

The run is only read: nothing here is inserted into a replay or used for training.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from dpsr_apex.agent.protocol import Agent
from dpsr_apex.config import Config
from dpsr_apex.config_files import load_config
from dpsr_apex.envs.compression import DamagedSnapshot
from dpsr_apex.envs.stacked import StackedEnv
from dpsr_apex.files import ensure_usable
from dpsr_apex.formatting import number, pasteable, signed
from dpsr_apex.inspection import InspectionError
from dpsr_apex.inspection.opening import OpenedRun, open_run
from dpsr_apex.inspection.play_video import PlayVideo, record_play
from dpsr_apex.inspection.stored import StoredTransition, action_name, find_transition
from dpsr_apex.inspection.verify import Verification, verify_transition
from dpsr_apex.live.console import make_console
from dpsr_apex.record.choice import read_checkpoint
from dpsr_apex.record.run_directory import RunDirectory
from dpsr_apex.roles.build import EVALUATION, build_env, load_agent, one_thread, seeds


class Policy(NamedTuple):
    """The agent that plays, and a description of it."""

    agent: Agent
    name: str


class Played(NamedTuple):
    """Outcome of continuing from a restored state."""

    steps: int
    score: float  # sum of unclipped rewards
    lives_lost: int  # lost lives after which the game continued
    ended: str  # "game over", "time limit", or "" if the number of steps was reached first


def play_from_transition(
    path: Path, identity: int, steps: int, video: Path | None, policy: Path | None, checkpoint: Path | None
) -> int:
    """Restore a stored transition's state, verify it, and continue for at most `steps` steps.

    Return the exit code: 1 if repeating the stored action does not reproduce the stored outcome.
    """
    if video:
        ensure_usable(video, ".mp4")
    opened = open_run(path, checkpoint)
    transition = find_restorable(opened, identity)
    env = build_env(opened.config, seed_of(opened.config, identity), training=False)
    try:
        player = _policy(opened, env, policy)
        verification = _verify(opened.config, transition)
        with record_play(video, env) as recording:
            env.restore(transition.snapshot, transition.s_tm1)
            q_values = player.agent.q_values(env.frames[np.newaxis])[0]
            _print_transition(opened, transition, env, verification, q_values, player)
            if recording:
                recording.show_stored(env.frames, _facts(transition, env, q_values))
            played = play_on(env, player.agent, opened.config, steps, seed_of(opened.config, identity, 1), recording)
    finally:
        env.close()
    _print_played(played, video)
    return 1 if verification.differs else 0


def play_on(
    env: StackedEnv, agent: Agent, config: Config, steps: int, seed: int, recording: PlayVideo | None = None
) -> Played:
    """Play at most `steps` steps with the evaluation's epsilon; only the end of the game stops it, not a lost life."""
    rng = np.random.default_rng(seed)
    score, lives_lost = 0.0, 0
    for played in range(1, steps + 1):
        random_action = int(rng.integers(env.actions))
        explores = rng.random() < config.evaluation.epsilon
        q_values = agent.q_values(env.frames[np.newaxis])[0]
        action = random_action if explores else int(q_values.argmax())
        step = env.step(action)
        score += step.score
        over = step.game_over
        lost = step.terminal and not over
        lives_lost += lost
        max_q = number(float(q_values.max()))
        caption = f"step {played}   {action_name(env, action)}   score {score:+g}   max Q {max_q}"
        if recording:
            recording.show_step(env, caption + ("   life lost" if lost else ""))
        if over or played == steps:
            ended = "" if not over else "time limit" if step.truncated and not step.terminal else "game over"
            if recording:
                recording.show_end(env, f"{caption}   {ended or 'episode not finished'}")
            return Played(played, score, lives_lost, ended)
        if lost:
            env.reset()  # continues the game, as in training with FIRE where the game needs it
    raise ValueError(f"steps must be >= 1 (got {steps})")


def find_restorable(opened: OpenedRun, identity: int) -> StoredTransition:
    """Return the transition with this identity; raise InspectionError if it is not stored, or has no snapshot."""
    transition = find_transition(opened.replay, identity)
    if transition is None:
        raise InspectionError(
            f"transition {identity} is not in the replay at t = {opened.replay.t:,}: it was replaced or never existed. "
            f"To list stored transitions: {pasteable('inspect', opened.run.path)}"
        )
    if not transition.snapshot:
        raise InspectionError(
            f"transition {identity} cannot be restored: it was stored without a snapshot, "
            f"because {opened.config.env.name} has no snapshot() and restore()"
        )
    return transition


def _policy(opened: OpenedRun, env: StackedEnv, other: Path | None) -> Policy:
    """Load the weights of this run or of run `other`; raise InspectionError if its environment differs."""
    if other is None:
        return Policy(
            load_agent(one_thread(opened.config), env, opened.checkpoint.parts["learner"]),
            f"this run's weights at t = {opened.checkpoint.t:,}",
        )
    run = RunDirectory.open(other)
    config = load_config(run.config)
    theirs = build_env(config, 0, training=False)
    theirs.close()
    if theirs.description != env.description:
        raise InspectionError(
            f"--policy {other} does not fit: it was trained on {theirs.description}, this run on {env.description}"
        )
    _, checkpoint = read_checkpoint(run)
    return Policy(
        load_agent(one_thread(config), env, checkpoint.parts["learner"]),
        f"the weights of {other} at t = {checkpoint.t:,}",
    )


def _verify(config: Config, transition: StoredTransition) -> Verification:
    """Verify the transition in a separate environment with training rules, because it was stored under these."""
    env = build_env(config, 0, training=True)
    try:
        return verify_transition(env, transition)
    except DamagedSnapshot as damage:
        raise InspectionError(f"transition {transition.identity} cannot be restored: {damage}") from damage
    finally:
        env.close()


def seed_of(config: Config, identity: int, index: int = 0) -> int:
    """Return a seed that depends on the transition only, so that continuing from it is reproducible."""
    return seeds(config, EVALUATION, 2, identity)[index]


def _facts(transition: StoredTransition, env: StackedEnv, q_values: NDArray[np.float32]) -> list[str]:
    """Describe the transition in a few short lines."""
    facts = [
        f"transition {transition.identity}",
        f"priority {number(transition.priority)}",
        f"inserted at t = {transition.birth:,}",
        f"age {transition.age:,} transitions",
        f"stored action {action_name(env, transition.action)}, reward {transition.reward:g}",
        f"greedy action {action_name(env, int(q_values.argmax()))}",
    ]
    return [*facts, f"recycled, gain {signed(transition.gain)}"] if transition.recycled else facts


def _print_transition(
    opened: OpenedRun,
    transition: StoredTransition,
    env: StackedEnv,
    verification: Verification,
    q_values: NDArray[np.float32],
    player: Policy,
) -> None:
    console = make_console()
    stored_action, greedy_action = action_name(env, transition.action), action_name(env, int(q_values.argmax()))
    recycled = f"recycled with gain {signed(transition.gain)}, " if transition.recycled else ""
    for line in (
        f"{opened.title} · t = {opened.checkpoint.t:,}",
        f"transition {transition.identity}: {stored_action}, reward {transition.reward:g}, {recycled}"
        f"priority {number(transition.priority)}, inserted at t = {transition.birth:,}",
        Text(verification.text(stored_action), style="red" if verification.differs else "green"),
        f"continuing with {player.name} (greedy action {greedy_action}, stored action {stored_action}):",
    ):
        console.print(line, soft_wrap=True)
    console.print(_q_table(env, q_values, transition.action))


def _q_table(env: StackedEnv, q_values: NDArray[np.float32], stored: int) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False, header_style="dim")
    table.add_column("action")
    table.add_column("Q", justify="right")
    table.add_column("")
    best = int(q_values.argmax())
    for action, value in enumerate(q_values.tolist()):
        marks = [mark for mark, marked in (("stored", stored), ("greedy", best)) if marked == action]
        table.add_row(action_name(env, action), signed(value), ", ".join(marks), style="bold" if action == best else "")
    return table


def _print_played(played: Played, video: Path | None) -> None:
    console = make_console()
    lives = f", {played.lives_lost} {'life' if played.lives_lost == 1 else 'lives'} lost" if played.lives_lost else ""
    ended = f", then {played.ended}" if played.ended else ", episode not finished"
    console.print(f"{played.steps:,} steps: score {played.score:+g}{lives}{ended}", soft_wrap=True)
    if video:
        console.print(f"Video: {video}", soft_wrap=True)
