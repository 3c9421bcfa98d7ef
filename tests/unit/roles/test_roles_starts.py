"""Episodes that begin at stored moments: exactly there, as often as set, and without an effect on other episodes."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest
from numpy.typing import NDArray

from dpsr_apex.agent.protocol import Agent
from dpsr_apex.config import ActorConfig, Config, EnvConfig, EvaluationConfig, ReplayConfig
from dpsr_apex.envs.make import make_stacked
from dpsr_apex.envs.snapshot import UnusableEnvironment
from dpsr_apex.envs.stacked import StackedEnv
from dpsr_apex.replay.transitions import Transitions, concatenate, from_lists
from dpsr_apex.roles.actor import Actor
from dpsr_apex.roles.evaluator import evaluate
from dpsr_apex.roles.starts import NO_STARTS, Starts, ensure_startable
from dpsr_apex.schedules import constant
from tests.unit.roles.test_roles_evaluator import Scripted

ENVIRONMENTS = ("CartPole-v1", "Breakout", "MinAtar/Breakout", "Taxi-v4")


def new_env(name: str, seed: int = 0) -> StackedEnv:
    return make_stacked(name, seed=seed, by_history=True)


def moments(name: str, count: int = 4, apart: int = 3, action: int | None = None) -> Transitions:
    """Moments of an episode, each a few steps after the other."""
    env = new_env(name, seed=5)
    stacks, snapshots = [], []
    for number in range(count * apart):
        if number % apart == 0:
            stacks.append(env.stack)
            snapshots.append(env.snapshot())
        env.step(action if action is not None else number % 2)
    env.close()
    return from_lists(s_tm1=stacks, s_t=stacks, snapshots=snapshots)


def play_out(env: StackedEnv, most: int = 3_000) -> int:
    """Play until the game is over; return the number of steps."""
    for number in range(1, most):
        step = env.step(number // 7 % env.actions)
        if step.game_over:
            return number
        if step.terminal or step.truncated:
            env.reset()
    raise AssertionError("the game did not end")


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_a_start_is_exact_and_leaves_no_trace_in_later_episodes(name: str) -> None:
    chosen, rng = moments(name, count=2).rows(1, 2), np.random.default_rng(0)
    env, twin = new_env(name), new_env(name)
    starts = Starts(chosen, share=1.0)
    for _ in range(3):
        held = starts.begin(env, rng)
        assert held is not None
        assert (env.game_score, env.game_steps) == (0.0, 0)
        expected = new_env(name, seed=99)
        expected.restore(chosen.snapshots[0], chosen.s_tm1[0])
        for action in (1, 0, 1, 1):
            assert env.step(action) == expected.step(action)
            np.testing.assert_array_equal(env.frames, expected.frames)
        play_out(env)
        env.load(held)
        np.testing.assert_array_equal(env.frames, twin.frames)
        assert play_out(env) == play_out(twin)
        assert env.game_score == twin.game_score
        env.reset()
        twin.reset()


class ActsForAll(Scripted):
    def act(self, observations: NDArray[Any]) -> NDArray[np.int64]:
        return np.zeros(len(observations), np.int64)


def actor_of(share: float, starts: Transitions, seed: int = 0, environments: int = 1) -> Actor:
    config = Config(
        actor=ActorConfig(exploration=constant(0.5), start_share=share, environments=environments),
        replay=ReplayConfig(method="per"),
    )
    envs = [new_env("CartPole-v1", seed=seed + i) for i in range(environments)]
    return Actor(config, cast(Agent, ActsForAll()), envs, None, np.random.default_rng(seed), starts)


def collected(actor: Actor, count: int) -> Transitions:
    parts = [made.transitions for _ in range(count) if (made := actor.step()) is not None]
    return concatenate(parts)


def firsts(made: Transitions) -> list[bytes]:
    """The states at which episodes begin."""
    return [made.s_tm1[row][0] for row in np.flatnonzero(made.episode_steps == 0)]


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_the_share_of_episodes_begins_at_moments_each_as_likely_as_the_others(share: float) -> None:
    chosen = moments("CartPole-v1")
    actor = actor_of(share, chosen)
    begun = firsts(collected(actor, 12_000))
    counts = [sum(first == stack[0] for first in begun) for stack in chosen.s_tm1]
    assert sum(counts) / len(begun) == pytest.approx(share, abs=5 * np.sqrt(0.25 / len(begun)))
    if share:
        assert min(counts) > 0.7 * sum(counts) / 4
    scores = actor.drain_episodes()
    assert len(scores) == pytest.approx(len(begun) - sum(counts), abs=1), "episodes from moments have no score"


def test_without_starts_an_actor_is_that_of_before() -> None:
    plain, with_share = actor_of(0.5, NO_STARTS), actor_of(0.0, moments("CartPole-v1"))
    made, same = collected(plain, 300), collected(with_share, 300)
    assert made.s_tm1 == same.s_tm1
    assert made.a_tm1.tolist() == same.a_tm1.tolist()


def test_an_actor_that_is_loaded_continues_in_an_episode_from_a_moment() -> None:
    chosen = moments("CartPole-v1")
    first, second = (actor_of(0.7, chosen, environments=3) for _ in range(2))
    for _ in range(5):
        collected(first, 37)
        second.load(first.save())
        expected, found = collected(first, 120), collected(second, 120)
        assert expected.s_tm1 == found.s_tm1
        assert first.drain_episodes() == second.drain_episodes()
        first.load(second.save())


@pytest.mark.parametrize("is_snapshot_damaged", [True, False])
@pytest.mark.parametrize("name", ["Breakout", "tests.unit.envs.user_envs:Good"])
def test_a_moment_that_cannot_be_restored_is_skipped(name: str, is_snapshot_damaged: bool) -> None:
    chosen = moments(name, count=1)
    stack, snapshot = chosen.s_tm1[0], chosen.snapshots[0]
    if is_snapshot_damaged:
        damaged = from_lists(s_tm1=[stack], snapshots=[snapshot[:-1]])
    else:
        damaged = from_lists(s_tm1=[(*stack[:-1], stack[-1][:-1])], snapshots=[snapshot])
    env, twin = new_env(name), new_env(name)
    assert Starts(damaged, 1.0).begin(env, np.random.default_rng(0)) is None
    assert play_out(env) == play_out(twin)
    with pytest.raises(UnusableEnvironment, match=r"moment 0 of x\.safetensors cannot be restored"):
        ensure_startable(env, env.description, damaged, "x.safetensors")


def test_moments_of_another_environment_are_refused() -> None:
    env = new_env("CartPole-v1")
    chosen = moments("CartPole-v1")
    ensure_startable(env, env.description, chosen, "x.safetensors")
    with pytest.raises(UnusableEnvironment, match="has moments of Breakout"):
        ensure_startable(env, new_env("Breakout").description, chosen, "x.safetensors")
    with pytest.raises(UnusableEnvironment, match="has no moments"):
        ensure_startable(env, env.description, NO_STARTS, "x.safetensors")


def test_evaluations_begin_at_the_moments_one_after_the_other() -> None:
    chosen = moments("Corridor", count=3, action=1)
    config = Config(env=EnvConfig("Corridor", {"depth": 500}), evaluation=EvaluationConfig(epsilon=0.0))
    agent = Scripted(1)
    found = evaluate(config, cast(Agent, agent), 7, 4, starts=chosen)
    assert found.scores == [500.0, 497.0, 494.0, 500.0]  # from where 0, 3 and 6 steps have been taken
    env = new_env("Corridor")
    begun = [agent.seen[sum(found.steps[:number])][0, 0].tolist() for number in range(4)]
    assert begun == [env.codec.decompress(chosen.s_tm1[row][0]).tolist() for row in (0, 1, 2, 0)]
