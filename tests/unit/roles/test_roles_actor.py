"""The actor: when it explores, what it sends, and what it does with a state that it is asked to enter again."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from numpy.typing import NDArray

from dpsr_apex.agent.protocol import Agent, Experience
from dpsr_apex.config import ActorConfig, Config, EnvConfig, ReplayConfig, RunConfig
from dpsr_apex.envs.compression import DamagedSnapshot, FrameCodec
from dpsr_apex.envs.make import make_stacked
from dpsr_apex.envs.stacked import StackedEnv
from dpsr_apex.replay.transitions import Stack, from_lists
from dpsr_apex.roles.actor import Actor, Collected, Episode
from dpsr_apex.schedules import Schedule, constant
from dpsr_apex.state import State
from dpsr_apex.wire.messages import Recycle
from tests.unit.envs.counted_emulator import CountedEmulator

ACTIONS = 4


class Walk(gymnasium.Env[Any, Any]):
    """Shows (place, steps); action a adds a + 1 to the place, the reward is the new place. Ends after 6 steps."""

    observation_space: spaces.Space[Any] = spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space: spaces.Space[Any] = spaces.Discrete(ACTIONS)

    def __init__(self) -> None:
        self.place, self.steps = 0, 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        super().reset(seed=seed, options=options)
        self.place, self.steps = int(self.np_random.integers(100)), 0
        return self._see(), {}

    def step(self, action: int) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        self.place += action + 1
        self.steps += 1
        return self._see(), float(self.place), self.steps == 6, False, {}

    def snapshot(self) -> bytes:
        return f"{self.place},{self.steps}".encode()

    def restore(self, snapshot: bytes, frames: NDArray[Any]) -> None:
        if snapshot == b"damaged":
            raise DamagedSnapshot("damaged snapshot")
        self.place, self.steps = map(int, snapshot.decode().split(","))
        assert frames[-1].tolist() == [self.place, self.steps]

    def _see(self) -> NDArray[np.float32]:
        return np.array([self.place, self.steps], np.float32)


class OneWay(Walk):
    """An environment that cannot be restored."""

    snapshot = None  # type: ignore[assignment]
    restore = None  # type: ignore[assignment]


class Fixed:
    """An agent that wants one action everywhere and finds every reward surprising."""

    def __init__(self, wanted: int = 2) -> None:
        self.wanted = wanted
        self.seen: list[NDArray[Any]] = []

    def act(self, observations: NDArray[Any]) -> NDArray[np.int64]:
        self.seen.append(observations)
        return np.full(len(observations), self.wanted)

    def td_errors(self, experience: Experience) -> NDArray[np.float64]:
        found: NDArray[np.float64] = np.abs(experience.r_t.astype(np.float64)) + 1000 * experience.s_t[:, -1, 1]
        return found


def build(
    agent: Fixed | None = None,
    epsilon: Schedule | float = 0.0,
    environments: int = 1,
    n_steps: int = 1,
    initial_priority: Any = "max",
    env: type[Walk] = Walk,
    seed: int = 0,
    ladder: bool = False,
) -> Actor:
    exploration = epsilon if isinstance(epsilon, Schedule) else constant(epsilon)
    config = Config(
        actor=ActorConfig(exploration=exploration, environments=environments, n_steps=n_steps, ladder=ladder),
        replay=ReplayConfig(initial_priority=initial_priority),
        run=RunConfig(total_steps=1000),
    )
    envs = [StackedEnv(env(), None, seed=10 * seed + i) for i in range(environments)]
    recycler = StackedEnv(env(), None, seed=999)
    return Actor(config, cast(Agent, agent or Fixed()), envs, recycler, np.random.default_rng(seed))


def steps(actor: Actor, count: int, clock: int = 0) -> list[Collected]:
    """`count` steps of an actor whose replay has taken `clock` transitions before."""
    sent = []
    for _ in range(count):
        message = actor.step()
        if message is not None:
            sent.append(message)
            clock += len(message.transitions)
            actor.set_clock(clock)
    return sent


def flat(messages: Sequence[Collected]) -> list[tuple[Any, ...]]:
    """Every transition that was sent, in plain values."""
    return [
        tuple(column[row] if isinstance(column, list) else column[row].item() for column in columns)
        for message in messages
        for columns in [tuple(getattr(message.transitions, name) for name in message.transitions.__slots__)]
        for row in range(len(message.transitions))
    ]


def test_epsilon_follows_the_clock_that_it_was_told() -> None:
    actor = build(epsilon=Schedule(1.0, 0.02, over=0.1))
    assert actor.epsilons.tolist() == [1.0]
    for t, expected in ((50, 0.51), (100, 0.02), (900, 0.02)):
        actor.set_clock(t)
        assert actor.epsilons == pytest.approx(expected)


def test_the_share_of_explored_actions_is_epsilon_and_they_are_uniform() -> None:
    actor = build(epsilon=0.4)
    taken = Counter(row[1] for row in flat(steps(actor, 4000)))
    expected = {action: 0.1 + (0.6 if action == 2 else 0.0) for action in range(ACTIONS)}
    for action, share in expected.items():
        assert abs(taken[action] / 4000 - share) < 5 * np.sqrt(share * (1 - share) / 4000)


def test_without_exploration_the_agent_decides_and_with_it_alone_it_is_not_asked() -> None:
    agent = Fixed(wanted=3)
    assert {row[1] for row in flat(steps(build(agent), 30))} == {3}
    asked = len(agent.seen)
    steps(build(agent, epsilon=1.0), 30)
    assert len(agent.seen) == asked


def test_a_transition_is_what_happened_with_the_snapshot_of_its_start() -> None:
    actor = build(Fixed(wanted=1))
    place = int(actor.envs[0].frames[0, 0])
    codec = actor.envs[0].codec
    for number, (s_tm1, a_tm1, r_t, s_t, terminal, n_steps, snapshot, *labels) in enumerate(flat(steps(actor, 6))):
        assert labels == [0, 0, number, 0]  # nobody reads the first two with the paper's choice of candidates
        assert codec.decompress_stack(s_tm1).tolist() == [[place, number]]
        assert codec.decompress_stack(s_t).tolist() == [[place + 2, number + 1]]
        assert snapshot == f"{place},{number}".encode()
        assert (a_tm1, r_t, terminal, n_steps) == (1, place + 2, number == 5, 1)
        place += 2
    assert [episode.steps for episode in actor.drain_episodes()] == [6]
    assert actor.drain_episodes() == []
    assert actor.envs[0].game_steps == 0


def test_several_environments_are_stepped_side_by_side() -> None:
    agent = Fixed()
    actor = build(agent, environments=3)
    places = [int(env.frames[0, 0]) for env in actor.envs]
    assert len(set(places)) == 3
    (message,) = steps(actor, 1)
    assert message.transitions.r_t.tolist() == [place + 3 for place in places]
    assert [batch.shape for batch in agent.seen] == [(3, 1, 2)]
    steps(actor, 5)
    assert [episode.steps for episode in actor.drain_episodes()] == [6, 6, 6]


def test_nothing_is_sent_until_n_steps_are_gone() -> None:
    actor = build(n_steps=3)
    assert actor.step() is None
    assert actor.step() is None
    sent = flat(steps(actor, 4))
    assert [row[5] for row in sent] == [3, 3, 3, 3, 2, 1]
    assert [row[4] for row in sent] == [False, False, False, True, True, True]


def test_the_actors_own_td_errors_travel_only_when_they_are_wanted() -> None:
    assert steps(build(), 1)[0].td_errors is None
    (message,) = steps(build(initial_priority="td_error"), 1)
    assert message.td_errors is not None
    assert message.td_errors.tolist() == [message.transitions.r_t[0] + 1000]


def request(actor: Actor, stored: Sequence[int], places: Sequence[tuple[int, int]] | None = None) -> Recycle:
    """Ask to enter `places` again (place 10 i after i % 5 steps), where `stored[i]` was done."""
    compress = actor.envs[0].codec.compress
    places = places or [(10 * i, i % 5) for i in range(len(stored))]
    starts = from_lists(
        s_tm1=[(compress(np.array(place, np.float32)),) for place in places],
        a_tm1=np.array(stored),
        r_t=np.zeros(len(stored), np.float32),
        s_t=[()] * len(stored),
        terminal=np.zeros(len(stored), np.bool_),
        n_steps=np.ones(len(stored), np.uint8),
        snapshots=[f"{place},{steps}".encode() for place, steps in places],
    )
    return Recycle(3, 5, 7 * np.arange(len(stored)), starts)


def test_recycling_enters_the_stored_state_and_takes_the_greedy_action() -> None:
    actor = build(Fixed(wanted=2), epsilon=1.0)  # exploration has no say here
    asked = request(actor, [0, 1, 3, 0, 1, 3])
    before = actor.save()
    answer = actor.recycle(asked)
    assert (answer.era, answer.round_number) == (3, 5)
    assert answer.identities.tolist() == [0, 7, 14, 21, 28, 35]
    recycled, codec = answer.transitions, actor.envs[0].codec
    assert recycled.a_tm1.tolist() == [2] * 6
    assert recycled.s_tm1 == asked.starts.s_tm1
    assert recycled.snapshots == asked.starts.snapshots
    assert recycled.r_t.tolist() == [10 * i + 3 for i in range(6)]
    ends = [codec.decompress_stack(end)[-1].tolist() for end in recycled.s_t]
    assert ends == [[10 * i + 3, i % 5 + 1] for i in range(6)]
    assert recycled.n_steps.tolist() == [1] * 6
    assert not recycled.terminal.any()
    assert answer.td_errors.tolist() == [10 * i + 3 + 1000 * (i % 5 + 1) for i in range(6)]
    after = actor.save()
    assert {k: v for k, v in after.facts.items() if k != "actor"} == {
        k: v for k, v in before.facts.items() if k != "actor"
    }, "the episode itself continued undisturbed"


def test_a_recycled_end_is_an_end() -> None:
    actor = build()
    answer = actor.recycle(request(actor, [0, 0], [(50, 5), (50, 2)]))
    assert answer.transitions.terminal.tolist() == [True, False]


@pytest.mark.parametrize("stored", range(ACTIONS))
def test_where_the_greedy_action_was_done_already_any_other_is_taken_alike(stored: int) -> None:
    actor = build(Fixed(wanted=stored))
    taken = Counter(actor.recycle(request(actor, [stored] * 3000)).transitions.a_tm1.tolist())
    assert taken[stored] == 0
    for other in {0, 1, 2, 3} - {stored}:
        assert abs(taken[other] / 3000 - 1 / 3) < 5 * np.sqrt(2 / 9 / 3000)


@pytest.mark.parametrize("n_steps", [1, 3])
def test_an_actor_that_is_saved_and_loaded_continues_bit_for_bit(n_steps: int) -> None:
    actor, other = (build(epsilon=Schedule(1.0, 0.0), environments=2, n_steps=n_steps, seed=seed) for seed in (1, 2))
    steps(actor, 8)
    state = actor.save()
    other.load(State(json.loads(json.dumps(state.facts)), state.arrays))
    assert other.t == actor.t
    assert flat(steps(other, 25, other.t)) == flat(steps(actor, 25, actor.t))
    assert other.drain_episodes() == actor.drain_episodes() != []
    message = request(actor, [2] * 20)
    np.testing.assert_array_equal(actor.recycle(message).transitions.a_tm1, other.recycle(message).transitions.a_tm1)


def test_steps_that_are_pending_never_run_into_the_new_game_of_an_environment_without_a_way_back() -> None:
    actor, other = (build(env=OneWay, n_steps=5, seed=seed) for seed in (1, 2))
    steps(actor, 2)
    other.load(actor.save())
    codec = other.envs[0].codec
    first = flat(steps(other, 5))[0]
    assert codec.decompress_stack(first[0])[-1, 1] == 0.0
    assert codec.decompress_stack(first[3])[-1, 1] == 5.0


def test_scores_are_of_whole_unclipped_games_over_lost_lives() -> None:
    config = replace(Config(), env=EnvConfig("Breakout"), actor=ActorConfig(exploration=constant(1.0)))
    env = make_stacked("Breakout", training=True, seed=3)
    actor = Actor(config, cast(Agent, Fixed()), [env], None, np.random.default_rng(0))
    ends, points, games = 0, 0.0, list[Episode]()
    while not games:
        (message,) = steps(actor, 1)
        ends += int(message.transitions.terminal.sum())
        points += float(message.transitions.r_t.sum())  # a brick of the lower rows counts 1, also unclipped
        games = actor.drain_episodes()
    assert ends == 5
    assert games[0].score == points
    actor.close()


def test_an_episodes_score_is_the_sum_of_the_emulators_rewards() -> None:
    config = replace(Config(), env=EnvConfig("Riverraid"), actor=ActorConfig(exploration=constant(1.0)))
    env = make_stacked("Riverraid", training=True, seed=3)
    emulator = CountedEmulator(env.env)
    env.env.reset(seed=4)  # the first game that is counted
    actor = Actor(config, cast(Agent, Fixed()), [env], None, np.random.default_rng(0))
    games: list[Episode] = []
    while not games:
        actor.step()
        games = actor.drain_episodes()
    assert games[0].score == emulator.totals[0]
    actor.close()


def test_on_a_ladder_every_environment_of_every_actor_keeps_its_own_epsilon() -> None:
    rungs: list[float] = []
    for place in range(3):
        actor = build(environments=2, ladder=True)
        actor.set_position(place, actors=3)
        steps(actor, 3)
        rungs += actor.epsilons.tolist()
    assert rungs == pytest.approx([0.4 ** (1 + 7 * i / 5) for i in range(6)])


def test_an_actor_more_than_planned_shares_a_rung() -> None:
    one, more = build(ladder=True), build(ladder=True)
    one.set_position(1, actors=4)
    more.set_position(5, actors=4)
    assert one.epsilons.tolist() == more.epsilons.tolist()


def test_a_state_that_cannot_be_re_entered_fails_alone() -> None:
    actor = build(Fixed(wanted=2))
    asked = request(actor, [0, 1, 3])
    asked.starts.snapshots[1] = b"damaged"
    answer = actor.recycle(asked)
    assert answer.identities.tolist() == [0, 14]
    assert answer.failed.tolist() == [7]
    assert len(answer.transitions) == len(answer.td_errors) == 2


def test_recycling_step_by_step_is_recycling_at_once() -> None:
    at_once, by_steps = build(seed=4), build(seed=4)
    message = request(at_once, [0, 1, 2, 3])
    recycling = by_steps.begin_recycling(message)
    answers = [recycling.advance() for _ in range(4)]
    assert answers[:3] == [None] * 3
    expected = at_once.recycle(message)
    assert answers[3] is not None
    assert answers[3].transitions.s_t == expected.transitions.s_t
    np.testing.assert_array_equal(answers[3].td_errors, expected.td_errors)


def test_the_states_of_all_candidates_are_decompressed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    actor = build(Fixed(wanted=2))
    asked = request(actor, [0, 1, 3])
    decompressed: list[int] = []
    decompress_stacks = FrameCodec.decompress_stacks

    def counted(codec: FrameCodec, stacks: Sequence[Stack]) -> NDArray[Any]:
        decompressed.append(len(stacks))
        return decompress_stacks(codec, stacks)

    monkeypatch.setattr(FrameCodec, "decompress_stacks", counted)
    actor.recycle(asked)
    assert decompressed == [3]


def test_an_environment_that_changes_the_frames_it_is_given_changes_no_td_error() -> None:
    class Scribbler(Walk):
        def restore(self, snapshot: bytes, frames: NDArray[Any]) -> None:
            super().restore(snapshot, frames)
            frames[:] = -1

    class Watcher(Fixed):
        def td_errors(self, experience: Experience) -> NDArray[np.float64]:
            self.seen.append(experience.s_tm1)
            return super().td_errors(experience)

    agent = Watcher(wanted=2)
    actor = build(agent, env=Scribbler)
    actor.recycle(request(actor, [0, 1, 3]))
    np.testing.assert_array_equal(agent.seen[-1][:, -1], [[0, 0], [10, 1], [20, 2]])
