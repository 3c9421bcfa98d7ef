"""Evaluation: full episodes with unclipped rewards and little exploration, with separate environments and seeds.

Losing a life in an Atari game does not end an episode here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dpsr_apex.agent.protocol import Agent
from dpsr_apex.config import Config
from dpsr_apex.envs.stacked import StackedEnv, Step
from dpsr_apex.formatting import evaluation_line
from dpsr_apex.replay.transitions import Transitions
from dpsr_apex.roles.build import EVALUATION, build_env, seeds
from dpsr_apex.roles.starts import NO_STARTS, begin_at

Record = Callable[[NDArray[Any], int, Step, NDArray[Any]], None]
"""Called after every step with the observation before it, the action, its outcome and the next observation."""


class Evaluation(NamedTuple):
    """The scores and lengths of the evaluated episodes at clock t."""

    t: int
    scores: list[float]
    steps: list[int]

    def row(self) -> dict[str, Any]:
        """Return the row for `evaluations.jsonl`: mean, median, every score, and the number of episodes."""
        return {
            "t": self.t,
            "games": len(self.scores),
            "mean": float(np.mean(self.scores)),
            "median": float(np.median(self.scores)),
            "scores": self.scores,
            "steps": self.steps,
        }

    def summary(self) -> str:
        """Return one line for the user."""
        return evaluation_line(self.t, float(np.mean(self.scores)), float(np.median(self.scores)), len(self.scores))


class EvaluationStopped(Exception):
    """Raised when the evaluation was stopped before all episodes had ended; there is no result."""


def evaluate(
    config: Config,
    agent: Agent,
    t: int,
    episodes: int | None = None,
    stopped: Callable[[], bool] = lambda: False,
    show: Callable[[NDArray[np.uint8]], None] | None = None,
    after_episode: Callable[[float], None] = lambda _score: None,
    record: Record = lambda *_step: None,
    starts: Transitions = NO_STARTS,
) -> Evaluation:
    """Play `episodes` full episodes, by default the config's number; `show` is called with every rendered frame.

    The same config, weights and t give the same episodes. With `starts`, episodes begin at the states from which these
    transitions started, one after the other, and scores are counted from there.
    """
    env_seed, rng_seed = seeds(config, EVALUATION, 2, t)
    rng = np.random.default_rng(rng_seed)
    env = build_env(config, env_seed, training=False)
    scores: list[float] = []
    steps: list[int] = []
    try:
        for number in range(episodes or config.evaluation.episodes):
            if len(starts):
                begin_at(env, starts, number % len(starts))
            elif number > 0:
                env.reset()
            score, length = _play(env, agent, rng, config, stopped, show, record)
            scores.append(score)
            steps.append(length)
            after_episode(score)
    finally:
        env.close()
    return Evaluation(t, scores, steps)


def play_randomly(config: Config, agent: Agent, stopped: Callable[[], bool] = lambda: False) -> Evaluation:
    """Play `evaluation.random_episodes` full episodes with random actions only; `agent` is not asked."""
    always_random = replace(config.evaluation, epsilon=1.0)
    return evaluate(replace(config, evaluation=always_random), agent, 0, config.evaluation.random_episodes, stopped)


def _play(
    env: StackedEnv,
    agent: Agent,
    rng: np.random.Generator,
    config: Config,
    stopped: Callable[[], bool],
    show: Callable[[NDArray[np.uint8]], None] | None,
    record: Record,
) -> tuple[float, int]:
    """Play one episode to its end, or up to `evaluation.max_steps`; return its score and its length."""
    for length in range(config.evaluation.max_steps):
        if stopped():
            raise EvaluationStopped
        if show:
            show(env.render())
        random_action = int(rng.integers(env.actions))
        explores = rng.random() < config.evaluation.epsilon
        frames = env.frames
        action = random_action if explores else int(agent.act(frames[np.newaxis])[0])
        step = env.step(action)
        record(frames, action, step, env.frames)
        if step.game_over:
            return env.game_score, length + 1
        if step.terminal:
            env.reset()  # a lost life: the game continues
    return env.game_score, config.evaluation.max_steps
