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
from dpsr_apex.envs.stacked import StackedEnv
from dpsr_apex.roles.build import EVALUATION, build_env, seeds


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
        mean, median = np.mean(self.scores), np.median(self.scores)
        return f"evaluation at t = {self.t:,}: mean {mean:.1f}, median {median:.1f} over {len(self.scores)} episodes"


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
) -> Evaluation:
    """Play `episodes` full episodes, by default the config's number; `show` is called with every rendered frame.

    The same config, weights and t give the same episodes.
    """
    env_seed, rng_seed = seeds(config, EVALUATION, 2, t)
    rng = np.random.default_rng(rng_seed)
    env = build_env(config, env_seed, training=False)
    scores: list[float] = []
    steps: list[int] = []
    try:
        for number in range(episodes or config.evaluation.episodes):
            if number > 0:
                env.reset()
            score, length = _play(env, agent, rng, config, stopped, show)
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
) -> tuple[float, int]:
    """Play one episode to its end, or up to `evaluation.max_steps`; return its score and its length."""
    for length in range(config.evaluation.max_steps):
        if stopped():
            raise EvaluationStopped
        if show:
            show(env.render())
        random_action = int(rng.integers(env.actions))
        explores = rng.random() < config.evaluation.epsilon
        step = env.step(random_action if explores else int(agent.act(env.frames[np.newaxis])[0]))
        if step.game_over:
            return env.game_score, length + 1
        if step.terminal:
            env.reset()  # a lost life: the game continues
    return env.game_score, config.evaluation.max_steps
