"""Sticky actions, the full action set, mode and difficulty of Atari games."""

from __future__ import annotations

from typing import Any

import ale_py
import numpy as np
import pytest

from dpsr_apex.envs.atari import FRAME_SKIP, Atari, find_rom
from dpsr_apex.envs.check import check_restore
from dpsr_apex.envs.make import make_env
from dpsr_apex.envs.snapshot import UnusableEnvironment

NO_FRAMES = np.zeros((0,))


def outcomes(env: Atari, actions: list[int]) -> list[Any]:
    steps = []
    for action in actions:
        frame, *step = env.step(action)
        steps.append((frame.tobytes(), *step))
    return steps


def test_sticky_actions_continue_identically_after_a_restore_in_an_environment_that_played_something_else() -> None:
    env, other = (Atari("Breakout", repeat_action_probability=0.5) for _ in range(2))
    env.reset(seed=1)
    other.reset(seed=2)
    rng = np.random.default_rng(0)
    for _ in range(20):
        actions = rng.integers(env.action_space.n, size=24).tolist()  # type: ignore[attr-defined] # Discrete
        snapshot = env.snapshot()
        played = outcomes(env, actions[:12])
        outcomes(other, actions[12:])
        other.restore(snapshot, NO_FRAMES)
        assert outcomes(other, actions[:12]) == played
        if played[-1][2]:
            env.reset()
            other.reset()


@pytest.mark.parametrize(
    ("game", "arguments"),
    [
        ("Breakout", {"repeat_action_probability": 0.25}),
        ("Qbert", {"repeat_action_probability": 0.25, "full_action_space": True, "difficulty": 1}),
        ("SpaceInvaders", {"mode": 9}),
    ],
)
def test_games_with_options_are_restored_exactly(game: str, arguments: dict[str, Any]) -> None:
    result = check_restore(game, arguments, moments=30)
    assert result.passed, result.problem
    assert result.first_steps > 0


def test_a_sticky_action_repeats_the_action_of_the_frame_before() -> None:
    env = Atari("Pong", repeat_action_probability=0.25)
    env.reset(seed=0)
    played: list[int] = []
    emulator = env._ale
    env._ale = Recording(emulator, played)  # type: ignore[assignment]
    rng = np.random.default_rng(1)
    wanted = rng.integers(6, size=700).tolist()
    for action in wanted:
        assert not env.step(action)[2]
    asked = np.repeat([env._actions[action].value for action in wanted], FRAME_SKIP)
    frames = np.array(played)
    assert len(frames) == len(asked)
    differs = frames[1:] != asked[1:]
    np.testing.assert_array_equal(frames[1:][differs], frames[:-1][differs])
    # The chance of a frame to keep the old action, where it differs from the one asked for.
    distinguishable = frames[:-1] != asked[1:]
    share = differs[distinguishable].mean()
    assert abs(share - 0.25) < 4 * np.sqrt(0.25 * 0.75 / distinguishable.sum())


class Recording:
    """An emulator that records the actions it is given."""

    def __init__(self, emulator: ale_py.ALEInterface, played: list[int]) -> None:
        self._emulator, self._played = emulator, played

    def act(self, action: Any) -> int:
        self._played.append(action.value)
        return self._emulator.act(action)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._emulator, name)


def test_the_full_action_set_has_18_actions_and_starts_the_game_as_before() -> None:
    env, minimal = Atari("Breakout", full_action_space=True), Atari("Breakout")
    assert env.action_space.n == len(env.action_names) == 18  # type: ignore[attr-defined] # Discrete
    np.testing.assert_array_equal(env.reset(seed=3)[0], minimal.reset(seed=3)[0])


def test_mode_and_difficulty_reach_the_emulator_and_survive_a_new_game() -> None:
    env = make_env("Breakout", {"mode": 12, "difficulty": 1})
    plain = make_env("Breakout")
    assert env.fingerprint != plain.fingerprint  # type: ignore[attr-defined]
    for seed in range(2):
        frame, other = env.reset(seed=seed)[0], plain.reset(seed=seed)[0]
        for _ in range(40):
            frame, other = env.step(2)[0], plain.step(2)[0]
        assert not np.array_equal(frame, other)


@pytest.mark.parametrize(
    "arguments",
    [
        {"repeat_action_probability": 1.0},
        {"repeat_action_probability": "often"},
        {"full_action_space": 1},
        {"mode": 3},
        {"difficulty": 7},
    ],
)
def test_a_value_that_a_game_does_not_have_is_refused_by_name(arguments: dict[str, Any]) -> None:
    with pytest.raises(UnusableEnvironment, match=f"{next(iter(arguments))} must be [^\n]*$"):
        make_env("Breakout", arguments)


def test_processes_with_other_rules_have_another_fingerprint() -> None:
    prints = {Atari("Pong", **options).fingerprint for options in ({}, {"full_action_space": True})}
    prints |= {Atari("Pong", repeat_action_probability=chance).fingerprint for chance in (0.1, 0.25)}
    assert len(prints) == 4


def differing_restores(last_is_the_same: bool) -> int:
    """Count the states, of 60, after which the emulator's own sticky actions lead elsewhere when they are restored."""
    ale = ale_py.ALEInterface()
    ale.setFloat("repeat_action_probability", 0.25)
    ale.setInt("random_seed", 0)
    ale.loadROM(find_rom("Breakout"))
    ale.reset_game()
    _, fire, right, left = ale.getMinimalActionSet()
    ale.act(fire)
    differing = 0
    for _ in range(60):
        for _ in range(6):
            ale.act(right)
        state = ale.cloneState(include_rng=True)
        first = [(ale.act(left), ale.getRAM().tobytes()) for _ in range(8)]
        for _ in range(6):
            ale.act(right if last_is_the_same else left)
        ale.restoreState(state)
        differing += first != [(ale.act(left), ale.getRAM().tobytes()) for _ in range(8)]
    return differing


def test_the_emulators_own_state_lacks_the_last_action() -> None:
    """The reason why sticky actions are not left to the emulator; without it, they could be."""
    assert differing_restores(last_is_the_same=True) == 0
    assert differing_restores(last_is_the_same=False) > 0
