"""MiniGrid: observations that show what the package's own do, and snapshots that restore exactly."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np
import pytest

from dpsr_apex.checksums import CHECKSUM_BYTES, add_checksum
from dpsr_apex.envs.check import check_restore
from dpsr_apex.envs.compression import DamagedSnapshot
from dpsr_apex.envs.make import make_env, make_stacked
from dpsr_apex.envs.minigrid import MiniGrid
from dpsr_apex.envs.snapshot import UnusableEnvironment

DOOR_KEY = "MiniGrid-DoorKey-5x5-v0"
TASKS = (  # each changes something else in its steps
    DOOR_KEY,  # a key that is carried, a door with a lock
    "MiniGrid-Dynamic-Obstacles-6x6-v0",  # random numbers in every step
    "MiniGrid-MultiRoom-N2-S4-v0",  # doors without locks
    "MiniGrid-ObstructedMaze-1Dlhb-v0",  # a key in a box, a ball in front of a door, a target by identity
    "MiniGrid-PutNear-6x6-N2-v0",  # objects that are put down
    "MiniGrid-Unlock-v0",  # success is the state of one door, by identity
)
LEFT, RIGHT, FORWARD, PICKUP, DROP, TOGGLE = range(6)
UP = 3  # direction
KINDS = ("unseen", "empty", "wall", "floor", "door", "key", "ball", "box", "goal", "lava")
COLOURS = ("red", "green", "blue", "purple", "yellow", "grey")
NO_FRAMES = np.empty(0)  # restoring needs no frames

Event = tuple[bytes, float, bool, bool]


def actions(env: MiniGrid, steps: int, seed: int) -> Iterator[int]:
    """Random actions, most of them forward, so that play reaches objects and doors."""
    random, count = np.random.default_rng(seed), env.action_space.n  # type: ignore[attr-defined]  # it is Discrete
    for _ in range(steps):
        yield FORWARD if random.random() < 0.35 else int(random.integers(count))


def follow(env: MiniGrid, steps: int, seed: int) -> Iterator[Event]:
    """Play and yield every outcome exactly; the end of an episode is followed by the frame of the reset."""
    for action in actions(env, steps, seed):
        frame, reward, terminal, truncated, _ = env.step(action)
        yield frame.tobytes(), float(reward), terminal, truncated
        if terminal or truncated:
            yield env.reset()[0].tobytes(), 0.0, False, False


def face(env: MiniGrid, cell: tuple[int, int]) -> None:
    """Put the agent below a cell, facing it."""
    env._task.agent_pos, env._task.agent_dir = (cell[0], cell[1] + 1), UP


def cell_of(env: MiniGrid, kind: str) -> tuple[int, int]:
    grid = env._task.grid
    index = next(index for index, thing in enumerate(grid.grid) if thing is not None and thing.type == kind)
    return index % grid.width, index // grid.width


def naive_planes(observation: dict[str, Any]) -> list[list[list[int]]]:
    """Cell by cell, from the package's encoding (column, row) -> (kind, colour, state)."""
    image = observation["image"].tolist()
    rows, columns = range(len(image[0])), range(len(image))

    def plane(holds: Any) -> list[list[int]]:
        return [[255 if holds(*image[x][y]) else 0 for x in columns] for y in rows]

    return [
        *(plane(lambda kind, _c, _s, n=n: kind == n) for n in range(len(KINDS))),
        *(plane(lambda kind, colour, _s, n=n: kind >= 2 and colour == n) for n in range(len(COLOURS))),
        *(plane(lambda kind, _c, state, n=n: kind == 4 and state == n) for n in range(3)),
        *(plane(lambda *_, n=n: observation["direction"] == n) for n in range(4)),
    ]


@pytest.mark.parametrize("task", TASKS)
def test_steps_match_the_package_with_the_same_seed(task: str) -> None:
    ours, theirs = MiniGrid(task), gymnasium.make(task, disable_env_checker=True).unwrapped
    np.testing.assert_array_equal(ours.reset(seed=3)[0], naive_planes(theirs.reset(seed=3)[0]))
    for action in actions(ours, 150, seed=0):
        seen, *outcome, _ = ours.step(action)
        observation, *expected, _ = theirs.step(action)
        assert outcome == expected
        np.testing.assert_array_equal(seen, naive_planes(observation))
        if outcome[1] or outcome[2]:
            np.testing.assert_array_equal(ours.reset()[0], naive_planes(theirs.reset()[0]))


def test_the_numbers_of_kinds_and_colours_are_those_of_the_package() -> None:
    from minigrid.core import constants

    assert [constants.OBJECT_TO_IDX[kind] for kind in KINDS] == list(range(len(KINDS)))
    assert [constants.COLOR_TO_IDX[colour] for colour in COLOURS] == list(range(len(COLOURS)))
    assert constants.OBJECT_TO_IDX.keys() - {*KINDS} == {"agent"}


def test_observation_and_action_spaces() -> None:
    env = MiniGrid(DOOR_KEY)
    frame = env.reset(seed=0)[0]
    assert env.observation_space.shape == frame.shape == (23, 7, 7)
    assert frame.dtype == np.uint8
    assert frame.flags.c_contiguous
    assert set(np.unique(frame)) == {0, 255}
    assert env.action_names == ["left", "right", "forward", "pickup", "drop", "toggle", "done"]
    assert make_stacked(DOOR_KEY).observation_shape == (1, 23, 7, 7)
    assert MiniGrid("MiniGrid-Dynamic-Obstacles-5x5-v0").action_names == ["left", "right", "forward"]
    assert MiniGrid(DOOR_KEY, agent_view_size=5).reset()[0].shape == (23, 5, 5)


@pytest.mark.parametrize("task", TASKS)
def test_every_state_restores_exactly_including_later_resets(task: str) -> None:
    env, twin = (MiniGrid(task, max_steps=60) for _ in range(2))
    env.reset(seed=1)
    twin.reset(seed=2)
    for moment in range(40):
        snapshot = env.snapshot()
        list(follow(twin, 1 + moment % 20, seed=1_000 + moment))  # so that the twin is in another state
        twin.restore(snapshot, NO_FRAMES)
        assert twin.snapshot() == snapshot
        assert twin._task.grid == env._task.grid
        assert list(follow(twin, 25, seed=moment)) == list(follow(env, 25, seed=moment))
        assert twin.snapshot() == env.snapshot()


@pytest.mark.parametrize("task", TASKS)
def test_the_check_passes(task: str) -> None:
    result = check_restore(task, moments=60, max_steps=1_500)
    assert result.passed, result.problem


def test_the_key_opens_the_door_after_a_restore() -> None:
    env, twin = MiniGrid(DOOR_KEY), MiniGrid(DOOR_KEY)
    env.reset(seed=4)
    face(env, cell_of(env, "key"))
    env.step(PICKUP)
    face(env, cell_of(env, "door"))
    twin.restore(env.snapshot(), NO_FRAMES)
    assert twin._task.carrying.type == "key"
    assert "key" not in {thing.type for thing in twin._task.grid.grid if thing is not None}
    assert twin._task.grid.get(*cell_of(twin, "door")).is_locked
    twin.step(TOGGLE)
    assert twin._task.grid.get(*cell_of(twin, "door")).is_open
    env.restore(twin.snapshot(), NO_FRAMES)
    assert env._task.grid.get(*cell_of(env, "door")).is_open


def test_what_was_in_an_opened_box_is_restored() -> None:
    env, twin = (MiniGrid("MiniGrid-ObstructedMaze-1Dlhb-v0") for _ in range(2))
    env.reset(seed=4)
    face(env, cell_of(env, "box"))
    closed = env.snapshot()
    env.step(TOGGLE)
    twin.restore(env.snapshot(), NO_FRAMES)
    assert cell_of(twin, "key") == cell_of(env, "key")
    twin.step(PICKUP)
    assert twin._task.carrying.type == "key"
    twin.restore(closed, NO_FRAMES)
    assert twin._task.carrying is None
    assert cell_of(twin, "box") == cell_of(env, "key")


def test_a_target_that_a_task_compares_by_identity_is_recognized_after_a_restore() -> None:
    env, twin = (MiniGrid("MiniGrid-Unlock-v0") for _ in range(2))
    env.reset(seed=4)
    door, key = cell_of(env, "door"), cell_of(env, "key")
    face(env, key)
    env.step(PICKUP)
    env._task.agent_pos, env._task.agent_dir = (door[0] - 1, door[1]), 0
    twin.restore(env.snapshot(), NO_FRAMES)
    assert twin.step(TOGGLE)[1:3] == env.step(TOGGLE)[1:3]
    assert env._task.door.is_open
    assert twin._task.door.is_open


@pytest.mark.parametrize("task", TASKS)
def test_a_snapshot_is_small(task: str) -> None:
    env = MiniGrid(task)
    env.reset(seed=5)
    assert len(env.snapshot()) < 150


def damaged(snapshot: bytes) -> dict[str, bytes]:
    flipped = {f"bit of byte {index}": flip(snapshot, index) for index in range(len(snapshot))}
    return {"empty": b"", "truncated": snapshot[:-1], "extended": snapshot + b"\0", **flipped}


def flip(snapshot: bytes, index: int) -> bytes:
    return snapshot[:index] + bytes((snapshot[index] ^ 1,)) + snapshot[index + 1 :]


def test_a_damaged_snapshot_is_refused_and_leaves_the_task_unchanged() -> None:
    env = MiniGrid(DOOR_KEY)
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


@pytest.mark.parametrize("other", TASKS[1:])
def test_a_snapshot_of_another_task_is_refused(other: str) -> None:
    with pytest.raises(DamagedSnapshot):
        MiniGrid(other).restore(MiniGrid(DOOR_KEY).snapshot(), NO_FRAMES)


HEADER_END = 87  # then the objects of DoorKey, three bytes each: cell (2), state (1)


@pytest.mark.parametrize(
    ("start", "wrong"),
    [
        (0, b"\0" * 4),  # task
        (4, b"\0" * 37),  # generator before the reset
        (41, b"\0" * 37),  # generator
        (82, b"\5"),  # column
        (83, b"\xff"),  # row
        (84, b"\4"),  # direction
        (85, b"\2\0"),  # carried object, of two
        (HEADER_END, b"\0\0"),  # an object in a wall
        (HEADER_END, b"\x19\0"),  # an object outside the grid
        (HEADER_END, b"\7\0\0\7\0"),  # two objects in one cell
        (HEADER_END, None),  # no objects
        (40, None),  # half a header
    ],
)
def test_invalid_content_with_a_valid_checksum_is_refused(start: int, wrong: bytes | None) -> None:
    env = MiniGrid(DOOR_KEY)
    env.reset(seed=0)
    body = env.snapshot()[:-CHECKSUM_BYTES]
    content = body[:start] if wrong is None else body[:start] + wrong + body[start + len(wrong) :]
    assert content != body
    with pytest.raises(DamagedSnapshot):
        env.restore(add_checksum(content), NO_FRAMES)
    list(follow(env, 20, seed=0))  # still usable


def test_the_time_limit_is_max_steps() -> None:
    env = MiniGrid(DOOR_KEY, max_steps=12)
    env.reset(seed=0)
    assert [env.step(LEFT)[3] for _ in range(12)] == [False] * 11 + [True]


def test_the_state_key_has_agent_direction_carried_object_and_doors() -> None:
    env, twin = MiniGrid(DOOR_KEY), MiniGrid(DOOR_KEY)
    env.reset(seed=4)
    key, door = cell_of(env, "key"), cell_of(env, "door")
    keys = []
    for cell, action in ((key, PICKUP), (door, TOGGLE)):
        face(env, cell)
        keys.append(env.state_key())
        env.step(action)
        keys.append(env.state_key())
    env.step(LEFT)
    keys.append(env.state_key())
    assert len(set(keys)) == len(keys)
    twin.restore(env.snapshot(), NO_FRAMES)
    assert twin.state_key() == keys[-1]


def test_the_state_key_ignores_time() -> None:
    env = MiniGrid(DOOR_KEY)
    env.reset(seed=4)
    before = env.state_key()
    env.step(LEFT)
    env.step(RIGHT)
    assert env.state_key() == before


def test_fingerprints_differ_between_tasks_only() -> None:
    assert MiniGrid(DOOR_KEY).fingerprint == MiniGrid(DOOR_KEY).fingerprint
    assert len({MiniGrid(task).fingerprint for task in TASKS}) == len(TASKS)


def test_render_returns_a_picture() -> None:
    env = MiniGrid(DOOR_KEY)
    env.reset(seed=0)
    picture = env.render()
    assert isinstance(picture, np.ndarray)
    assert picture.dtype == np.uint8
    assert picture.shape == (160, 160, 3)


@pytest.mark.parametrize(
    ("name", "arguments", "reason"),
    [
        ("MiniGrid-DoorKey-4x5-v0", {}, "cannot be created"),
        (DOOR_KEY, {"max_steps": 0}, "max_steps must be an integer >= 1"),
        (DOOR_KEY, {"max_episode_steps": 10}, "env.arguments.max_steps"),
        (DOOR_KEY, {"agent_view_size": 4}, "rejected its arguments"),
        (DOOR_KEY, {"keys": 2}, "keys"),
    ],
)
def test_invalid_arguments_are_refused(name: str, arguments: dict[str, Any], reason: str) -> None:
    with pytest.raises(UnusableEnvironment, match=f"^{name}: .*{reason}"):
        make_env(name, arguments)


def test_without_the_package_the_error_names_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "minigrid", None)
    monkeypatch.delitem(sys.modules, "minigrid.core", raising=False)
    monkeypatch.delitem(sys.modules, "dpsr_apex.envs.minigrid")
    with pytest.raises(
        UnusableEnvironment, match=r"^MiniGrid: the package minigrid is not installed.*pip install minigrid$"
    ):
        make_env(DOOR_KEY)
