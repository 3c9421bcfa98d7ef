"""The sheet: a row for each group, with pictures of its transitions, written atomically."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from dpsr_apex.envs.stacked import StackedEnv
from dpsr_apex.inspection.sheet import draw_sheet, save_sheet
from dpsr_apex.inspection.stored import Group, StoredTransition
from tests.unit.envs.user_envs import Good
from tests.unit.inspection.example_replays import cartpole, stored_transitions


@pytest.fixture(scope="module")
def transitions() -> list[StoredTransition]:
    return stored_transitions(cartpole(), 20)


def sheet(transitions: list[StoredTransition], env: StackedEnv) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    return np.asarray(draw_sheet("a run", [Group("some", "of them", transitions)], env))


def test_transitions_wrap_to_the_next_row(transitions: list[StoredTransition]) -> None:
    eight, nine, sixteen, none = (sheet(transitions[:count], cartpole()) for count in (8, 9, 16, 0))
    assert eight.shape[1] == nine.shape[1] == sixteen.shape[1]
    assert eight.shape[0] < nine.shape[0] == sixteen.shape[0]
    assert none.shape[0] < eight.shape[0]


def test_different_transitions_give_different_pictures(transitions: list[StoredTransition]) -> None:
    env = cartpole()
    np.testing.assert_array_equal(sheet(transitions[:2], env), sheet(transitions[:2], env))
    assert (sheet(transitions[:2], env) != sheet(transitions[1:3], env)).any()


def test_vectors_are_rendered_by_the_environment_or_as_bars(transitions: list[StoredTransition]) -> None:
    drawn = sheet(transitions[:1], cartpole())
    assert (drawn == (202, 152, 101)).all(axis=2).any()  # the colour of the pole
    damaged = [transition._replace(snapshot=b"") for transition in transitions[:1]]
    assert (sheet(damaged, cartpole()) == (16, 18, 24)).all(axis=2).any()  # the background of bars
    walk = StackedEnv(Good(), 1, seed=0)
    assert (sheet(stored_transitions(walk, 3), walk) == (16, 18, 24)).all(axis=2).any()


def test_the_file_is_a_png(transitions: list[StoredTransition], tmp_path: Path) -> None:
    path = tmp_path / "sheet.png"
    save_sheet(path, "a run", [Group("some", "of them", transitions)], cartpole())
    with Image.open(path) as picture:
        assert picture.format == "PNG"
    assert list(tmp_path.iterdir()) == [path]
