"""Entering a stored moment: prove that it is the one that was stored, then play on from there with what was learnt.

The run is only read. What happens here goes into no replay and teaches no network.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from dpsr_apex.agent.dqn import DqnAgent
from dpsr_apex.config import Config
from dpsr_apex.config_files import load_config
from dpsr_apex.console import make_console
from dpsr_apex.envs.compression import DamagedSnapshot
from dpsr_apex.envs.stacked import StackedEnv
from dpsr_apex.inspection import InspectionError
from dpsr_apex.inspection.film import Film, filming
from dpsr_apex.inspection.moments import Moment, action_name, find_moment, number, signed
from dpsr_apex.inspection.opening import Opened, open_run
from dpsr_apex.inspection.proof import Proof, prove
from dpsr_apex.roles.build import EVALUATION, build_env, one_thread, seeds
from dpsr_apex.run.choice import read_checkpoint
from dpsr_apex.run.policy import learnt_agent
from dpsr_apex.run.run_directory import RunDirectory
from dpsr_apex.run.typed import pasteable
from dpsr_apex.run.video import ensure_filmable


class Policy(NamedTuple):
    """Who plays on."""

    agent: DqnAgent
    name: str


class Played(NamedTuple):
    """What happened after the moment."""

    steps: int
    score: float  # unclipped, since then
    lives_lost: int  # after which the game went on
    ended: str  # "game over", "time limit", or empty where the steps were over first


def enter_moment(
    path: Path, identity: int, steps: int, video: Path | None, policy: Path | None, checkpoint: Path | None
) -> int:
    """Enter a stored transition's state, prove it, and play on for at most so many steps; 1 if the proof fails."""
    if video:
        ensure_filmable(video)
    opened = open_run(path, checkpoint)
    moment = _find(opened, identity)
    env = build_env(opened.config, _seed(opened.config, identity), training=False)
    try:
        player = _policy(opened, env, policy)
        proof = _proved(opened.config, moment)
        with filming(video, env) as film:
            env.restore(moment.snapshot, moment.s_tm1)
            q_values = player.agent.q_values(env.frames[np.newaxis])[0]
            _tell_moment(opened, moment, env, proof, q_values, player)
            if film:
                film.show_stored(env.frames, _facts(moment, env, q_values))
            played = play_on(env, player.agent, opened.config, steps, _seed(opened.config, identity, 1), film)
    finally:
        env.close()
    _tell_play(played, video)
    return 1 if proof.differs else 0


def play_on(
    env: StackedEnv, agent: DqnAgent, config: Config, steps: int, seed: int, film: Film | None = None
) -> Played:
    """By the rules of an evaluation; a lost life does not end it, the end of the game does."""
    rng = np.random.default_rng(seed)
    score, lives_lost = 0.0, 0
    for done in range(1, steps + 1):
        random_action = int(rng.integers(env.actions))
        explores = rng.random() < config.evaluation.epsilon
        q_values = agent.q_values(env.frames[np.newaxis])[0]
        action = random_action if explores else int(q_values.argmax())
        step = env.step(action)
        score += step.score
        over = step.game_over or step.truncated
        lost = step.terminal and not over
        lives_lost += lost
        caption = f"step {done}   {action_name(env, action)}   score {score:+g}   max Q {number(float(q_values.max()))}"
        if film:
            film.show_step(env, caption + ("   a life is lost" if lost else ""))
        if over or done == steps:
            ended = "" if not over else "time limit" if step.truncated and not step.terminal else "game over"
            if film:
                film.show_end(env, f"{caption}   {ended or 'and so on'}")
            return Played(done, score, lives_lost, ended)
        if lost:
            env.reset()  # the game plays on, opened by FIRE where training opened it so
    raise ValueError(f"{steps} steps cannot be played")


def _find(opened: Opened, identity: int) -> Moment:
    moment = find_moment(opened.replay, identity)
    if moment is None:
        raise InspectionError(
            f"transition {identity} is not in the replay at t = {opened.replay.t:,}: it was replaced, or never was. "
            f"To list those that are there: {pasteable('inspect', opened.run.path)}"
        )
    if not moment.snapshot:
        raise InspectionError(
            f"transition {identity} cannot be entered, since it was stored without a snapshot: "
            f"{opened.config.env.name} needs snapshot() and restore() for that"
        )
    return moment


def _policy(opened: Opened, env: StackedEnv, other: Path | None) -> Policy:
    """What this run has learnt, or another one; InspectionError where that one plays something else."""
    if other is None:
        return Policy(
            learnt_agent(one_thread(opened.config), env, opened.checkpoint),
            f"this run's weights of t = {opened.checkpoint.t:,}",
        )
    run = RunDirectory.open(other)
    config = load_config(run.config)
    theirs = build_env(config, 0, training=False)
    theirs.close()
    if theirs.description != env.description:
        raise InspectionError(
            f"--policy {other} cannot play here: it has learnt {theirs.description}, and this is {env.description}"
        )
    _, checkpoint = read_checkpoint(run)
    return Policy(learnt_agent(one_thread(config), env, checkpoint), f"the weights of {other} of t = {checkpoint.t:,}")


def _proved(config: Config, moment: Moment) -> Proof:
    """In an environment of its own, with the rules of training: what was stored was seen by these."""
    env = build_env(config, 0, training=True)
    try:
        return prove(env, moment)
    except DamagedSnapshot as damage:
        raise InspectionError(f"transition {moment.identity} cannot be entered: {damage}") from damage
    finally:
        env.close()


def _seed(config: Config, identity: int, which: int = 0) -> int:
    """The same moment is always played on in the same way, by the same weights."""
    return seeds(config, EVALUATION, 2, identity)[which]


def _facts(moment: Moment, env: StackedEnv, q_values: NDArray[np.float32]) -> list[str]:
    """The moment in a few short lines."""
    facts = [
        f"transition {moment.identity}",
        f"priority {number(moment.priority)}",
        f"born at t = {moment.birth:,}",
        f"{moment.age:,} transitions old",
        f"did {action_name(env, moment.action)}, reward {moment.reward:g}",
        f"now {action_name(env, int(q_values.argmax()))}, by the network",
    ]
    return [*facts, f"recycled, gain {signed(moment.gain)}"] if moment.recycled else facts


def _tell_moment(
    opened: Opened,
    moment: Moment,
    env: StackedEnv,
    proof: Proof,
    q_values: NDArray[np.float32],
    player: Policy,
) -> None:
    console = make_console()
    did = f"{action_name(env, moment.action)}, reward {moment.reward:g}"
    if moment.recycled:
        did += f", recycled with a gain of {signed(moment.gain)}"
    chosen = int(q_values.argmax())
    choice = f"do {action_name(env, chosen)}{' again' if chosen == moment.action else ' instead'}"
    for line in (
        f"{opened.title} · t = {opened.checkpoint.t:,}",
        f"transition {moment.identity}: {did}, priority {number(moment.priority)}, born at t = {moment.birth:,}",
        Text(proof.text(action_name(env, moment.action)), style="red" if proof.differs else "green"),
        f"played on with {player.name}, which would {choice}:",
    ):
        console.print(line, soft_wrap=True)
    console.print(_q_table(env, q_values, moment.action))


def _q_table(env: StackedEnv, q_values: NDArray[np.float32], stored: int) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False, header_style="dim")
    table.add_column("action")
    table.add_column("Q", justify="right")
    table.add_column("")
    best = int(q_values.argmax())
    for action, value in enumerate(q_values.tolist()):
        marks = [word for word, which in (("stored", stored), ("chosen", best)) if which == action]
        table.add_row(action_name(env, action), signed(value), ", ".join(marks), style="bold" if action == best else "")
    return table


def _tell_play(played: Played, video: Path | None) -> None:
    console = make_console()
    lives = f", {played.lives_lost} {'life' if played.lives_lost == 1 else 'lives'} lost" if played.lives_lost else ""
    ended = f", then {played.ended}" if played.ended else ", and the game goes on"
    console.print(f"{played.steps:,} steps: score {played.score:+g}{lives}{ended}", soft_wrap=True)
    if video:
        console.print(f"video {video}", soft_wrap=True)
