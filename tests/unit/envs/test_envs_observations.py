"""Observations of every kind of space become frames with exactly their numbers, in Gymnasium's order."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from dpsr_apex.check import check_command
from dpsr_apex.envs.check import check_restore
from dpsr_apex.envs.make import make_stacked
from dpsr_apex.envs.observations import conversion_for
from dpsr_apex.envs.snapshot import UnusableEnvironment

USER = "tests.unit.envs.user_envs:"
PLACES = spaces.Dict(
    goal=spaces.Discrete(3, start=2),
    arm=spaces.Tuple((spaces.Box(-1, 1, (2, 2)), spaces.MultiBinary(2))),
    doors=spaces.MultiDiscrete([2, 3]),
)
PLACE = {
    "doors": np.array([1, 0]),
    "goal": 4,
    "arm": (np.array([[0.5, -1.0], [0.25, 1.0]], np.float32), np.array([1, 0], np.int8)),
}


@pytest.mark.parametrize(
    ("space", "observation", "numbers", "text"),
    [
        (spaces.Discrete(4), 2, [0, 0, 1, 0], "Discrete(4) -> 4 numbers"),
        (spaces.Discrete(1), 0, [1], "Discrete(1) -> 1 number"),
        (spaces.MultiDiscrete([2, 3]), np.array([1, 2]), [0, 1, 0, 0, 1], "MultiDiscrete([2 3]) -> 5 numbers"),
        (spaces.MultiBinary(3), np.array([1, 0, 1], np.int8), [1, 0, 1], "MultiBinary(3) -> 3 numbers"),
        (spaces.Box(0, 9, (2, 2), np.int64), [[1, 2], [3, 4]], [1, 2, 3, 4], "Box(0, 9, (2, 2), int64) -> 4 numbers"),
        (spaces.Box(0, 255, (3,), np.uint8), np.array([7, 0, 255], np.uint8), [7, 0, 255], None),
        (spaces.Box(-1, 1, ()), np.float32(0.5), [0.5], None),
        (
            PLACES,
            PLACE,
            # A Dict has the order of its space: of these keywords as they are written.
            [0, 0, 1, 0.5, -1, 0.25, 1, 1, 0, 0, 1, 1, 0, 0],
            "Dict(goal, arm, doors) -> 14 numbers",
        ),
    ],
)
def test_a_vector_has_the_numbers_of_an_observation(
    space: spaces.Space[Any], observation: Any, numbers: list[float], text: str | None
) -> None:
    conversion = conversion_for("it", space)
    vector = conversion.convert(observation)
    assert vector.dtype == np.float32
    assert vector.tolist() == numbers
    assert conversion.space.shape == vector.shape
    assert (conversion.space.low <= vector).all()
    assert (conversion.space.high >= vector).all()
    assert text is None or conversion.text == text


@pytest.mark.parametrize(
    "space",
    [
        spaces.Box(-1, 1, (4,)),
        spaces.Box(-1, 1, (4,), np.float64),
        spaces.Box(0, 255, (84, 84), np.uint8),
        spaces.Box(0, 255, (3, 84, 84), np.uint8),
        spaces.Box(0, 255, (23, 7, 7), np.uint8),
    ],
)
def test_frames_are_not_converted(space: spaces.Box) -> None:
    conversion = conversion_for("it", space)
    observation = space.sample()
    assert conversion.text == ""
    assert conversion.space is space
    assert conversion.convert(observation) is observation


def test_colours_become_planes() -> None:
    space = spaces.Box(0, 255, (6, 8, 3), np.uint8)
    image = space.sample()
    conversion = conversion_for("it", space)
    planes = conversion.convert(image)
    assert conversion.space.shape == planes.shape == (3, 6, 8)
    assert all((planes[colour] == image[:, :, colour]).all() for colour in range(3))
    assert conversion.text == "images of 6 x 8 x 3 -> 3 planes of 6 x 8"


def test_a_single_colour_becomes_a_grey_frame() -> None:
    space = spaces.Box(0, 255, (6, 8, 1), np.uint8)
    image = space.sample()
    conversion = conversion_for("it", space)
    assert conversion.space.shape == (6, 8)
    np.testing.assert_array_equal(conversion.convert(image), image[:, :, 0])
    assert conversion.text == "images of 6 x 8 x 1 -> grey frames of 6 x 8"


@pytest.mark.parametrize(
    ("space", "part"),
    [
        (spaces.Text(5), "it is Text"),
        (spaces.Sequence(spaces.Discrete(2)), "it is Sequence"),
        (spaces.Graph(spaces.Discrete(2), None), "it is Graph"),
        (spaces.Dict(a=spaces.Discrete(2), b=spaces.Dict(c=spaces.Text(5))), r"'b'\['c'\] is Text"),
        (spaces.Tuple(()), "has no numbers"),
    ],
)
def test_what_is_not_made_of_numbers_is_refused_on_one_line(space: spaces.Space[Any], part: str) -> None:
    with pytest.raises(UnusableEnvironment, match=f"^env: its observation_space [^\n]*{part}[^\n]*$"):
        conversion_for("env", space)


@pytest.mark.parametrize(
    ("space", "observation"),
    [
        (spaces.Discrete(4), -1),
        (spaces.Discrete(4), 4),
        (spaces.MultiDiscrete([2, 3]), np.array([0, 3])),
        (spaces.Box(0, 1, (2, 3)), np.zeros((3, 2))),
        (spaces.Box(0, 255, (6, 8, 3), np.uint8), np.zeros((6, 8, 3))),
        (PLACES, {"goal": 2}),
    ],
)
def test_an_observation_outside_its_space_is_not_converted(space: spaces.Space[Any], observation: Any) -> None:
    with pytest.raises((ValueError, KeyError)):
        conversion_for("it", space).convert(observation)


def test_an_environment_with_dict_observations_is_played_as_a_vector() -> None:
    env = make_stacked(USER + "Rooms", seed=0)
    assert (env.observation_shape, env.shows_pixels) == ((1, 11), False)
    for number in range(1, 9):
        env.step(1)
        assert env.frames[0, 1:].tolist() == [float(index == number) for index in range(10)]
    assert env.conversion == "Dict(place, step) -> 11 numbers"


def test_tasks_with_discrete_observations_are_one_hot() -> None:
    env = make_stacked("FrozenLake-v1", {"is_slippery": False}, seed=0)
    assert env.frames.argmax() == 0
    env.step(2)
    assert env.frames.tolist() == [[float(cell == 1) for cell in range(16)]]


def test_the_check_reports_the_conversion(capsys: pytest.CaptureFixture[str]) -> None:
    assert check_restore(USER + "Rooms", moments=20).conversion == "Dict(place, step) -> 11 numbers"
    assert check_command([USER + "Rooms", "Corridor"], moments=20) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if "->" in line]
    assert lines == [f"{USER}Rooms: Observations: Dict(place, step) -> 11 numbers"]
