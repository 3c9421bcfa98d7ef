"""Playing on from a moment: by the rules of `inspect --enter`, step by step, in branches, by two agents in step."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, cast

import numpy as np
import pytest
from numpy.typing import NDArray

from dpsr_apex.agent.protocol import Agent
from dpsr_apex.config import Config, EnvConfig, EvaluationConfig
from dpsr_apex.envs.make import make_stacked
from dpsr_apex.envs.stacked import StackedEnv
from dpsr_apex.inspection.play_from import play_on
from dpsr_apex.inspection.stored import StoredTransition
from dpsr_apex.inspection.video import VideoError
from dpsr_apex.replay.transitions import Stack
from dpsr_apex.web import player as module
from dpsr_apex.web.analysis import Outcome, expectation_of, saliency_of, try_every_action, verified
from dpsr_apex.web.channel import BrokenChannel, Message, pack, unpack
from dpsr_apex.web.emulator import Emulator
from dpsr_apex.web.player import GameOver, Play, Player
from dpsr_apex.web.recording import record

EPSILON = 0.2


class Rule:
    """An agent whose values follow from the observation by a rule."""

    def __init__(self, actions: int, taste: float = 1.0) -> None:
        self._weights = np.sin(taste * np.arange(actions * 8)).reshape(8, actions)

    def q_values(self, observations: NDArray[Any]) -> NDArray[np.float32]:
        flat = observations.reshape(len(observations), -1).astype(np.float64)
        features = flat[:, np.linspace(0, flat.shape[1] - 1, 8).astype(int)] / (np.abs(flat).max() + 1)
        values: NDArray[np.float32] = (features @ self._weights).astype(np.float32)
        return values

    def td_errors(self, experience: Any) -> NDArray[np.float64]:
        errors: NDArray[np.float64] = np.abs(experience.r_t.astype(np.float64)) + experience.a_tm1
        return errors


def moment_of(name: str, steps: int) -> tuple[StackedEnv, StoredTransition]:
    """An environment, and a stored transition of it after some steps."""
    env = make_stacked(name, seed=3)
    for number in range(steps):
        env.step(number % env.actions)
    snapshot, stack = env.snapshot(), env.stack
    step = env.step(1)
    known = {"priority": 1.0, "birth": 1, "age": 1, "gain": math.nan, "depth": 0, "recycles": 0, "origin": -1}
    found = StoredTransition(
        identity=7,
        episode_step=steps,
        s_tm1=stack,
        action=1,
        reward=float(np.float32(step.reward)),
        s_t=env.stack,
        terminal=step.terminal,
        n_steps=1,
        snapshot=snapshot,
        **cast(Any, known),
    )
    env.close()
    return make_stacked(name, seed=99, training=False), found


@pytest.fixture(params=["CartPole-v1", "Breakout", "MinAtar/SpaceInvaders"])
def moment(request: pytest.FixtureRequest) -> Iterator[tuple[StackedEnv, StoredTransition]]:
    env, stored = moment_of(request.param, 3)
    yield env, stored
    env.close()


def new_player(env: StackedEnv, taste: float = 1.0, seed: int = 5) -> Player:
    return Player(env, cast(Agent, Rule(env.actions, taste)), EPSILON, seed)


def begun(env: StackedEnv, stored: StoredTransition) -> Play:
    return Play([new_player(env)], stored.snapshot, stored.s_tm1)


def states(play: Play) -> list[tuple[Stack, int | None, float]]:
    return [(frame.shots[0].stack, frame.shots[0].action, frame.shots[0].score) for frame in play.path()]


def test_the_agent_plays_exactly_as_inspect_does(moment: tuple[StackedEnv, StoredTransition]) -> None:
    env, stored = moment
    play, steps = begun(env, stored), 0
    while not play.current.is_over and steps < 120:
        play.step(None)
        steps += 1
    config = Config(env=EnvConfig("any"), evaluation=EvaluationConfig(epsilon=EPSILON))
    env.restore(stored.snapshot, stored.s_tm1)
    expected = play_on(env, cast(Agent, Rule(env.actions)), config, 120, seed=5)
    shot = play.current.shots[0]
    assert (steps, shot.score, shot.over) == (expected.steps, expected.score, bool(expected.ended))
    assert sum(frame.shots[0].life_lost for frame in play.path()) == expected.lives_lost
    assert {frame.shots[0].by for frame in play.path()[1:]} == {"agent"}


def test_any_frame_can_be_continued_in_another_way(moment: tuple[StackedEnv, StoredTransition]) -> None:
    env, stored = moment
    play = begun(env, stored)
    for _ in range(5):
        play.step(None)
    first = states(play)
    play.go_to(3)
    for number in range(3):
        play.step(number % 2)
    second = states(play)
    assert second[:4] == first[:4]
    assert [frame.shots[0].by for frame in play.path()] == ["stored", *["agent"] * 3, *["you"] * 3]
    play.go_to(3)
    for number in range(3):
        play.step(number % 2)
    assert states(play) == second, "a branch is exact"
    play.go_to(5)
    assert states(play) == first, "no branch is lost"
    assert [frame.step for frame in play.path()] == list(range(6))
    for wrong in (-1, len(play.frames)):
        with pytest.raises(ValueError, match="there is no frame"):
            play.go_to(wrong)


def test_after_the_end_there_is_no_step_until_an_earlier_frame_is_chosen() -> None:
    env, stored = moment_of("CartPole-v1", 3)
    play = begun(env, stored)
    while not play.current.is_over:
        play.step(0)
    with pytest.raises(GameOver, match="game is over"):
        play.step(0)
    play.go_to(1)
    assert play.step(1).step == 2
    env.close()


def test_the_number_of_frames_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_FRAMES", 3)
    env, stored = moment_of("CartPole-v1", 3)
    play = begun(env, stored)
    play.step(0)
    play.step(1)
    with pytest.raises(GameOver, match="3 frames are the limit"):
        play.step(0)
    env.close()


def test_two_players_stay_in_step_and_one_that_ends_waits_for_the_other() -> None:
    env, stored = moment_of("CartPole-v1", 3)
    other = make_stacked("CartPole-v1", seed=4, training=False)
    play = Play([new_player(env), new_player(other, taste=-2.0)], stored.snapshot, stored.s_tm1)
    while not play.current.is_over:
        play.step(None)
    ends = [next(frame.step for frame in play.frames if frame.shots[player].over) for player in (0, 1)]
    assert ends[0] != ends[1]
    assert max(ends) == play.current.step
    video = record([[frame.shots[player] for frame in play.path()] for player in (0, 1)], ["left", "right"], 15.0)
    assert video[4:8] == b"ftyp"
    play.go_to(0)
    assert [shot.stack for shot in play.current.shots] == [stored.s_tm1] * 2
    env.close()
    other.close()


def test_a_video_needs_frames() -> None:
    env, stored = moment_of("CartPole-v1", 3)
    play = begun(env, stored)
    assert record([[play.current.shots[0]]], ["left", "right"], 15.0)
    with pytest.raises((VideoError, ValueError, IndexError)):
        record([[]], ["left", "right"], 15.0)
    env.close()


def test_every_action_is_tried_from_the_same_state(moment: tuple[StackedEnv, StoredTransition]) -> None:
    env, stored = moment
    outcomes = try_every_action(env, cast(Agent, Rule(env.actions)), stored)
    assert [outcome.action for outcome in outcomes] == list(range(env.actions))
    assert [outcome.is_stored for outcome in outcomes] == [action == 1 for action in range(env.actions)]
    for outcome in outcomes:
        env.restore(stored.snapshot, stored.s_tm1)
        step = env.step(outcome.action)
        assert (outcome.reward, outcome.score, outcome.terminal) == (step.reward, step.score, step.terminal)
        assert outcome.td_error == abs(np.float32(step.reward)) + outcome.action
        assert outcome.picture.shape[2] == 3
    assert isinstance(outcomes[0], Outcome)


def test_the_stored_outcome_is_verified(moment: tuple[StackedEnv, StoredTransition]) -> None:
    env, stored = moment
    text, is_exact = verified(env, stored, "X")
    assert is_exact is True
    assert "bit for bit" in text
    assert verified(env, stored._replace(reward=stored.reward + 1), "X")[1] is False
    assert verified(env, stored._replace(n_steps=99), "X")[1] is None, "of 99 steps, nothing can be compared"


def test_thoughts_without_quantiles_and_without_gradients() -> None:
    env, _ = moment_of("CartPole-v1", 1)
    expected = expectation_of(cast(Agent, Rule(2)), env.frames)
    assert (expected.quantiles, expected.saliency) == (None, None)
    assert expected.greedy == int(np.argmax(expected.q_values))
    env.close()


class Steep(Rule):
    def saliency(self, frames: NDArray[Any], action: int) -> NDArray[np.float32]:
        return np.arange(frames.size, dtype=np.float32).reshape(frames.shape) * (action + 1)


@pytest.mark.parametrize("name", ["CartPole-v1", "Breakout", "MinAtar/Breakout"])
def test_saliency_is_folded_to_one_frame_and_scaled(name: str) -> None:
    env, _ = moment_of(name, 1)
    found = saliency_of(cast(Agent, Steep(env.actions)), env.frames, 1)
    assert found is not None
    assert found.shape == (env.codec.shape[-2:] if env.shows_pixels else env.codec.shape)
    assert found.max() == 1.0
    env.close()


# Messages.


def test_messages_come_back_as_they_were_packed() -> None:
    parts = [b"", b"x" * 1_000, b"\0\1"]
    head, found = unpack(pack({"event": "frame", "text": "ü"}, parts))
    assert (head["event"], head["text"], found) == ("frame", "ü", parts)


SPOILED = (
    lambda content: content[:-1],
    lambda content: content + b"x",
    lambda content: b"\xff" * len(content),
    lambda _: b"",
    lambda _: b"\1\0\0\0{",
)


@pytest.mark.parametrize("spoil", SPOILED)
def test_what_is_no_message_is_noticed(spoil: Any) -> None:
    with pytest.raises(BrokenChannel):
        unpack(spoil(pack({"event": "x"}, [b"part"])))


class Script:
    """The pipe of an emulator process that gets these commands, and then finds the server gone."""

    def __init__(self, *commands: dict[str, Any]) -> None:
        self._commands = [Message(command, []) for command in commands]
        self.sent: list[dict[str, Any]] = []

    def receive(self, _seconds: float | None) -> Message:
        if not self._commands:
            raise BrokenChannel("the server is gone")
        return self._commands.pop(0)

    def send(self, head: dict[str, Any], _parts: Any = ()) -> None:
        self.sent.append(head)


def test_commands_before_a_moment_is_open_are_problems_and_do_not_end_the_process() -> None:
    early: list[dict[str, Any]] = [
        *({"do": "try"}, {"do": "step"}, {"do": "save"}, {"do": "play", "speed": "real"}, {"do": "keys", "action": 1}),
        {"do": "branch", "frame": 0},
        {"do": "compare", "run": "runs/x", "weights": "runs/x/weights"},
        {"do": "enter", "facts": {}, "weights": None, "parts": []},
    ]
    pipe = Script(*early)
    with pytest.raises(BrokenChannel):
        Emulator(cast(Any, pipe)).run()
    assert [(sent["event"], sent["about"]) for sent in pipe.sent] == [("problem", one["do"]) for one in early]
