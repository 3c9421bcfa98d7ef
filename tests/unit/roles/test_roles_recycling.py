"""Recycling with real environments: every step of a chain can be re-entered, and leads where it says."""

from __future__ import annotations

from collections import Counter
from typing import Any, cast

import numpy as np
import pytest
from numpy.typing import NDArray

from dpsr_apex.agent.protocol import Agent, Experience
from dpsr_apex.config import ActorConfig, Config, EnvConfig, LearnerConfig, ReplayConfig
from dpsr_apex.envs.make import make_stacked
from dpsr_apex.envs.stacked import StackedEnv
from dpsr_apex.replay.transitions import Transitions, concatenate
from dpsr_apex.roles.actor import Actor
from dpsr_apex.roles.build import build_env
from dpsr_apex.schedules import constant
from dpsr_apex.wire.messages import Recycle, Recycled

DISCOUNT = 0.9


class Stubborn:
    """An agent that always wants the same action, and whose TD error is the reward plus a sum over both states."""

    def __init__(self, wanted: int) -> None:
        self._wanted = wanted
        self.calls: list[int] = []

    def act(self, observations: NDArray[Any]) -> NDArray[np.int64]:
        self.calls.append(len(observations))
        return np.full(len(observations), self._wanted)

    def td_errors(self, experience: Experience) -> NDArray[np.float64]:
        return td_errors_of(experience.s_tm1, experience.r_t, experience.s_t)


def td_errors_of(s_tm1: NDArray[Any], r_t: NDArray[Any], s_t: NDArray[Any]) -> NDArray[np.float64]:
    sums = [frames.reshape(len(frames), -1).astype(np.float64).sum(axis=1) for frames in (s_tm1, s_t)]
    found: NDArray[np.float64] = np.abs(r_t.astype(np.float64)) + np.abs(sums[0]) + 10 * np.abs(sums[1])
    return found


def build(name: str, wanted: int = 0, n_steps: int = 1, **settings: Any) -> Actor:
    config = Config(
        env=EnvConfig(name),
        actor=ActorConfig(exploration=constant(1.0), n_steps=n_steps),
        learner=LearnerConfig(discount=DISCOUNT),
        replay=ReplayConfig(**settings),
    )
    envs = [build_env(config, seed, training=True) for seed in (1, 2)]
    return Actor(config, cast(Agent, Stubborn(wanted)), envs[:1], envs[1], np.random.default_rng(3))


def played(actor: Actor, count: int) -> Transitions:
    parts = [collected.transitions for _ in range(count) if (collected := actor.step())]
    return concatenate(parts)


def request(stored: Transitions) -> Recycle:
    return Recycle(1, 2, np.arange(len(stored)), stored)


def chains(answer: Recycled) -> list[Transitions]:
    ends = np.cumsum(answer.lengths).tolist()
    return [answer.transitions.rows(end - length, end) for end, length in zip(ends, answer.lengths, strict=True)]


@pytest.mark.parametrize("name", ["Corridor", "CartPole-v1", "MinAtar/Breakout"])
def test_each_step_of_a_chain_re_enters_its_state_and_leads_where_it_says(name: str) -> None:
    actor = build(name, recycle_steps=6, recycle_exploration=0.5)
    stored = played(actor, 60)
    answer = actor.recycle(request(stored))
    assert answer.identities.tolist() == list(range(60))
    assert answer.lengths.max() == 6
    assert answer.lengths.min() >= 1
    env = make_stacked(name, training=True, seed=9)
    for row, chain in enumerate(chains(answer)):
        assert (chain.s_tm1[0], chain.snapshots[0]) == (stored.s_tm1[row], stored.snapshots[row])
        assert chain.a_tm1[0] != stored.a_tm1[row]
        for i in range(len(chain)):
            env.restore(chain.snapshots[i], chain.s_tm1[i])
            step = env.step(int(chain.a_tm1[i]))
            assert env.stack == chain.s_t[i]
            assert (np.float32(step.reward), step.terminal) == (chain.r_t[i], chain.terminal[i])
            is_last = i == len(chain) - 1
            assert is_last == (step.terminal or step.truncated or i == 5)
            assert is_last or chain.s_tm1[i + 1] == env.stack
        assert answer.rewards[row] == pytest.approx(float(chain.r_t.sum()))
    made = answer.transitions
    states = [env.codec.decompress_stacks(stacks) for stacks in (made.s_tm1, made.s_t)]
    np.testing.assert_array_equal(answer.td_errors, td_errors_of(states[0], made.r_t, states[1]))


def test_episodes_do_not_see_chains() -> None:
    actor = build("Corridor", recycle_steps=20)
    stored = played(actor, 50)
    actor.drain_episodes()
    before = actor.save()
    assert actor.recycle(request(stored)).transitions.terminal.any()
    assert actor.drain_episodes() == []
    after = actor.save()
    assert {k: v for k, v in after.facts.items() if k != "actor"} == {
        k: v for k, v in before.facts.items() if k != "actor"
    }


def test_n_step_returns_stay_inside_their_chain() -> None:
    actor = build("CartPole-v1", n_steps=3, recycle_steps=5, recycle_exploration=1.0)
    for chain in chains(actor.recycle(request(played(actor, 40)))):
        count = len(chain)
        assert chain.n_steps.tolist() == [min(3, count - i) for i in range(count)]
        expected = [sum(DISCOUNT**k for k in range(n)) for n in chain.n_steps.tolist()]  # the reward is 1 a step
        assert chain.r_t.tolist() == pytest.approx(expected)
        ends = [chain.s_t[i] for i in range(count)]
        assert [ends[i] for i in range(count - 3)] == [chain.s_tm1[i + 3] for i in range(count - 3)]
        assert len(set(ends[max(count - 3, 0) :])) == 1  # all that is left ends where the chain ends
        assert chain.terminal[:-3].any() == False  # noqa: E712 -- a numpy bool


def test_later_actions_are_greedy_but_for_the_share_of_random_ones() -> None:
    actor = build("MinAtar/Breakout", wanted=1, recycle_steps=30, recycle_exploration=0.3)
    later = np.concatenate([chain.a_tm1[1:] for chain in chains(actor.recycle(request(played(actor, 150))))])
    actions = actor.envs[0].actions
    share = np.mean(later == 1)
    expected = 0.7 + 0.3 / actions
    assert abs(share - expected) < 5 * np.sqrt(expected * (1 - expected) / later.size)
    assert len(Counter(later.tolist())) == actions


def test_each_call_takes_one_step() -> None:
    actor = build("CartPole-v1", recycle_steps=4)
    stored = played(actor, 5)
    recycling = actor.begin_recycling(request(stored))
    calls = 1
    while (answer := recycling.advance()) is None:
        calls += 1
    assert calls == answer.lengths.sum() == len(answer.transitions)


def test_chains_can_be_answered_as_soon_as_they_end() -> None:
    """The answers for single candidates together are the answer for all of them; one has a damaged snapshot."""
    at_once, one_by_one = (build("MinAtar/Breakout", n_steps=2, recycle_steps=4) for _ in range(2))
    stored = played(at_once, 6)
    one_by_one.rng.bit_generator.state = at_once.rng.bit_generator.state
    stored.snapshots[2] = b"damaged"
    expected = at_once.recycle(request(stored))
    recycling = one_by_one.begin_recycling(request(stored))
    assert recycling.ended_chains() is None
    answers: list[Recycled] = []
    while (last := recycling.advance()) is None:
        answers += filter(None, [recycling.ended_chains()])
    answers.append(last)
    assert [len(answer.identities) + len(answer.failed) for answer in answers] == [1] * len(stored)
    for column in ("identities", "lengths", "rewards", "td_errors", "failed"):
        joined = np.concatenate([getattr(answer, column) for answer in answers])
        np.testing.assert_array_equal(joined, getattr(expected, column))
    together = concatenate([answer.transitions for answer in answers if len(answer.transitions)])
    assert together.s_t == expected.transitions.s_t
    assert together.snapshots == expected.transitions.snapshots
    assert recycling.ended_chains() is None


class Damaging:
    """An environment that raises something else in each of some states, in the method that the error names."""

    ERRORS = (
        SystemError("in restore"),
        IndexError("in restore"),
        ZeroDivisionError("in step"),
        OverflowError("in state_key"),
    )

    def __init__(self, env: Any, snapshots: list[bytes]) -> None:
        self._env = env
        self._bad = dict(zip(snapshots, self.ERRORS, strict=False))
        self._error: Exception | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._env, name)

    def restore(self, snapshot: bytes, *state: Any) -> None:
        self._error = self._bad.get(snapshot)
        self._raise_in("restore")
        self._env.restore(snapshot, *state)

    def step(self, action: int) -> Any:
        self._raise_in("step")
        return self._env.step(action)

    def state_key(self) -> Any:
        self._raise_in("state_key")
        return self._env.state_key()

    def _raise_in(self, method: str) -> None:
        if self._error and method in str(self._error):
            raise self._error


def test_whatever_a_damaged_state_raises_costs_one_candidate() -> None:
    actor = build("CartPole-v1", recycle_steps=3, recycle_choice="novel")
    stored = played(actor, 8)
    bad = [1, 3, 4, 7]
    env = cast(StackedEnv, Damaging(actor._recycler, [stored.snapshots[row] for row in bad]))
    actor._recycler = env
    answer = actor.recycle(request(stored))
    assert answer.failed.tolist() == bad
    assert answer.reasons == [f"{type(error).__name__}: {error}" for error in Damaging.ERRORS]
    assert answer.identities.tolist() == [row for row in range(8) if row not in bad]
    assert answer.lengths.sum() == len(answer.transitions) == answer.td_errors.size


def test_candidates_with_known_faults_are_not_restored() -> None:
    actor = build("CartPole-v1")
    stored = played(actor, 5)
    actor._recycler = cast(StackedEnv, Damaging(actor._recycler, [stored.snapshots[row] for row in (0, 2, 3)]))
    recycling = actor.begin_recycling(request(stored), {0: "known", 2: "known", 3: "known"})
    while (answer := recycling.advance()) is None:
        pass
    assert (answer.failed.tolist(), answer.reasons) == ([0, 2, 3], ["known"] * 3)
    assert answer.identities.tolist() == [1, 4]


def test_one_step_consumes_the_random_numbers_of_the_paper_only() -> None:
    paper = build("CartPole-v1")
    stored = played(paper, 30)
    expected = np.random.default_rng(0)
    paper.rng.bit_generator.state = expected.bit_generator.state
    paper.recycle(request(stored))
    expected.integers(1, size=30)
    assert paper.rng.bit_generator.state == expected.bit_generator.state


def test_labels_are_those_that_the_choice_needs() -> None:
    for choice, has_keys, has_episodes in (
        ("low", False, False),
        ("high", False, False),
        ("novel", True, False),
        ("failure", False, True),
    ):
        actor = build("Corridor", recycle_choice=choice, recycle_steps=3)
        made = concatenate([played(actor, 40), actor.recycle(request(played(actor, 10))).transitions])
        assert bool(made.state_keys.all()) == made.state_keys.any() == has_keys
        assert bool(made.episodes.all()) == made.episodes.any() == has_episodes
        assert made.episode_steps.any()
    off = build("Corridor", recycle_choice="novel", method="per")
    assert not played(off, 10).state_keys.any()


def test_equal_states_have_equal_keys_when_played_and_when_re_entered() -> None:
    actor = build("Corridor", recycle_choice="novel", recycle_steps=5)
    stored = played(actor, 60)
    made = concatenate([stored, actor.recycle(request(stored)).transitions])
    keys: dict[bytes, int] = {}
    for snapshot, key in zip(made.snapshots, made.state_keys.tolist(), strict=True):
        assert keys.setdefault(snapshot, key) == key
    assert len(set(keys.values())) == len(keys) > 3


@pytest.mark.parametrize("n_steps", [1, 3])
def test_steps_are_counted_within_episodes_and_chains_with_numbers_of_their_own(n_steps: int) -> None:
    actor = build("CartPole-v1", recycle_choice="failure", recycle_steps=4, n_steps=n_steps)
    stored = played(actor, 100)
    episodes = [stored.pick(np.flatnonzero(stored.episodes == number)) for number in dict.fromkeys(stored.episodes)]
    assert len(episodes) > 2
    for episode in episodes:
        assert episode.episode_steps.tolist() == list(range(len(episode)))
        lasts = (episode.episode_steps + episode.n_steps)[episode.terminal]
        assert set(lasts.tolist()) <= {len(episode)}
    answer = actor.recycle(request(stored))
    numbers = [set(chain.episodes.tolist()) for chain in chains(answer)]
    assert all(len(own) == 1 for own in numbers)
    assert len(set().union(*numbers)) == len(numbers)
    assert not set().union(*numbers) & set(stored.episodes.tolist())
    for chain, start in zip(chains(answer), stored.episode_steps.tolist(), strict=True):
        assert chain.episode_steps.tolist() == list(range(start, start + len(chain)))


def test_an_actor_that_is_loaded_continues_its_episode_number() -> None:
    first, second = (build("CartPole-v1", recycle_choice="failure", n_steps=3) for _ in range(2))
    played(first, 37)
    second.load(first.save())
    expected, found = played(first, 40), played(second, 40)
    assert expected.episodes.tolist() == found.episodes.tolist()
    assert expected.episode_steps.tolist() == found.episode_steps.tolist()
