"""The evaluation protocol: full episodes, unclipped rewards, separate seeds, an epsilon of 0.001."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest
from numpy.typing import NDArray

from dpsr_apex.agent.protocol import Agent
from dpsr_apex.config import Config, EnvConfig, EvaluationConfig, RunConfig
from dpsr_apex.envs.stacked import StackedEnv
from dpsr_apex.roles import evaluator
from dpsr_apex.roles.build import build_env
from dpsr_apex.roles.evaluator import Evaluation, EvaluationStopped, evaluate, play_randomly
from tests.unit.envs.counted_emulator import CountedEmulator


class Scripted:
    """An agent that plays a rule of its own; it remembers what it saw."""

    def __init__(self, action: int = 0, seed: int | None = None, actions: int = 4) -> None:
        self._action = action
        self._actions = actions
        self._rng = np.random.default_rng(seed) if seed is not None else None
        self.seen: list[NDArray[Any]] = []

    def act(self, observations: NDArray[Any]) -> NDArray[np.int64]:
        self.seen.append(observations)
        return np.array([self._rng.integers(self._actions) if self._rng else self._action])


def config(
    name: str = "CartPole-v1", arguments: dict[str, Any] | None = None, seed: int = 0, **evaluation: Any
) -> Config:
    arguments = arguments or ({"depth": 5} if name == "Corridor" else {})
    return Config(env=EnvConfig(name, arguments), evaluation=EvaluationConfig(**evaluation), run=RunConfig(seed=seed))


def play(run: Config, agent: Scripted | None = None, t: int = 100, **options: Any) -> Evaluation:
    return evaluate(run, cast(Agent, agent or Scripted()), t, **options)


def test_the_defaults_are_those_of_the_protocol() -> None:
    assert EvaluationConfig().epsilon == 0.001


def test_a_corridor_has_its_exact_score() -> None:
    left, right = (play(config("Corridor", episodes=3, epsilon=0.0), Scripted(action)) for action in (0, 1))
    assert left == Evaluation(100, [996.0] * 3, [5] * 3)
    assert right == Evaluation(100, [500.0] * 3, [500] * 3)


def test_random_play_never_asks_the_agent() -> None:
    agent = Scripted()
    found = play_randomly(config(episodes=2, random_episodes=5), cast(Agent, agent))
    assert len(found.scores) == 5
    assert max(found.scores) < 100
    assert agent.seen == []


def test_the_row_reports_everything() -> None:
    assert Evaluation(7, [1.0, 2.0, 9.0], [1, 2, 3]).row() == {
        "t": 7,
        "games": 3,
        "mean": 4.0,
        "median": 2.0,
        "scores": [1.0, 2.0, 9.0],
        "steps": [1, 2, 3],
    }


def test_atari_games_are_whole_and_unclipped(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[StackedEnv] = []

    def build(run: Config, seed: int, training: bool) -> StackedEnv:
        made.append(build_env(run, seed, training))
        assert training is False
        return made[-1]

    monkeypatch.setattr(evaluator, "build_env", build)
    found = play(config("MsPacman", episodes=2), Scripted(seed=1))
    assert len(made) == 1
    assert all(score >= 100 and score % 10 == 0 for score in found.scores)  # clipped, a pill would count 1
    assert all(steps > 200 for steps in found.steps)  # three lives
    assert len(set(found.scores)) == 2


@pytest.fixture
def emulators(monkeypatch: pytest.MonkeyPatch) -> list[CountedEmulator]:
    """The emulators of all evaluations of a test, counted from their first game on."""
    counted: list[CountedEmulator] = []

    def build(run: Config, seed: int, training: bool) -> StackedEnv:
        env = build_env(run, seed, training)
        counted.append(CountedEmulator(env.env))
        env.reset()
        return env

    monkeypatch.setattr(evaluator, "build_env", build)
    return counted


# Riverraid pays while the next life starts, Skiing at the start of a game.
@pytest.mark.parametrize(("game", "actions"), [("Riverraid", 18), ("Skiing", 3)])
def test_a_score_is_the_sum_of_the_emulators_rewards(game: str, actions: int, emulators: list[CountedEmulator]) -> None:
    found = play(config(game, episodes=3), Scripted(seed=1, actions=actions))
    assert [found.scores] == [emulator.totals for emulator in emulators]
    assert all(found.scores)


def test_a_game_that_ends_while_the_next_life_starts_is_an_episode_of_its_own(
    emulators: list[CountedEmulator],
) -> None:
    # Flying straight ahead, the first life is lost at frame 314 to 317, and the next one has started 12 frames later.
    found = play(config("Riverraid", {"max_frames": 322}, episodes=3, epsilon=0.0, max_steps=500), Scripted(2))
    assert found.scores == emulators[0].totals
    assert all(70 < steps < 80 for steps in found.steps)


def test_the_same_t_gives_the_same_games_and_another_t_or_seed_others() -> None:
    run = config(episodes=8)
    first = play(run, t=100)
    assert play(run, t=100) == first
    assert play(run, t=101).scores != first.scores
    assert play(config(seed=1, episodes=8), t=100).scores != first.scores
    assert len(set(first.scores)) > 1, "the games of one evaluation differ from each other"


def test_the_number_of_games_can_be_given() -> None:
    assert len(play(config(episodes=2)).scores) == 2
    assert play(config(episodes=2), episodes=5).scores[:2] == play(config(episodes=2)).scores


def test_hardly_a_step_is_random() -> None:
    agent = Scripted(1)
    found = play(config("Corridor", episodes=40, epsilon=0.001), agent)
    explored = sum(found.steps) - len(agent.seen)
    assert 0 < explored < 60  # 20,000 steps: 20 expected, half of them end a game
    assert len(play(config("Corridor", episodes=2, epsilon=1.0), quiet := Scripted()).scores) == 2
    assert not quiet.seen


def test_a_game_that_is_too_long_is_cut_and_the_next_one_is_a_game_of_its_own() -> None:
    found = play(config("Corridor", episodes=3, epsilon=0.0, max_steps=70), Scripted(1))
    assert found == Evaluation(100, [70.0] * 3, [70] * 3)


def test_it_ends_at_once_when_asked_and_has_no_result() -> None:
    calls = iter(range(100))
    with pytest.raises(EvaluationStopped):
        play(config("Corridor", episodes=3), Scripted(1), stopped=lambda: next(calls) == 20)
    assert next(calls) == 21


def test_every_picture_and_every_game_is_told() -> None:
    pictures: list[NDArray[np.uint8]] = []
    scores: list[float] = []
    found = play(config("Corridor", episodes=2, epsilon=0.0), show=pictures.append, after_episode=scores.append)
    assert len(pictures) == sum(found.steps)
    assert scores == found.scores
