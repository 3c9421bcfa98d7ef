"""The environments that the benchmark compares do the same work: a lost life does not reset the game."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from benchmarks.atari_throughput import gymnasium_env, vector_env

STEPS = 1_000  # several games of Breakout, played at random


def falls(lives: list[int]) -> set[tuple[int, int]]:
    """Return every change of the number of lives."""
    return {(before, after) for before, after in pairwise(lives) if before != after}


EVERY_LIFE_OF_A_GAME = {(5, 4), (4, 3), (3, 2), (2, 1), (1, 0), (0, 5)}


def test_gymnasiums_wrappers_continue_the_game_after_a_lost_life() -> None:
    env = gymnasium_env("Breakout")
    lives = [env.reset(seed=0)[1]["lives"]]
    rng = np.random.default_rng(0)
    for _ in range(STEPS):
        _, _, terminated, _, info = env.step(int(rng.integers(4)))
        lives.append(info["lives"])
        if terminated:
            lives.append(env.reset()[1]["lives"])
    assert falls(lives) == EVERY_LIFE_OF_A_GAME


def test_ale_pys_vector_environment_reports_every_lost_life_and_continues_the_game() -> None:
    env = vector_env("Breakout", 1)
    lives = [int(env.reset(seed=0)[1]["lives"][0])]
    rng = np.random.default_rng(0)
    lost = 0
    for _ in range(STEPS):
        _, _, terminated, _, info = env.step(rng.integers(4, size=1))
        lives.append(int(info["lives"][0]))
        lost += bool(terminated[0])
    assert falls(lives) == EVERY_LIFE_OF_A_GAME
    assert lost == sum(after < before for before, after in pairwise(lives))
