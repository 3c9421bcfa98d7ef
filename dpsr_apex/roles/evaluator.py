"""Evaluation: whole games, unclipped, hardly exploring, in environments and with random numbers of their own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dpsr_apex.agent.dqn import DqnAgent
from dpsr_apex.config import Config
from dpsr_apex.envs.stacked import StackedEnv
from dpsr_apex.roles.build import EVALUATION, build_env, seeds


class Evaluation(NamedTuple):
    """The scores of whole games at clock t."""

    t: int
    scores: list[float]
    steps: list[int]

    def row(self) -> dict[str, Any]:
        """As it is reported: mean, median, every single score, and how many games."""
        return {
            "t": self.t,
            "games": len(self.scores),
            "mean": float(np.mean(self.scores)),
            "median": float(np.median(self.scores)),
            "scores": self.scores,
            "steps": self.steps,
        }

    def summary(self) -> str:
        """One line for a person."""
        mean, median = np.mean(self.scores), np.median(self.scores)
        return f"evaluation at t = {self.t:,}: mean {mean:.1f}, median {median:.1f} over {len(self.scores)} games"


class EvaluationStopped(Exception):
    """It was asked to stop before all games had ended; there is no result."""


def evaluate(
    config: Config,
    agent: DqnAgent,
    t: int,
    episodes: int | None = None,
    stopped: Callable[[], bool] = lambda: False,
    show: Callable[[NDArray[np.uint8]], None] | None = None,
    after_game: Callable[[float], None] = lambda _score: None,
) -> Evaluation:
    """Play `episodes` whole games (the config's number by default); `show` is given every picture of them.

    The same config, weights and t give the same games.
    """
    env_seed, rng_seed = seeds(config, EVALUATION, 2, t)
    rng = np.random.default_rng(rng_seed)
    env = build_env(config, env_seed, training=False)
    scores: list[float] = []
    steps: list[int] = []
    try:
        for game in range(episodes or config.evaluation.episodes):
            if game > 0:
                env.reset()
            score, length = _play(env, agent, rng, config, stopped, show)
            scores.append(score)
            steps.append(length)
            after_game(score)
    finally:
        env.close()
    return Evaluation(t, scores, steps)


def _play(
    env: StackedEnv,
    agent: DqnAgent,
    rng: np.random.Generator,
    config: Config,
    stopped: Callable[[], bool],
    show: Callable[[NDArray[np.uint8]], None] | None,
) -> tuple[float, int]:
    """One game to its end, or to the greatest number of steps: its score and its length."""
    score = 0.0  # the environment's own count would go on after a game that was cut short
    for length in range(config.evaluation.max_steps):
        if stopped():
            raise EvaluationStopped
        if show:
            show(env.render())
        random_action = int(rng.integers(env.actions))
        explores = rng.random() < config.evaluation.epsilon
        step = env.step(random_action if explores else int(agent.act(env.frames[np.newaxis])[0]))
        score += step.score
        if step.game_over or step.truncated:
            return score, length + 1
        if step.terminal:
            env.reset()  # a lost life: the game plays on, opened by FIRE where training opened it so
    return score, config.evaluation.max_steps
