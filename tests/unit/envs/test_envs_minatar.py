"""MinAtar: steps equal to the package's own, and snapshots that restore exactly."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from gymnasium.utils import seeding
from numpy.typing import NDArray

from dpsr_apex.envs.compression import DamagedSnapshot
from dpsr_apex.envs.make import make_env
from dpsr_apex.envs.minatar import GAMES, MinAtar
from dpsr_apex.envs.snapshot import UnusableEnvironment

ACTIONS = {"Asterix": 5, "Breakout": 3, "Freeway": 3, "Seaquest": 6, "SpaceInvaders": 4}
PLANES = {"Asterix": 4, "Breakout": 4, "Freeway": 7, "Seaquest": 10, "SpaceInvaders": 6}
NO_FRAMES = np.empty(0)  # restoring needs no frames

Event = tuple[bytes, float, bool, bool]


def actions(count: int, steps: int, seed: int) -> Iterator[int]:
    """Random actions, each repeated for a while, so that play reaches the edges too."""
    random, action = np.random.default_rng(seed), 0
    for _ in range(steps):
        if random.random() < 0.4:
            action = int(random.integers(count))
        yield action


def follow(env: MinAtar, steps: int, seed: int) -> Iterator[Event]:
    """Play and yield every outcome exactly; the end of an episode is followed by the frame of the reset."""
    for action in actions(int(env.action_space.n), steps, seed):  # type: ignore[attr-defined]  # it is Discrete
        frame, reward, terminal, truncated, _ = env.step(action)
        yield frame.tobytes(), reward, terminal, truncated
        if terminal or truncated:
            yield env.reset()[0].tobytes(), 0.0, False, False


def as_planes(state: NDArray[np.bool_]) -> NDArray[np.uint8]:
    return np.stack([255 * state[:, :, plane].astype(np.uint8) for plane in range(state.shape[2])])


@pytest.mark.parametrize("game", GAMES)
@pytest.mark.parametrize(("sticky", "ramping"), [(0.0, True), (0.25, False)])
def test_steps_match_the_package_with_the_same_random_numbers(game: str, sticky: float, ramping: bool) -> None:
    ours = MinAtar(game, sticky_action_prob=sticky, difficulty_ramping=ramping)
    import minatar  # loads plotting libraries, which takes seconds

    theirs = minatar.Environment(GAMES[game], sticky, ramping)
    theirs.random = theirs.env.random = np.random.RandomState(seeding.np_random(3)[0].bit_generator)
    seen = ours.reset(seed=3)[0]
    theirs.reset()
    np.testing.assert_array_equal(seen, as_planes(theirs.state()))
    ends = 0
    for action in actions(ACTIONS[game], 2_600, seed=0):
        seen, reward, terminal, truncated, _ = ours.step(action)
        assert (reward, terminal) == theirs.act(theirs.minimal_action_set()[action])
        np.testing.assert_array_equal(seen, as_planes(theirs.state()))
        if terminal or truncated:
            ends += 1
            seen = ours.reset()[0]
            theirs.reset()
            np.testing.assert_array_equal(seen, as_planes(theirs.state()))
    assert ends


@pytest.mark.parametrize("game", GAMES)
def test_observation_and_action_spaces(game: str) -> None:
    env = MinAtar(game)
    frame = env.reset(seed=0)[0]
    assert env.observation_space.shape == frame.shape == (PLANES[game], 10, 10)
    assert frame.dtype == np.uint8
    assert frame.flags.c_contiguous
    assert set(np.unique(frame)) == {0, 255}
    assert env.action_space.n == ACTIONS[game]  # type: ignore[attr-defined]  # it is Discrete


@pytest.mark.parametrize("game", GAMES)
@pytest.mark.parametrize("sticky", [0.0, 0.25])
def test_every_state_restores_exactly_including_later_resets(game: str, sticky: float) -> None:
    env, twin = (MinAtar(game, sticky_action_prob=sticky, max_steps=400) for _ in range(2))
    env.reset(seed=1)
    twin.reset(seed=2)
    for moment in range(30):
        snapshot = env.snapshot()
        list(follow(twin, 1 + moment % 40, seed=1_000 + moment))  # so that the twin is in another state
        twin.restore(snapshot, NO_FRAMES)
        assert twin.snapshot() == snapshot
        assert list(follow(twin, 60, seed=moment)) == list(follow(env, 60, seed=moment))
        assert twin.snapshot() == env.snapshot()


@pytest.mark.parametrize("game", GAMES)
def test_a_restored_game_has_all_variables_of_the_original(game: str) -> None:
    env, twin = MinAtar(game), MinAtar(game)
    env.reset(seed=1)
    list(follow(env, 77, seed=0))
    # Change every variable from its initial value: random play changes only some, and a missing one must be noticed.
    for name, value in vars(env._game).items():
        if isinstance(value, int) and name != "ramping":  # a constructor argument
            setattr(env._game, name, type(value)(1 - value))
    twin.restore(env.snapshot(), NO_FRAMES)
    original, restored = (dict(vars(one._game)) for one in (env, twin))
    assert original.pop("random") is not restored.pop("random")
    np.testing.assert_equal(restored, original)
    kinds = {name: value.dtype for name, value in original.items() if isinstance(value, np.ndarray)}
    assert {name: restored[name].dtype for name in kinds} == kinds


@pytest.mark.parametrize("game", GAMES)
def test_a_snapshot_is_small(game: str) -> None:
    env = MinAtar(game)
    env.reset(seed=5)
    sizes = []
    for action in actions(ACTIONS[game], 500, seed=1):
        if env.step(action)[2]:
            env.reset()
        sizes.append(len(env.snapshot()))
    assert np.mean(sizes) < 150


def test_taking_a_snapshot_does_not_change_the_game() -> None:
    with_snapshots, without = MinAtar("Asterix"), MinAtar("Asterix")
    with_snapshots.reset(seed=1)
    without.reset(seed=1)
    for one, other in zip(follow(with_snapshots, 300, seed=0), follow(without, 300, seed=0), strict=True):
        with_snapshots.snapshot()
        assert one == other


def damaged(snapshot: bytes) -> dict[str, bytes]:
    flipped = {f"bit of byte {index}": flip(snapshot, index) for index in range(len(snapshot))}
    return {"empty": b"", "truncated": snapshot[:-1], "extended": snapshot + b"\0", **flipped}


def flip(snapshot: bytes, index: int) -> bytes:
    return snapshot[:index] + bytes((snapshot[index] ^ 1,)) + snapshot[index + 1 :]


@pytest.mark.parametrize("game", GAMES)
def test_a_damaged_snapshot_is_refused_and_leaves_the_game_unchanged(game: str) -> None:
    env = MinAtar(game)
    env.reset(seed=0)
    list(follow(env, 30, seed=0))
    snapshot = env.snapshot()
    for damage, wrong in damaged(snapshot).items():
        try:
            env.restore(wrong, NO_FRAMES)
        except DamagedSnapshot:
            assert env.snapshot() == snapshot
        else:
            pytest.fail(f"{damage}: accepted as a snapshot")


@pytest.mark.parametrize("taken_in", GAMES)
@pytest.mark.parametrize("restored_in", GAMES)
def test_a_snapshot_of_another_game_is_refused(taken_in: str, restored_in: str) -> None:
    if taken_in == restored_in:
        return
    with pytest.raises(DamagedSnapshot):
        MinAtar(restored_in).restore(MinAtar(taken_in).snapshot(), NO_FRAMES)


@pytest.mark.parametrize(
    "content", [b"", b"\0" * 60, b"\0" * 42 + b"[1]", b"\0" * 42 + b"7", b"\0" * 42 + b'["zz"]', b"\0" * 42 + b"\xff"]
)
def test_invalid_content_with_a_valid_checksum_is_refused(content: bytes) -> None:
    env = MinAtar("Breakout")
    before = env.snapshot()
    with pytest.raises(DamagedSnapshot):
        env.restore(env._codec.compress(content), NO_FRAMES)
    assert env.snapshot() == before


@pytest.mark.parametrize("game", GAMES)
def test_the_time_limit_truncates_the_episode(game: str) -> None:
    env = MinAtar(game, max_steps=12)
    env.reset(seed=0)
    cuts = [truncated for _, _, _, truncated in follow(env, 12, seed=3)]
    assert cuts[:12] == [False] * 11 + [True]


def test_fingerprints_differ_between_games_only() -> None:
    assert MinAtar("Breakout").fingerprint == MinAtar("Breakout").fingerprint
    assert len({MinAtar(game).fingerprint for game in GAMES}) == len(GAMES)


@pytest.mark.parametrize("game", GAMES)
def test_render_shows_every_plane_in_its_own_colour(game: str) -> None:
    env = MinAtar(game)
    env.reset(seed=0)
    list(follow(env, 30, seed=0))
    picture, planes = env.render(), env._planes()
    assert picture.shape == (160, 160, 3)
    assert picture.dtype == np.uint8
    colours = [tuple(colour) for colour in env._colours]
    assert len({*colours, tuple(picture.min(axis=(0, 1)))}) == len(colours) + 1
    for row, column in np.ndindex(10, 10):
        cell = picture[16 * row : 16 * row + 16, 16 * column : 16 * column + 16].reshape(-1, 3)
        here = np.flatnonzero(planes[:, row, column])
        assert {tuple(pixel) for pixel in cell} == {colours[here[-1]] if len(here) else (16, 18, 24)}


@pytest.mark.parametrize(
    ("name", "arguments", "reason"),
    [
        ("MinAtar/Pong", {}, "no such game. Choose one of Asterix, Breakout"),
        ("MinAtar/Breakout", {"sticky_action_prob": 2.0}, "from 0 to 1"),
        ("MinAtar/Breakout", {"max_steps": 0}, "max_steps must be an integer >= 1"),
        ("MinAtar/Breakout", {"paddles": 2}, r"env\.arguments\.paddles"),
    ],
)
def test_invalid_arguments_are_refused(name: str, arguments: dict[str, Any], reason: str) -> None:
    with pytest.raises(UnusableEnvironment, match=f"^{name}: .*{reason}"):
        make_env(name, arguments)


def test_without_the_package_the_error_names_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "minatar", None)
    monkeypatch.delitem(sys.modules, "dpsr_apex.envs.minatar")
    with pytest.raises(
        UnusableEnvironment, match=r"^MinAtar: the package minatar is not installed.*pip install minatar$"
    ):
        make_env("MinAtar/Breakout")
