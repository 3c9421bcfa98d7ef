from __future__ import annotations

from typing import Any, NamedTuple

import ale_py
import gymnasium
import numpy as np
import pytest
from gymnasium.utils import seeding
from gymnasium.wrappers import AtariPreprocessing

from dpsr_apex.checksums import CHECKSUM_BYTES
from dpsr_apex.envs.atari import KEYFRAME_STEPS, Atari
from dpsr_apex.envs.compression import DamagedSnapshot
from dpsr_apex.envs.make import make_stacked
from dpsr_apex.envs.stacked import StackedEnv
from dpsr_apex.replay.transitions import Stack
from tests.unit.envs.counted_emulator import CountedEmulator

GAMES = ("Breakout", "Qbert", "MsPacman", "SpaceInvaders", "Zaxxon", "Riverraid", "KungFuMaster")
NO_FRAMES = np.zeros(0)


class Moment(NamedTuple):
    snapshot: bytes
    stack: Stack
    played: list[int]  # every action since the start


def step_or_reset(env: StackedEnv, action: int) -> bool:
    """Take one step, reset at the end of an episode, and return True if a life was lost."""
    step = env.step(action)
    if step.terminal or step.truncated:
        env.reset()
    return step.terminal and not step.game_over


def moments_of(game: str) -> list[Moment]:
    """Snapshots at the start, after 40 steps, and directly before and after a lost life."""
    env = make_stacked(game, seed=7)
    random = np.random.default_rng(4)  # loses a life early in all games
    played: list[int] = []
    moments: list[Moment] = []
    lost = 0
    while lost < 1 and len(played) < 1500:
        before = Moment(env.snapshot(), env.stack, played.copy())
        if len(played) in (0, 40):
            moments.append(before)
        played.append(int(random.integers(env.actions)))
        if step_or_reset(env, played[-1]):
            lost += 1
            moments += [before, Moment(env.snapshot(), env.stack, played.copy())]
    assert lost == 1
    return moments


@pytest.mark.parametrize("game", GAMES)
def test_a_recycled_transition_equals_one_from_an_emulator_played_to_the_same_state(game: str) -> None:
    recycler = make_stacked(game, seed=1)
    for moment in moments_of(game):
        played = make_stacked(game, seed=7)
        for action in moment.played:
            step_or_reset(played, action)
        assert played.stack == moment.stack
        another_action = len(moment.played) % played.actions
        recycler.restore(moment.snapshot, moment.stack)
        assert recycler.step(another_action) == played.step(another_action)
        np.testing.assert_array_equal(recycler.frames, played.frames)
        assert recycler.stack == played.stack


@pytest.mark.parametrize("game", ["MsPacman", "Freeway"])
def test_frames_and_scores_match_gymnasiums_atari_preprocessing(game: str) -> None:
    gymnasium.register_envs(ale_py)
    theirs = AtariPreprocessing(gymnasium.make(f"{game}NoFrameskip-v4"), noop_max=0, frame_skip=4)
    theirs.reset()
    for _ in range(int(seeding.np_random(11)[0].integers(1, 31))):
        theirs.unwrapped.ale.act(0)  # type: ignore[attr-defined]
    ours = Atari(game, training=False)
    ours.reset(seed=11)
    random = np.random.default_rng(0)
    for _ in range(200):
        action = int(random.integers(ours.action_space.n))  # type: ignore[attr-defined] # Discrete
        frame, reward, terminal, truncated, info = ours.step(action)
        their_frame, their_reward, their_terminal, their_truncated, _ = theirs.step(action)
        np.testing.assert_array_equal(frame, their_frame)
        assert (reward, info["game_over"], truncated) == (their_reward, their_terminal, their_truncated)
        if terminal:
            np.testing.assert_array_equal(ours.reset()[0], theirs.step(0)[0])  # the no-op that starts the next life


def play_a_game(env: Atari, seed: int) -> list[tuple[float, bool, bool, dict[str, Any]]]:
    env.reset(seed=seed)
    random = np.random.default_rng(seed)
    steps: list[tuple[float, bool, bool, dict[str, Any]]] = []
    while not steps or not steps[-1][-1]["game_over"]:
        steps.append(env.step(int(random.integers(env.action_space.n)))[1:])  # type: ignore[attr-defined] # Discrete
        _, terminal, truncated, info = steps[-1]
        if (terminal or truncated) and not info["game_over"]:
            env.reset()
    return steps


def test_training_clips_rewards_and_ends_the_episode_with_every_life() -> None:
    steps = play_a_game(Atari("Qbert"), seed=0)
    assert {reward for reward, *_ in steps} <= {-1.0, 0.0, 1.0}
    assert max(info["score"] for *_, info in steps) == 25.0
    assert sum(terminal for _, terminal, *_ in steps) == 4


def test_evaluation_plays_the_same_games_with_unclipped_rewards() -> None:
    steps = play_a_game(Atari("Qbert", training=False), seed=0)
    assert all(reward == info["score"] for reward, *_, info in steps)
    trained = play_a_game(Atari("Qbert"), seed=0)
    assert [step[1:] for step in steps] == [step[1:] for step in trained]


def test_after_a_lost_life_reset_continues_the_game_with_fire() -> None:
    env = Atari("Breakout")
    env.reset(seed=0)
    ended = False
    while not ended:
        _, _, ended, _, info = env.step(0)
    assert not info["game_over"]
    frame, info = env.reset()
    assert (info["lives"], info["new_game"]) == (4, False)
    moving = [frame, *(env.step(0)[0] for _ in range(2))]
    assert (moving[1] != moving[2]).any()  # the ball moves


def test_starting_the_next_life_takes_a_no_op_fire_and_the_action_after_it() -> None:
    env, plain = Atari("Breakout", training=False), Atari("Breakout", training=False)
    env.reset(seed=0)
    plain.reset(seed=0)
    ended = False
    while not ended:
        frame, _, ended, _, _ = env.step(0)
        for _ in range(4):
            plain._ale.act(0)
    screen = env.render()
    np.testing.assert_array_equal(screen, plain.render())  # of the lost life, not of the next one
    assert (env.reset()[0] != frame).any()
    for action in (ale_py.Action.NOOP, *plain._start_actions):
        for _ in range(4):
            plain._ale.act(action)
    np.testing.assert_array_equal(env.render(), plain.render())
    assert env._ale.getEpisodeFrameNumber() == plain._ale.getEpisodeFrameNumber()


@pytest.mark.parametrize("game", ["Riverraid", "Krull", "Breakout"])
def test_a_score_is_the_sum_of_the_emulators_rewards(game: str) -> None:
    env = Atari(game, training=False)
    emulator = CountedEmulator(env)
    scores = [sum(info["score"] for *_, info in play_a_game(env, seed)) for seed in range(3)]
    assert scores == emulator.totals


def test_rewards_of_the_start_of_the_next_life_belong_to_no_transition() -> None:
    steps = play_a_game(Atari("Riverraid", training=False), seed=0)
    own = [info["score"] - reward for reward, *_, info in steps]
    assert sum(own) > 0
    assert all(terminal for (_, terminal, *_), extra in zip(steps, own, strict=True) if extra)


UP = 2  # straight ahead in Riverraid: with seed 0, the first life is lost at frame 314


@pytest.mark.parametrize("max_frames", [315, 320, 326])
def test_a_game_that_ends_while_the_next_life_starts_is_over(max_frames: int) -> None:
    env = Atari("Riverraid", max_frames=max_frames)
    env.reset(seed=0)
    ended = False
    while not ended:
        _, _, ended, truncated, info = env.step(UP)
    assert (info["game_over"], truncated) == (True, False)
    assert env._ale.getEpisodeFrameNumber() == max_frames
    _, info = env.reset()
    assert (info["new_game"], info["lives"]) == (True, 4)


def test_a_snapshot_of_a_lost_life_continues_with_the_next_one() -> None:
    env, keyed, restored = Atari("Riverraid"), Atari("Riverraid"), Atari("Riverraid")
    for one in (env, keyed):
        one.reset(seed=0)
    ended = False
    while not ended:
        env.snapshot()  # a keyframe at every eighth step
        ended = env.step(UP)[2]
        assert keyed.step(UP)[2] == ended
    next_frame, info = env.reset()
    following = [env.step(action)[0] for action in (0, 1, 2)]
    first_keyframe = keyed.snapshot()  # of the state after the last step
    restored.reset(seed=9)
    restored.restore(first_keyframe, NO_FRAMES)
    assert restored.snapshot() == first_keyframe
    frame, restored_info = restored.reset()
    np.testing.assert_array_equal(frame, next_frame)
    assert restored_info == info
    np.testing.assert_array_equal([restored.step(action)[0] for action in (0, 1, 2)], following)


def test_reset_with_a_seed_starts_a_reproducible_new_game() -> None:
    env = Atari("Breakout")
    env.reset(seed=3)
    first = env.snapshot()
    while not env.step(0)[2]:
        pass
    frame, info = env.reset(seed=3)
    other = Atari("Breakout")
    np.testing.assert_array_equal(frame, other.reset(seed=3)[0])
    assert info["lives"] == 5
    assert other.snapshot() == first


@pytest.mark.parametrize("game", GAMES)
def test_a_cached_start_equals_a_played_start(game: str) -> None:
    reused, fresh = Atari(game), Atari(game)
    random = np.random.default_rng(0)
    reused.reset(seed=5)
    for action in random.integers(reused.action_space.n, size=30):  # type: ignore[attr-defined] # Discrete
        reused.step(int(action))
    first, info = reused.reset(seed=5)
    expected, expected_info = fresh.reset(seed=5)
    np.testing.assert_array_equal(first, expected)
    assert (info, reused.snapshot()) == (expected_info, fresh.snapshot())
    first[:] = 0  # it belongs to the caller
    for action in random.integers(reused.action_space.n, size=30):  # type: ignore[attr-defined] # Discrete
        frame, *rest = reused.step(int(action))
        expected, *expected_rest = fresh.step(int(action))
        np.testing.assert_array_equal(frame, expected)
        assert rest == expected_rest
    np.testing.assert_array_equal(reused.reset(seed=5)[0], Atari(game).reset(seed=5)[0])


def test_an_evaluation_renders_the_first_screen_of_every_game() -> None:
    env = Atari("Breakout", training=False)
    env.reset(seed=5)
    first = env.render()
    for _ in range(20):
        env.step(2)
    assert (env.render() != first).any()
    env.reset(seed=5)
    np.testing.assert_array_equal(env.render(), first)


def test_no_ops_are_between_1_and_30() -> None:
    env = Atari("MsPacman")
    env.reset(seed=0)
    seen = set()
    for _ in range(150):
        env.reset()
        seen.add(env._ale.getEpisodeFrameNumber())
    assert (min(seen), max(seen)) == (1, 30)


def test_the_time_limit_truncates_the_episode() -> None:
    env = Atari("Breakout", training=False, max_frames=400)
    steps = play_a_game(env, seed=0)
    assert steps[-1][1:3] == (False, True)
    assert env._ale.getEpisodeFrameNumber() == 400
    with pytest.raises(ValueError, match="max_frames"):
        Atari("Breakout", max_frames=10)


def test_a_damaged_snapshot_never_reaches_the_emulator() -> None:
    env = Atari("Breakout")
    env.reset(seed=0)
    good = env.snapshot()
    other_game = Atari("Pong")
    other_game.reset(seed=0)
    for damaged in (good[:-1], good[:30] + bytes((good[30] ^ 8,)) + good[31:], b"", other_game.snapshot()):
        with pytest.raises(DamagedSnapshot):
            env.restore(damaged, NO_FRAMES)
    assert env.snapshot() == good


def test_between_keyframes_a_snapshot_is_the_last_keyframe_plus_actions() -> None:
    env, other = Atari("Breakout"), Atari("Breakout")
    env.reset(seed=0)
    other.reset(seed=1)
    first = env.snapshot()
    for action in (3, 3, 2):
        env.step(action)
    later = env.snapshot()
    assert later[4:-CHECKSUM_BYTES] == first[1:-CHECKSUM_BYTES]
    for damaged in (later[:2] + b"\x02" + later[3:], later[:4], later[:7]):
        with pytest.raises(DamagedSnapshot):
            other.restore(damaged, NO_FRAMES)
    other.restore(later, NO_FRAMES)
    assert other.snapshot() == later
    np.testing.assert_array_equal(other.step(1)[0], env.step(1)[0])


def test_the_start_of_a_game_does_not_depend_on_earlier_games() -> None:
    """Otherwise the emulator's own random generator would advance, and snapshots would no longer compress well."""
    env = Atari("Breakout")
    env.reset(seed=0)
    first = env.snapshot()
    for _ in range(3):
        env.reset()
    env.reset(seed=0)
    assert env.snapshot() == first


def test_render_returns_the_screen_in_colour() -> None:
    env = Atari("Breakout")
    env.reset(seed=0)
    assert env.render().shape == (210, 160, 3)


def test_it_is_known_whether_the_screen_is_that_of_the_restored_state() -> None:
    env, fresh = (make_stacked("Breakout", seed=7) for _ in range(2))
    emulator: Any = fresh.env
    screens, snapshots = [], []
    for number in range(40):
        screens.append(env.render())
        snapshots.append((env.snapshot(), env.stack))
        env.step(number % env.actions)
    known = []
    for screen, (snapshot, stack) in zip(screens[1:], snapshots[1:], strict=True):
        fresh.restore(snapshot, stack)
        known.append(emulator.screen_is_current)
        assert not known[-1] or np.array_equal(fresh.render(), screen)
    assert known == [number % KEYFRAME_STEPS != 0 for number in range(1, 40)]
    fresh.step(0)
    assert emulator.screen_is_current
