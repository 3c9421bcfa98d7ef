"""The sheet: a row for each kind, real pictures in it, and a file that is whole or not there."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from dpsr_apex.envs.stacked import StackedEnv
from dpsr_apex.inspection import InspectionError
from dpsr_apex.inspection.moments import Kind, Moment
from dpsr_apex.inspection.sheet import draw_sheet, ensure_drawable, sheet_of
from tests.unit.envs.user_envs import Good
from tests.unit.inspection.played import cartpole, some_moments


@pytest.fixture(scope="module")
def moments() -> list[Moment]:
    return some_moments(cartpole(), 20)


def sheet(moments: list[Moment], env: StackedEnv) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    return np.asarray(sheet_of("a run", [Kind("some", "of them", moments)], env))


def test_more_transitions_than_fit_in_a_line_go_into_the_next(moments: list[Moment]) -> None:
    eight, nine, sixteen, none = (sheet(moments[:count], cartpole()) for count in (8, 9, 16, 0))
    assert eight.shape[1] == nine.shape[1] == sixteen.shape[1]
    assert eight.shape[0] < nine.shape[0] == sixteen.shape[0]
    assert none.shape[0] < eight.shape[0]


def test_another_transition_gives_another_picture(moments: list[Moment]) -> None:
    env = cartpole()
    np.testing.assert_array_equal(sheet(moments[:2], env), sheet(moments[:2], env))
    assert (sheet(moments[:2], env) != sheet(moments[1:3], env)).any()


def test_vectors_are_drawn_by_the_environment_itself_or_as_bars(moments: list[Moment]) -> None:
    drawn = sheet(moments[:1], cartpole())
    assert (drawn == (202, 152, 101)).all(axis=2).any()  # the colour of the pole
    damaged = [moment._replace(snapshot=b"") for moment in moments[:1]]
    assert (sheet(damaged, cartpole()) == (16, 18, 24)).all(axis=2).any()  # the ground of bars
    walk = StackedEnv(Good(), 1, seed=0)
    assert (sheet(some_moments(walk, 3), walk) == (16, 18, 24)).all(axis=2).any()


def test_the_file_is_a_picture(moments: list[Moment], tmp_path: Path) -> None:
    path = tmp_path / "sheet.png"
    draw_sheet(path, "a run", [Kind("some", "of them", moments)], cartpole())
    with Image.open(path) as picture:
        assert picture.format == "PNG"
    assert list(tmp_path.iterdir()) == [path]


def test_a_path_that_cannot_be_drawn_to_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InspectionError, match=r"written as \.png, not as \.jpg"):
        ensure_drawable(tmp_path / "sheet.jpg")
    with pytest.raises(InspectionError, match="does not exist"):
        ensure_drawable(tmp_path / "nowhere" / "sheet.png")
    ensure_drawable(tmp_path / "sheet.png")
